//! Failed requests: kind, outcome and retry of each error, within the deadline and with one request.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use queue_core::backend::Backend;
use queue_runtime::error::{Outcome, RetryAdvice};
use queue_runtime::{Error, ErrorKind};

use crate::azure::responder::{
    Reply, Responder, answer, builder, every_error, foreign_answer, queue, with,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Asserts that every operation fails in this way, each after one request.
fn assert_all(reply: Reply, deadline: Duration, expected: (ErrorKind, Outcome)) -> Vec<Error> {
    let responder = Responder::always(reply);
    let errors = with(&responder.with_key(), deadline, async |backend| {
        every_error(&backend, "receipt").await
    });
    let named = format!("{errors:?}");
    assert_eq!(errors.len(), 12, "{named}");
    assert_eq!(responder.requests().len(), 12, "one request each: {named}");
    let errors = errors.into_iter();
    errors
        .map(|(name, error)| {
            let found = (error.kind(), error.outcome());
            assert_eq!(found, expected, "{name}: {error}");
            error
        })
        .collect()
}

#[test]
fn the_connection_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let url = format!("http://{address}/acct?sig=x");
    let errors = with(&url, PATIENCE, async |b| every_error(&b, "r").await);
    assert_eq!(errors.len(), 12);
    for (name, error) in errors {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{name}");
        assert_eq!(error.outcome(), Outcome::NotDone, "{name}");
        assert_eq!(error.retry(), RetryAdvice::Temporary, "{name}");
        assert!(error.to_string().contains("refused"), "{error}");
    }
}

#[test]
fn no_such_host() {
    let url = "AccountName=acct;AccountKey=a2V5;EndpointSuffix=does-not-exist.invalid";
    let errors = with(url, PATIENCE, async |b| every_error(&b, "r").await);
    for (name, error) in errors {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{name}: {error}");
        assert_eq!(error.outcome(), Outcome::NotDone, "{name}: {error}");
    }
}

#[test]
fn the_connection_breaks() {
    let broken = (ErrorKind::Unreachable, Outcome::Unknown);
    let half_a_body =
        "HTTP/1.1 200 OK\r\nx-ms-request-id: 7f\r\nContent-Length: 100\r\n\r\n<QueueMess";
    for text in [
        "",
        "HTTP/1.1 200 OK\r\nContent-Le",
        half_a_body,
        "SSH-2.0-x\r\n",
    ] {
        assert_all(Reply::Cut(text.to_owned()), PATIENCE, broken);
    }
}

#[test]
fn no_reply_or_an_incomplete_one() {
    let late = (ErrorKind::Timeout, Outcome::Unknown);
    let deadline = Duration::from_secs(2);
    let whole = answer("200 OK", "x-ms-approximate-messages-count: 1\r\n", "<a/>");
    let head = "HTTP/1.1 200 OK\r\nx-ms-request-id: 7f\r\nContent-Length: 100\r\n\r\n<".to_owned();
    let stalls = [Reply::Stall(String::new()), Reply::Stall(head)];
    for reply in stalls.into_iter().chain([Reply::Drip(whole)]) {
        let started = Instant::now();
        assert_all(reply.clone(), deadline, late);
        let took = started.elapsed();
        assert!(took < deadline + PATIENCE / 2, "{reply:?}: {took:?}");
    }
}

#[test]
fn a_reply_that_is_too_long_is_rejected() {
    let flood = Reply::Flood(1 << 30);
    let responder = Responder::always(flood);
    let error = with(&responder.with_key(), PATIENCE, async |backend| {
        backend.receive(&queue(), 1, Duration::from_secs(1)).await
    });
    let error = error.expect_err("refused");
    assert!(!error.is_damage(), "{error}");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.outcome(), Outcome::Unknown);
}

#[test]
fn errors_of_the_service() {
    let busy = "x-ms-error-code: ServerBusy\r\nRetry-After: 7\r\n";
    let cases = [
        ("503 Busy", busy, ErrorKind::Throttled, Outcome::NotDone),
        ("503 Busy", "", ErrorKind::Throttled, Outcome::Unknown),
        (
            "500 Internal",
            "x-ms-error-code: OperationTimedOut\r\n",
            ErrorKind::Throttled,
            Outcome::Unknown,
        ),
        ("500 Internal", "", ErrorKind::Storage, Outcome::Unknown),
        (
            "404 Not Found",
            "x-ms-error-code: QueueNotFound\r\n",
            ErrorKind::QueueNotFound,
            Outcome::NotDone,
        ),
        (
            "301 Moved",
            "Location: /\r\n",
            ErrorKind::Unreachable,
            Outcome::Unknown,
        ),
        // No code: from a box in between, which may have passed the request on.
        (
            "403 Forbidden",
            "",
            ErrorKind::Unreachable,
            Outcome::Unknown,
        ),
        (
            "404 Not Found",
            "",
            ErrorKind::Unreachable,
            Outcome::Unknown,
        ),
    ];
    for (status, headers, kind, outcome) in cases {
        let reply = Reply::Send(answer(status, headers, "<html>not XML"));
        for error in assert_all(reply, PATIENCE, (kind, outcome)) {
            if headers == busy {
                let after = Some(Duration::from_secs(7));
                assert_eq!(error.retry(), RetryAdvice::Throttled(after), "{error}");
            }
        }
    }
}

#[test]
fn clock_skew_is_mentioned() {
    let headers =
        "x-ms-error-code: AuthenticationFailed\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
    let reply = Reply::Send(answer("403 Forbidden", headers, ""));
    for error in assert_all(reply, PATIENCE, (ErrorKind::Denied, Outcome::NotDone)) {
        assert!(
            error.to_string().contains("this machine's clock is"),
            "{error}"
        );
        assert_eq!(error.retry(), RetryAdvice::Permanent);
    }
}

/// For example the login page of a network, or a proxy that answers every request.
#[test]
fn replies_that_are_not_from_the_service() {
    let headers = "x-ms-popreceipt: r\r\nx-ms-time-next-visible: Thu, 01 Jan 2026 00:00:30 GMT\r\n\
                   x-ms-approximate-messages-count: 1\r\n";
    let list = "<EnumerationResults><Queues /><NextMarker /></EnumerationResults>";
    let coded = |code: &str| format!("x-ms-error-code: {code}\r\n");
    let html =
        format!("x-ms-request-id: 7f\r\nContent-Type: Text/HTML; charset=utf-8\r\n{headers}");
    let foreign = [
        ("200 OK", headers.to_owned(), list),
        ("201 Created", headers.to_owned(), "<QueueMessagesList/>"),
        ("204 No Content", headers.to_owned(), ""),
        ("200 OK", html.clone(), "<html>Welcome!"),
        ("204 No Content", html, ""),
        ("400 Bad Request", coded("PopReceiptMismatch"), ""),
        ("403 Forbidden", coded("AuthenticationFailed"), ""),
        ("404 Not Found", coded("MessageNotFound"), ""),
        (
            "404 Not Found",
            String::new(),
            "<Error><Code>QueueNotFound</Code></Error>",
        ),
        ("409 Conflict", coded("QueueAlreadyExists"), ""),
        ("413 Too Large", coded("RequestBodyTooLarge"), ""),
    ];
    for (status, headers, body) in foreign {
        let reply = Reply::Send(foreign_answer(status, &headers, body));
        for error in assert_all(reply, PATIENCE, (ErrorKind::Unreachable, Outcome::Unknown)) {
            assert_eq!(error.retry(), RetryAdvice::Temporary, "{error}");
            assert!(error.to_string().contains("x-ms-request-id"), "{error}");
        }
    }
    let busy = format!("{}Retry-After: 7\r\n", coded("ServerBusy"));
    for status in ["503 Busy", "429 Too Many Requests"] {
        let reply = Reply::Send(foreign_answer(status, &busy, ""));
        for error in assert_all(reply, PATIENCE, (ErrorKind::Throttled, Outcome::Unknown)) {
            let after = Some(Duration::from_secs(7));
            assert_eq!(error.retry(), RetryAdvice::Throttled(after), "{error}");
        }
    }
}

/// Calls every operation on blobs. Returns the errors, which prove nothing.
fn of_blobs(reply: String) -> Vec<Error> {
    let responder = Responder::always(Reply::Send(reply.clone()));
    with(&responder.with_blobs(), PATIENCE, async |backend| {
        let blobs = backend.payload_store("payloads").expect("a name");
        let blobs = blobs.expect("it has containers");
        let asked = [
            blobs.prepare().await.err(),
            blobs.create("data/a", "a".into()).await.err(),
            blobs.delete("data/a").await.err(),
            blobs.read("data/a", 0, 10).await.err(),
            blobs.list("data/", None).await.err(),
        ];
        let errors: Option<Vec<_>> = asked.into_iter().collect();
        errors.unwrap_or_else(|| panic!("believed: {reply}"))
    })
}

#[test]
fn no_reply_of_another_program_tells_of_blobs() {
    let coded = |code: &str| format!("x-ms-error-code: {code}\r\n");
    let list = "<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
    for (status, headers, body) in [
        ("200 OK", String::new(), "<html>Welcome!"),
        (
            "200 OK",
            "x-ms-request-id: 7f\r\nContent-Type: text/html\r\n".to_owned(),
            "<html>",
        ),
        ("201 Created", "ETag: \"1\"\r\n".to_owned(), list),
        ("202 Accepted", String::new(), ""),
        ("403 Forbidden", coded("AuthorizationFailure"), ""),
        ("404 Not Found", coded("BlobNotFound"), ""),
        ("404 Not Found", coded("ContainerNotFound"), ""),
        ("409 Conflict", coded("BlobAlreadyExists"), ""),
        ("409 Conflict", coded("ContainerAlreadyExists"), ""),
        ("416 Range", coded("InvalidRange"), ""),
    ] {
        for error in of_blobs(foreign_answer(status, &headers, body)) {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{status}: {error}");
            assert_eq!(error.outcome(), Outcome::Unknown, "{status}: {error}");
            assert_eq!(error.retry(), RetryAdvice::Temporary, "{status}: {error}");
        }
    }
}

/// A box in between has cut it, and says a length that fits.
#[test]
fn a_blob_that_was_cut_is_not_believed() {
    let read = |status: &str, range: &str, from: u64, body: &str| {
        let headers =
            format!("{range}ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n");
        let responder = Responder::always(Reply::Send(answer(status, &headers, body)));
        with(&responder.with_blobs(), PATIENCE, async |backend| {
            let blobs = backend.payload_store("payloads").expect("a name");
            let blobs = blobs.expect("it has containers");
            blobs.read("data/a", from, 10).await
        })
    };
    let range = "Content-Range: bytes 5-14/20\r\n";
    let whole = read("206 Partial", range, 5, "0123456789").expect("read");
    assert_eq!(whole.expect("there"), "0123456789");
    let whole = read("200 OK", "", 0, "0123").expect("read");
    assert_eq!(whole.expect("there"), "0123");
    for (status, range, from, body) in [
        ("206 Partial", range, 5, "012345"),
        ("206 Partial", range, 5, ""),
        ("206 Partial", range, 4, "0123456789"),
        (
            "206 Partial",
            "Content-Range: nonsense\r\n",
            5,
            "0123456789",
        ),
        ("200 OK", "", 5, "0123456789"),
        ("200 OK", "", 0, ""),
    ] {
        let error = read(status, range, from, body).expect_err(body);
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        assert!(!error.is_damage(), "{error}");
    }
}

#[test]
fn invalid_replies_of_success() {
    for body in [
        "",
        "not XML",
        "<Other/>",
        "<QueueMessagesList><QueueMessage/></QueueMessagesList>",
    ] {
        for status in ["200 OK", "201 Created"] {
            let responder = Responder::always(Reply::Send(answer(status, "", body)));
            let errors = with(&responder.with_key(), PATIENCE, async |b| {
                every_error(&b, "r").await
            });
            for (name, error) in errors {
                let kinds = [ErrorKind::Corrupt, ErrorKind::Unreachable];
                assert!(kinds.contains(&error.kind()), "{name}: {error}");
                assert_eq!(error.outcome(), Outcome::Unknown, "{name}: {error}");
                assert_eq!(error.retry(), RetryAdvice::Temporary, "{name}: {error}");
            }
        }
    }
}

#[test]
fn a_connection_that_was_closed_is_opened_again() {
    let count = "x-ms-approximate-messages-count: 3\r\n";
    let responder = Responder::always(Reply::Cut(answer("200 OK", count, "")));
    with(&responder.with_key(), PATIENCE, async |backend| {
        for _ in 0..3 {
            let properties = backend.properties(&queue()).await.expect("properties");
            assert_eq!(properties.approximate_count, 3);
            // Until then, the next call might use the connection and fail.
            responder.cut_is_seen();
        }
    });
    assert_eq!(responder.requests().len(), 3);
}

/// A connection is driven by the runtime that opened it. If it were shared, a call on the second runtime
/// would wait for the first, which is not running.
#[test]
fn a_blocked_runtime_does_not_delay_another() {
    let count = "x-ms-approximate-messages-count: 3\r\n";
    let responder = Responder::always(Reply::Send(answer("200 OK", count, "")));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (blocked, other) = (runtime(), runtime());
    let backend = blocked.block_on(async {
        let opened = builder(&responder.with_key()).deadline(PATIENCE).open();
        let backend = opened.await.expect("open");
        backend.properties(&queue()).await.expect("properties");
        backend
    });
    let properties = other.block_on(backend.properties(&queue()));
    assert_eq!(properties.expect("properties").approximate_count, 3);
    drop(blocked);
}

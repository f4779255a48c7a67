//! Failed requests: kind, outcome and retry of each error, within the deadline and with one request.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use queue_core::backend::Backend;
use queue_runtime::{Error, ErrorKind, Outcome, RetryAdvice};

use crate::responder::{
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
    let half_a_body = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<QueueMess";
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
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<".to_owned();
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
            ErrorKind::Corrupt,
            Outcome::Unknown,
        ),
        // No code: from a box in between, which may have passed the request on.
        ("403 Forbidden", "", ErrorKind::Corrupt, Outcome::Unknown),
        ("404 Not Found", "", ErrorKind::Corrupt, Outcome::Unknown),
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
fn replies_of_success_that_are_not_from_the_service() {
    let headers = "x-ms-popreceipt: r\r\nx-ms-time-next-visible: Thu, 01 Jan 2026 00:00:30 GMT\r\n\
                   x-ms-approximate-messages-count: 1\r\n";
    let page = "<EnumerationResults><Queues /><NextMarker /></EnumerationResults>";
    for (status, body) in [
        ("200 OK", page),
        ("201 Created", "<QueueMessagesList/>"),
        ("204 No Content", ""),
    ] {
        let reply = Reply::Send(foreign_answer(status, headers, body));
        for error in assert_all(reply, PATIENCE, (ErrorKind::Corrupt, Outcome::Unknown)) {
            assert_eq!(error.retry(), RetryAdvice::Temporary, "{error}");
            assert!(error.to_string().contains("x-ms-request-id"), "{error}");
        }
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
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
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

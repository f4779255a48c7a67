//! Faults between client and service: for each fault and operation, the error, its outcome, the number of
//! requests and the state afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use queue_core::Timestamp;
use queue_core::backend::{Backend, BackendExt as _, NewMessage};
use queue_core::clock::{BoxFuture, Clock};
use queue_runtime::ErrorKind;
use queue_runtime::backend::AzureBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::error::{Outcome, RetryAdvice};
use queue_tests::http::Message;

use crate::case::{Case, Expected, PATIENCE, SHORT, assert_each, assert_refused, connect, run};
use crate::fault::{Call, Fault};
use crate::operation::CALLS;
use crate::server::ACCOUNT;

const BROKEN: Expected = (
    ErrorKind::Unreachable,
    Outcome::Unknown,
    RetryAdvice::Temporary,
);
const LATE: Expected = (ErrorKind::Timeout, Outcome::Unknown, RetryAdvice::Temporary);

#[test]
fn a_connection_that_is_refused() {
    run(join_all(CALLS.map(async |call| {
        let case = Case::of(call, PATIENCE).await;
        let error = case.attempt(&case.proxied).await.expect_err("refused");
        let found = (error.kind(), error.outcome(), error.retry());
        let expected = (
            ErrorKind::Unreachable,
            Outcome::NotDone,
            RetryAdvice::Temporary,
        );
        assert_eq!(found, expected, "{call:?}: {error}");
        assert_eq!(case.proxy.seen(call).len(), 0);
        case.proxy.accept_connections().await;
        case.repeat_and_check(false).await;
    })));
}

#[test]
fn a_reset_before_execution() {
    run(assert_each(&CALLS, Fault::ResetBefore, PATIENCE, BROKEN));
}

#[test]
fn a_reset_after_execution() {
    run(assert_each(&CALLS, Fault::ResetAfter, PATIENCE, BROKEN));
}

#[test]
fn an_answer_cut_within_its_head() {
    run(assert_each(&CALLS, Fault::HalfHead, PATIENCE, BROKEN));
}

/// Answers with status 204 have no body.
#[test]
fn an_answer_cut_within_its_body() {
    let calls = [
        Call::CreateQueue,
        Call::ListQueues,
        Call::Properties,
        Call::Put,
        Call::Receive,
        Call::Peek,
    ];
    run(assert_each(&calls, Fault::HalfBody, PATIENCE, BROKEN));
}

#[test]
fn an_answer_at_one_byte_per_second() {
    run(assert_each(&CALLS, Fault::Drip, SHORT, LATE));
}

#[test]
fn no_answer_at_all() {
    run(assert_each(&CALLS, Fault::BlackHole, SHORT, LATE));
}

#[test]
fn errors_500_and_503() {
    const BUSY: &str = "<?xml version=\"1.0\"?><Error><Code>ServerBusy</Code></Error>";
    const TIMED_OUT: &str = "<?xml version=\"1.0\"?><Error><Code>OperationTimedOut</Code></Error>";
    const WAIT: (&str, &str) = ("Retry-After", "3");
    const ID: (&str, &str) = ("x-ms-request-id", "7f");
    let asked = RetryAdvice::Throttled(Some(Duration::from_secs(3)));
    let anyhow = RetryAdvice::Throttled(None);
    let throttled = |outcome, retry| (ErrorKind::Throttled, outcome, retry);
    let (unknown, not_done) = (Outcome::Unknown, Outcome::NotDone);
    let storage = (ErrorKind::Storage, unknown, RetryAdvice::Temporary);
    let cases = [
        ("500 Internal", vec![], "<html>", storage),
        (
            "500 Timed Out",
            vec![ID],
            TIMED_OUT,
            throttled(unknown, anyhow),
        ),
        (
            "503 Unavailable",
            vec![],
            "<html>",
            throttled(unknown, anyhow),
        ),
        (
            "503 Unavailable",
            vec![WAIT],
            "<html>",
            throttled(unknown, asked),
        ),
        ("503 Busy", vec![ID], BUSY, throttled(not_done, anyhow)),
        ("503 Busy", vec![ID, WAIT], BUSY, throttled(not_done, asked)),
        // Only who has given the request an id knows what became of it.
        ("503 Busy", vec![WAIT], BUSY, throttled(unknown, asked)),
    ];
    run(join_all(cases.map(
        async |(status, headers, body, expected)| {
            let answer = Message::answer(status, &headers, body);
            let instead = Fault::Instead(answer.clone());
            assert_each(&CALLS, instead, PATIENCE, expected).await;
            // A gateway may answer so although the service has executed the request.
            if expected.1 == Outcome::Unknown {
                assert_each(&CALLS, Fault::Afterwards(answer), PATIENCE, expected).await;
            }
        },
    )));
}

/// The page of a proxy must not be taken for an answer, whatever its status.
#[test]
fn bodies_that_are_not_xml() {
    let foreign = (
        ErrorKind::Unreachable,
        Outcome::Unknown,
        RetryAdvice::Temporary,
    );
    let html = ("Content-Type", "text/html");
    let statuses = ["200 OK", "201 Created", "403 Forbidden", "404 Not Found"];
    run(join_all(statuses.map(async |status| {
        let page = Message::answer(status, &[html], "<html><body>Welcome!<p></body></html>");
        assert_each(&CALLS, Fault::Instead(page.clone()), PATIENCE, foreign).await;
        assert_each(&CALLS, Fault::Afterwards(page), PATIENCE, foreign).await;
    })));
}

#[test]
fn a_wrong_key() {
    run(join_all(CALLS.map(async |call| {
        let case = Case::of(call, PATIENCE).await;
        case.proxy.accept_connections().await;
        let url = case.proxy.connection_string();
        let url = url.replace("AccountKey=", "AccountKey=AAAA");
        let wrong = connect(&url, PATIENCE).await;
        let error = assert_refused(&case, &wrong, ErrorKind::Denied).await;
        assert!(!error.to_string().contains("clock"), "{error}");
        case.repeat_and_check(false).await;
    })));
}

#[test]
fn a_clock_that_is_twenty_minutes_off() {
    let skews = [(20, "20 minutes ahead of"), (-20, "20 minutes behind")];
    let cases = skews
        .into_iter()
        .flat_map(|skew| CALLS.map(|call| (skew, call)));
    run(join_all(cases.map(async |((minutes, told), call)| {
        let case = Case::of(call, PATIENCE).await;
        case.proxy.accept_connections().await;
        let clock = Skewed(SystemClock::new(), jiff::SignedDuration::from_mins(minutes));
        let url = case.proxy.connection_string();
        let skewed = AzureBackend::builder(&url, Arc::new(clock));
        let skewed = skewed.deadline(PATIENCE).open().await.expect("open");
        case.proxy
            .script(call, [Fault::CheckClock, Fault::CheckClock]);
        let error = assert_refused(&case, &skewed, ErrorKind::Denied).await;
        let said = error.to_string();
        // The service's date has whole seconds, so 20 minutes may be shown as 21.
        let close = told.replace("20", "21");
        assert!(said.contains(told) || said.contains(&close), "{said}");
        assert!(said.contains("this machine's clock"), "{said}");
        case.repeat_and_check(false).await;
    })));
}

/// A clock with a constant error of the wall-clock time.
#[derive(Debug)]
struct Skewed(SystemClock, jiff::SignedDuration);

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        self.0.now() + self.1
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

#[test]
fn a_queue_that_was_deleted() {
    let calls = CALLS.into_iter().filter(|call| call.needs_a_queue());
    run(join_all(calls.map(async |call| {
        let case = Case::of(call, PATIENCE).await;
        case.proxy.accept_connections().await;
        let deleted = case.direct.delete_queue(&case.queue).await;
        deleted.expect("delete");
        let error = assert_refused(&case, &case.proxied, ErrorKind::QueueNotFound).await;
        assert_eq!(error.queue(), Some(&case.queue), "{error}");
    })));
}

/// A connection that ends while it is idle does not fail the next call.
#[test]
fn a_connection_that_is_cut_between_calls() {
    run(join_all(CALLS.map(async |call| {
        let case = Case::of(call, PATIENCE).await;
        case.proxy.accept_connections().await;
        case.warm().await.expect("an answer");
        // Before the client has noticed the end, the next call would fail.
        case.proxy.cut().await;
        case.repeat_and_check(false).await;
        assert_eq!(case.proxy.seen(call).len(), 1, "{call:?}: one request");
    })));
}

/// Packets are dropped, as by a firewall: the request was never sent.
#[tokio::test]
async fn a_connection_that_times_out() {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let listener = socket.listen(1).expect("listen");
    let address = listener.local_addr().expect("bound");
    let mut filling = Vec::new();
    // Connections beyond the listener's backlog are not answered.
    for _ in 0..64 {
        let connection = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(500), connection).await {
            Ok(connection) => filling.push(connection.expect("connected")),
            Err(_) => break,
        }
    }
    let url = format!("http://{address}/{ACCOUNT}?sig=x");
    let backend = connect(&url, SHORT).await;
    let queue = "orders".parse().expect("a name");
    let started = Instant::now();
    let put = backend.put(&queue, NewMessage::new("body")).await;
    let error = put.expect_err("no connection");
    let took = started.elapsed();
    assert!(took < PATIENCE / 2, "{took:?}");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
    assert_eq!(error.retry(), RetryAdvice::Temporary, "{error}");
}

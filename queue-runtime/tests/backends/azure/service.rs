//! A service against a fake server: repeats, and what keeps a lease.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use queue_runtime::error::Outcome;
use queue_runtime::policy::StorageRetry;
use queue_runtime::{Delivery, Disposition, ErrorKind, Message, QueueService};
use queue_tests::http;
use queue_tests::orders::BareOrder;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::azure::responder::{Reply, Responder, answer, foreign_answer, with};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "invoices")]
struct Invoice {
    number: u32,
}

/// A timeout that only a hang reaches, on the slowest machine too.
const GUARD: Duration = Duration::from_secs(300);

/// A lease that no machine is too slow to hold.
const LONG_LEASE: Duration = Duration::from_secs(3600);

/// The reply to a put that was stored.
const STORED: &str = "<QueueMessagesList><QueueMessage><MessageId>m</MessageId>\
                      <InsertionTime>Thu, 01 Jan 2026 00:00:00 GMT</InsertionTime>\
                      <ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime>\
                      <PopReceipt>r</PopReceipt>\
                      <TimeNextVisible>Thu, 01 Jan 2026 00:00:00 GMT</TimeNextVisible>\
                      </QueueMessage></QueueMessagesList>";

const BUSY: &str = "x-ms-error-code: ServerBusy\r\nRetry-After: 0\r\n";

/// Whether a request is a call on messages with this verb.
fn is(request: &http::Message, verb: &str) -> bool {
    let mut parts = request.first.split(' ');
    let named = parts.next() == Some(verb);
    named && parts.next().is_some_and(|path| path.contains("/messages"))
}

/// The reply to all requests that need one for an order to be accepted.
fn one_order(request: &http::Message) -> Reply {
    if request.first.starts_with("DELETE ") {
        return Reply::Send(answer("204 No Content", "", ""));
    }
    if !is(request, "GET") {
        let count = "x-ms-approximate-messages-count: 1\r\n";
        return Reply::Send(answer("200 OK", count, ""));
    }
    let date = "Thu, 01 Jan 2026 00:00:00 GMT";
    let list = format!(
        "<QueueMessagesList><QueueMessage><MessageId>m-1</MessageId>\
         <InsertionTime>{date}</InsertionTime>\
         <ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime>\
         <PopReceipt>r</PopReceipt><TimeNextVisible>{date}</TimeNextVisible>\
         <DequeueCount>1</DequeueCount><MessageText>{{\"number\":7}}</MessageText>\
         </QueueMessage></QueueMessagesList>"
    );
    Reply::Send(answer("200 OK", "", &list))
}

/// Runs a test with a service on a responder.
fn run<T>(responder: &Responder, test: impl AsyncFnOnce(QueueService) -> T) -> T {
    with(&responder.with_key(), GUARD, async |backend| {
        let connected = QueueService::with_backend(Arc::new(backend))
            .connect()
            .await;
        let test = test(connected.expect("connected"));
        let ended = tokio::time::timeout(GUARD, test).await;
        ended.expect("in time")
    })
}

async fn accept(service: &QueueService, lease: Duration) -> Delivery<BareOrder> {
    let accepted = service
        .accept::<BareOrder>()
        .visibility_timeout(lease)
        .await;
    accepted.expect("accepted").expect("an order")
}

/// How often a request fails before it succeeds, with at least this long between two requests: a machine that stands
/// still makes the pauses longer, never shorter.
const FAILURES: usize = 5;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// A service that asks for no delay is not asked without one.
#[test]
fn busy_replies_without_a_delay_are_answered_with_pauses() {
    let deletes = AtomicUsize::new(0);
    let responder = Responder::by(move |request| {
        if is(request, "DELETE") && deletes.fetch_add(1, Ordering::SeqCst) < FAILURES {
            Reply::Send(answer("503 Busy", BUSY, ""))
        } else {
            one_order(request)
        }
    });
    run(&responder, async |service| {
        let order = accept(&service, LONG_LEASE).await;
        let started = Instant::now();
        order.complete().await.expect("deleted at last");
        let took = started.elapsed();
        assert!(took >= SHORTEST_PAUSE * FAILURES as u32, "{took:?}");
    });
    assert_eq!(responder.count("DELETE "), FAILURES + 1);
}

/// The queue of a follow-up is reported as missing, and its creation as successful.
#[test]
fn a_queue_that_stays_missing_is_created_with_pauses() {
    let missing = || answer("404 Gone", "x-ms-error-code: QueueNotFound\r\n", "");
    let puts = AtomicUsize::new(0);
    let responder = Responder::by(move |request| match () {
        () if is(request, "POST") => match puts.fetch_add(1, Ordering::SeqCst) {
            FAILURES => Reply::Send(answer("201 Created", "", STORED)),
            _ => Reply::Send(missing()),
        },
        () if request.first.starts_with("PUT ") => Reply::Send(answer("204 No Content", "", "")),
        () => one_order(request),
    });
    run(&responder, async |service| {
        let order = accept(&service, LONG_LEASE).await;
        let then = Disposition::complete().then(&Invoice { number: 7 });
        let started = Instant::now();
        order.settle(then).await.expect("stored at last");
        let took = started.elapsed();
        assert!(took >= SHORTEST_PAUSE * (FAILURES as u32 - 1), "{took:?}");
        let once = service.submit(Invoice { number: 8 });
        let once = once.storage_retry(StorageRetry::default().with_max_tries(2));
        assert_eq!(
            once.await.expect_err("never stored").outcome(),
            Outcome::NotDone
        );
    });
    let (puts, creations) = (responder.count("POST "), responder.count("PUT "));
    assert_eq!(responder.count("DELETE "), 1);
    assert!(
        (FAILURES + 1 + 2..=FAILURES + 1 + 3).contains(&puts),
        "{puts}"
    );
    assert!((2..=puts).contains(&creations), "{creations}");
}

/// A box in between refuses renewals for a while. It does not decide over the lease.
#[test]
fn a_foreign_refusal_does_not_end_the_renewals() {
    let (updates, (renewed, renewal)) = (AtomicUsize::new(0), oneshot::channel());
    let renewed = Mutex::new(Some(renewed));
    let responder = Responder::by(move |request| {
        if !is(request, "PUT") {
            return one_order(request);
        }
        if updates.fetch_add(1, Ordering::SeqCst) < 2 {
            let page = "<html>Access to this site is blocked</html>";
            return Reply::Send(foreign_answer("403 Forbidden", "", page));
        }
        if let Some(renewed) = renewed.lock().expect("no panic").take() {
            let _ = renewed.send(());
        }
        let headers = "x-ms-popreceipt: new\r\n\
                       x-ms-time-next-visible: Thu, 01 Jan 2026 00:00:30 GMT\r\n";
        Reply::Send(answer("204 No Content", headers, ""))
    });
    run(&responder, async |service| {
        let order = accept(&service, Duration::from_secs(40)).await;
        tokio::select! {
            renewed = renewal => renewed.expect("the responder lives"),
            () = order.cancelled() => panic!("the lease was given up"),
        }
        order.complete().await.expect("the lease is held");
    });
}

/// What a service answers to a put, which does not depend on what the put contains.
#[derive(Clone, Copy)]
enum Put {
    Stored,
    Busy,
    Lost,
}

fn puts(answers: &'static [Put]) -> Responder {
    let puts = AtomicUsize::new(0);
    Responder::by(
        move |_| match answers[puts.fetch_add(1, Ordering::SeqCst)] {
            Put::Stored => Reply::Send(answer("201 Created", "", STORED)),
            Put::Busy => Reply::Send(answer("503 Busy", BUSY, "")),
            Put::Lost => Reply::Cut(String::new()),
        },
    )
}

/// Returns the ids of the events that were sent, in order.
fn sent(responder: &Responder) -> Vec<String> {
    let id = |request: String| {
        let text = request.split("<MessageText>").nth(1)?.split('<').next()?;
        let event = BASE64_STANDARD.decode(text).ok()?;
        let event: serde_json::Value = serde_json::from_slice(&event).ok()?;
        Some(event["id"].as_str()?.to_owned())
    };
    let ids = responder.requests().into_iter().map(id);
    ids.collect::<Option<_>>().expect("events")
}

fn three() -> [Invoice; 3] {
    [1, 2, 3].map(|number| Invoice { number })
}

/// The service has no atomic operation for several messages: each is tried again alone.
#[test]
fn several_messages_are_tried_again_one_by_one() {
    use Put::{Busy, Lost, Stored};
    let responder = puts(&[Busy, Stored, Busy, Lost, Stored, Busy, Stored]);
    let submitted = run(&responder, async |service| {
        let policy = StorageRetry::default().with_max_tries(3);
        let all = service.submit_all(three()).storage_retry(policy);
        all.retry_unknown().await.expect("submitted")
    });
    let [a, b, c] = [0, 1, 2].map(|at: usize| submitted[at].id.as_str());
    assert_eq!(sent(&responder), [a, a, b, b, b, c, c]);
}

#[test]
fn a_message_without_an_answer_ends_a_series() {
    use Put::{Busy, Lost, Stored};
    let responder = puts(&[Stored, Busy, Lost]);
    let failed = run(&responder, async |service| {
        service.submit_all(three()).await.expect_err("no answer")
    });
    assert_eq!(failed.outcome(), Outcome::Unknown);
    let stored = failed.submitted[0].id.as_str();
    let unknown = failed.rest[0].0.as_ref().expect("an id").as_str();
    assert_eq!((failed.submitted.len(), failed.rest.len()), (1, 2));
    assert_eq!(sent(&responder), [stored, unknown, unknown]);
}

#[test]
fn a_series_that_went_on_after_a_lost_answer_is_known() {
    use Put::{Busy, Lost, Stored};
    let responder = puts(&[Lost, Stored, Busy, Busy]);
    let failed = run(&responder, async |service| {
        let policy = StorageRetry::default().with_max_tries(2);
        let all = service.submit_all(three()).storage_retry(policy);
        all.retry_unknown().await.expect_err("busy")
    });
    assert_eq!((failed.submitted.len(), failed.rest.len()), (1, 2));
    assert_eq!(
        failed.outcome(),
        Outcome::NotDone,
        "the second message was never stored"
    );
}

#[test]
fn a_queue_is_cleared_by_several_requests() {
    let clears = AtomicUsize::new(0);
    let responder = Responder::by(move |_| {
        let unfinished = clears.fetch_add(1, Ordering::SeqCst) < 3;
        Reply::Send(if unfinished {
            answer("500 Busy", "x-ms-error-code: OperationTimedOut\r\n", "")
        } else {
            answer("204 No Content", "", "")
        })
    });
    run(&responder, async |service| {
        let orders = service.queue::<BareOrder>().any();
        orders.clear().await.expect("cleared");
    });
    assert_eq!(responder.count("DELETE "), 4);
}

#[test]
fn a_submission_ends_if_the_service_asks_for_a_delay_beyond_its_time() {
    let puts = AtomicUsize::new(0);
    let responder = Responder::by(move |_| {
        let long = "x-ms-error-code: ServerBusy\r\nRetry-After: 3600\r\n";
        let headers = match puts.fetch_add(1, Ordering::SeqCst) {
            0 => BUSY,
            _ => long,
        };
        Reply::Send(answer("503 Busy", headers, ""))
    });
    run(&responder, async |service| {
        let failed = service.submit(Invoice { number: 1 }).await;
        let failed = failed.expect_err("an hour is longer than the policy allows");
        let queue_runtime::send::SubmitErrorKind::Storage(error) = &failed.kind else {
            panic!("{failed:?}");
        };
        assert_eq!(error.kind(), ErrorKind::Throttled);
        assert_eq!(failed.outcome(), Outcome::NotDone);
    });
    assert_eq!(responder.count("POST "), 2);
}

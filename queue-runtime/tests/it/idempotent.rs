//! Messages whose work is done once: idempotent listeners and `accept`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::{Operation, RetryAdvice};
use queue_runtime::idempotency::{ClaimOutcome, Owner, ResultStore, WorkKey};
use queue_runtime::receive::{AcceptErrorKind, SettleErrorKind, Settled};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    Disposition, Error, ErrorKind, ListenerEventKind, Message, QueueService, Received,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::support::flaky_results::{Flaky, memory_results};
use crate::support::{accepted, count, events, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "charges")]
struct Charge {
    #[message(key)]
    order: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "receipts")]
struct Receipt {
    order: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "bare-charges", wire = "bare")]
struct BareCharge {
    #[message(key)]
    order: u32,
}

async fn submit(service: &QueueService, order: u32) {
    let submitted = service.submit(Charge { order }).request_id("checkout");
    submitted.await.expect("submitted");
}

/// A handler that counts its calls and submits a follow-up.
fn charging(
    calls: &Arc<AtomicU32>,
) -> impl Fn(Received<Charge>) -> std::future::Ready<Disposition> + Send + Sync + 'static {
    let calls = Arc::clone(calls);
    move |charge| {
        calls.fetch_add(1, Ordering::Relaxed);
        let order = charge.order;
        std::future::ready(Disposition::complete().then(&Receipt { order }))
    }
}

/// The release of the claim takes a second. When it began, the retry was half a second within the life of the message.
#[tokio::test(start_paused = true)]
async fn whether_a_retry_outlives_its_message_is_judged_after_its_claim_is_released() {
    let service = testing::service().await;
    let submit = service.submit(Charge { order: 1 });
    let submit = submit.time_to_live(Duration::from_millis(62_500));
    submit.await.expect("submitted");
    let charge = service.accept::<Charge>().idempotent(Flaky::new()).await;
    let charge = charge.expect("accepted").expect("it is there");
    let settled = charge.retry_after(Duration::from_secs(60), "busy").await;
    let expiring = Settled::Poisoned(PoisonReason::Expiring);
    assert_eq!(settled.expect("settled"), expiring);
}

#[tokio::test(start_paused = true)]
async fn a_listener_handles_one_of_many_duplicates_and_repeats_its_follow_up() {
    let service = testing::service().await;
    let calls = Arc::new(AtomicU32::new(0));
    let listener = service.listener(charging(&calls));
    let listener = listener.idempotent(memory_results()).create_queue();
    let mut seen = listener.events();
    for _ in 0..100 {
        submit(&service, 7).await;
    }
    submit(&service, 8).await;
    let listener = listener.start().expect("valid settings");
    let ended = |event: &ListenerEventKind| {
        matches!(
            event,
            ListenerEventKind::Completed { .. } | ListenerEventKind::Duplicate { .. }
        )
    };
    events(&mut seen, 101, ended).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let info = listener.info();
    assert_eq!((info.completed, info.duplicates), (2, 99));
    assert_eq!(count(&service, "charges").await, 0);
    let mut ids = HashSet::new();
    let mut receipts = 0;
    while let Some(receipt) = service.accept::<Receipt>().await.expect("accepted") {
        ids.insert(receipt.envelope().id.clone());
        receipts += 1;
        receipt.complete().await.expect("completed");
    }
    assert_eq!((receipts, ids.len()), (101, 2), "one id for each key");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_work_is_in_flight_elsewhere_is_put_back_and_keeps_its_attempts() {
    let service = testing::service().await;
    let store = memory_results();
    submit(&service, 7).await;
    let key = accepted::<Charge>(&service).await;
    let work = WorkKey::new("queue charges", key.idempotency_key().as_str());
    key.release().await.expect("released");
    let lease = Duration::from_secs(100);
    let begun = store.begin(&work, Owner::random(), lease).await;
    assert!(matches!(begun, Ok(ClaimOutcome::Fresh(_))));

    let attempts = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&attempts);
    let listener = service
        .listener(move |charge: Received<Charge>| {
            noted.lock().expect("no panic").push(charge.attempt());
            std::future::ready(())
        })
        .idempotent(store)
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    let seen = events(&mut seen, 2, |_| true).await;
    assert!(
        matches!(seen[0], ListenerEventKind::Postponed { after, .. } if after == lease),
        "{seen:?}"
    );
    assert!(
        matches!(seen[1], ListenerEventKind::Completed { attempt: 1, .. }),
        "{seen:?}"
    );
    assert_eq!(*attempts.lock().expect("no panic"), [1]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_bare_body_waits_in_place() {
    let service = testing::service().await;
    let store = memory_results();
    service
        .submit(BareCharge { order: 7 })
        .await
        .expect("submitted");
    let charge = accepted::<BareCharge>(&service).await;
    let work = WorkKey::new("queue bare-charges", charge.idempotency_key().as_str());
    drop(charge);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let lease = Duration::from_secs(1000);
    let begun = store.begin(&work, Owner::random(), lease).await;
    assert!(matches!(begun, Ok(ClaimOutcome::Fresh(_))));
    let began = tokio::time::Instant::now();
    let receives = Arc::new(AtomicUsize::new(0));
    let noted = Arc::clone(&receives);
    let listener = service
        .listener(move |charge: Received<BareCharge>| {
            noted.store(charge.dequeue_count(), Ordering::Relaxed);
            std::future::ready(())
        })
        .idempotent(store);
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    let seen = events(&mut seen, 1, |_| true).await;
    assert!(
        matches!(seen[0], ListenerEventKind::Completed { .. }),
        "{seen:?}"
    );
    assert!(began.elapsed() >= lease, "the other's lease ended");
    // One was that of the test.
    assert_eq!(receives.load(Ordering::Relaxed), 2);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_stops_the_handling_and_costs_no_attempts() {
    let service = testing::service().await;
    let store = Flaky::new();
    let calls = Arc::new(AtomicU32::new(0));
    store.set_down(true);
    let listener = service.listener(charging(&calls)).poison_threshold(1);
    let listener = listener.idempotent(store.clone()).create_queue();
    let mut seen = listener.events();
    for order in 0..50 {
        submit(&service, order).await;
    }
    let listener = listener.start().expect("valid settings");
    let is_down =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::ResultStoreFailed { .. });
    let failures = events(&mut seen, 10, is_down).await;
    let ListenerEventKind::ResultStoreFailed { after, .. } = failures[9] else {
        panic!("{failures:?}")
    };
    assert!(after >= Duration::from_secs(10), "it backs off: {after:?}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let refused = store.refused();
    assert!(
        (10..20_000).contains(&refused),
        "{refused} requests in an hour"
    );
    store.set_down(false);
    let completed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
    let completed = events(&mut seen.resubscribe(), 50, completed).await;
    for event in completed {
        assert!(
            matches!(event, ListenerEventKind::Completed { attempt: 1, .. }),
            "{event:?}"
        );
    }
    assert_eq!(calls.load(Ordering::Relaxed), 50);
    stop(listener).await;
}

/// A page in place of a record is no damaged record.
#[tokio::test(start_paused = true)]
async fn a_record_that_may_be_another_programs_answer_costs_no_attempt() {
    let service = testing::service().await;
    let page = Error::new(ErrorKind::Corrupt, Operation::Results);
    let store = Flaky::with_error(page.with_retry(RetryAdvice::Temporary));
    store.set_down(true);
    let calls = Arc::new(AtomicU32::new(0));
    let listener = service.listener(charging(&calls)).poison_threshold(1);
    let listener = listener.idempotent(store.clone()).create_queue();
    let mut seen = listener.events();
    submit(&service, 7).await;
    let listener = listener.start().expect("valid settings");
    events(&mut seen, 3, |event| {
        matches!(event, ListenerEventKind::ResultStoreFailed { .. })
    })
    .await;
    store.set_down(false);
    let completed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
    let completed = events(&mut seen, 1, completed).await;
    assert!(
        matches!(
            completed[0],
            ListenerEventKind::Completed { attempt: 1, .. }
        ),
        "{completed:?}"
    );
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_stops_does_not_wait_for_the_store() {
    let service = testing::service().await;
    let store = Flaky::new();
    store.set_down(true);
    let calls = Arc::new(AtomicU32::new(0));
    let listener = service.listener(charging(&calls));
    let listener = listener.idempotent(store).create_queue();
    let mut seen = listener.events();
    submit(&service, 7).await;
    let listener = listener.start().expect("valid settings");
    events(&mut seen, 1, |_| true).await;
    stop(listener).await;
    // Handed back at once.
    let charge = service.accept::<Charge>().await.expect("accepted");
    assert_eq!(charge.expect("visible").attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_releases_the_key_and_a_lost_claim_puts_the_message_back() {
    let service = testing::service().await;
    let store = Flaky::new();
    store.lose_next();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let listener = service
        .listener(move |_: Received<Charge>| {
            let call = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                match call {
                    0 => Err("busy"),
                    1 => panic!("a panic of the handler"),
                    _ => Ok(()),
                }
            }
        })
        .retry(queue_runtime::RetryPolicy::fixed(Duration::from_millis(1)))
        .idempotent(store)
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    submit(&service, 7).await;
    let settled =
        |event: &ListenerEventKind| !matches!(event, ListenerEventKind::HandlerPanicked { .. });
    let seen = events(&mut seen, 4, settled).await;
    assert!(
        matches!(seen[0], ListenerEventKind::Retried { .. }),
        "{seen:?}"
    );
    assert!(
        matches!(seen[1], ListenerEventKind::Retried { .. }),
        "{seen:?}"
    );
    assert!(
        matches!(seen[2], ListenerEventKind::Released { .. }),
        "{seen:?}"
    );
    assert!(
        matches!(seen[3], ListenerEventKind::Completed { attempt: 3, .. }),
        "{seen:?}"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_claim_is_lost_is_cancelled() {
    let service = testing::service().await;
    let store = Flaky::new();
    let calls = Arc::new(AtomicU32::new(0));
    let (started, counted) = (Arc::new(Notify::new()), Arc::clone(&calls));
    let starts = Arc::clone(&started);
    let listener = service
        .listener(move |_: Received<Charge>| {
            let call = counted.fetch_add(1, Ordering::Relaxed);
            starts.notify_one();
            async move {
                if call == 0 {
                    std::future::pending::<()>().await;
                }
            }
        })
        .idempotent(store.clone())
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    submit(&service, 7).await;
    started.notified().await;
    store.set_down(true);
    let released = |event: &ListenerEventKind| matches!(event, ListenerEventKind::Released { .. });
    events(&mut seen, 1, released).await;
    store.set_down(false);
    let completed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
    events(&mut seen, 1, completed).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_record_whose_message_could_not_be_deleted_is_read_by_the_redelivery() {
    let (service, faults) = testing::service_with_faults().await;
    let store = memory_results();
    submit(&service, 7).await;
    let accept = || service.accept::<Charge>().idempotent(store.clone());
    let charge = accept().await.expect("accepted").expect("submitted");
    // On an atomic backend, neither the follow-up nor the deletion is carried out.
    faults.fail_next(
        1,
        Operation::Apply,
        Fault::LeaseLost(Duration::from_secs(30)),
    );
    let done = Disposition::complete().then(&Receipt { order: 7 });
    let error = charge.settle(done).await.expect_err("the lease is lost");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{error}"
    );
    assert_eq!(faults.injected(Operation::Apply), 1);
    drop(error);
    tokio::time::sleep(Duration::from_secs(31)).await;
    // The redelivery is completed without anybody seeing it.
    assert!(accept().await.expect("accepted").is_none());
    assert_eq!(count(&service, "charges").await, 0);
    assert_eq!(count(&service, "receipts").await, 1);
}

#[tokio::test(start_paused = true)]
async fn accept_reports_a_store_that_is_down_and_hands_the_message_back() {
    let service = testing::service().await;
    let store = Flaky::new();
    submit(&service, 7).await;
    store.set_down(true);
    for _ in 0..10 {
        let accepted = service.accept::<Charge>().idempotent(store.clone()).await;
        let error = accepted.expect_err("down");
        assert!(
            matches!(error.kind, AcceptErrorKind::Idempotency(_)),
            "{error}"
        );
    }
    store.set_down(false);
    let charge = service.accept::<Charge>().idempotent(store.clone()).await;
    let charge = charge.expect("accepted").expect("visible");
    assert_eq!((charge.attempt(), charge.dequeue_count()), (1, 11));
    charge.complete().await.expect("completed");
    submit(&service, 7).await;
    let duplicate = service.accept::<Charge>().idempotent(store).await;
    assert!(duplicate.expect("accepted").is_none());
    assert_eq!(count(&service, "charges").await, 0);
}

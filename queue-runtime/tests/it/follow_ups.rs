//! Follow-ups that cannot be stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::backend::Backend as _;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::receive::{Poisoned, SettleErrorKind, Settled};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    Disposition, ErrorKind, FollowUp, ListenerEvent, ListenerEventKind, Message, QueueService,
    Received, RetryPolicy,
};
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;

use crate::support::storage::Storage;
use crate::support::{accepted, count, events, poison, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "reminders", time_to_live = "1m")]
struct Reminder {
    text: String,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "reports")]
struct Report {
    text: String,
}

/// Without an envelope, which would say that its payload is compressed or attached.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "letters", wire = "bare")]
struct Letter {
    text: String,
}

fn reminder() -> FollowUp {
    let text = String::new();
    FollowUp::new(&Reminder { text })
}

fn report(text: String) -> FollowUp {
    FollowUp::new(&Report { text })
}

/// Follow-ups that the backend can never store, with a part of the error.
fn impossible() -> [(FollowUp, &'static str); 4] {
    let minute = Duration::from_secs(60);
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    [
        (reminder().with_delay(minute), "time to live of 60s"),
        (reminder().with_delay(2 * minute), "time to live of 60s"),
        (
            report(String::new()).with_delay(week + minute),
            "exceeds the maximum",
        ),
        (
            FollowUp::new(&Letter {
                text: "x".repeat(64 * 1024),
            }),
            "is not compressed",
        ),
    ]
}

fn settled(event: &ListenerEventKind) -> bool {
    matches!(
        event,
        ListenerEventKind::Completed { .. }
            | ListenerEventKind::Retried { .. }
            | ListenerEventKind::Poisoned { .. }
            | ListenerEventKind::NotSettled { .. }
    )
}

/// Handles an order with these follow-ups until it is settled `count` times. Returns the number of runs and the
/// last event.
async fn handle(
    service: &QueueService,
    follow_ups: &[FollowUp],
    count: usize,
) -> (u32, ListenerEventKind) {
    service.submit(order(1)).await.expect("submitted");
    let runs = Arc::new(AtomicU32::new(0));
    let (counted, follow_ups) = (Arc::clone(&runs), follow_ups.to_vec());
    let listener = service
        .listener(move |_: Received<Order>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let all = follow_ups.iter().cloned();
            let complete = all.fold(Disposition::complete(), Disposition::then_follow_up);
            async move { complete }
        })
        .retry(RetryPolicy::fixed(Duration::from_secs(1)))
        .poison_threshold(3);
    let mut seen: Receiver<ListenerEvent> = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, count, settled).await;
    stop(listener).await;
    let last = found.last().expect("one event or more").clone();
    (runs.load(Ordering::Relaxed), last)
}

fn is_rejected(event: &ListenerEventKind) -> bool {
    let ListenerEventKind::Poisoned { reason, .. } = event else {
        return false;
    };
    *reason == PoisonReason::Rejected
}

#[tokio::test(start_paused = true)]
async fn one_that_can_never_be_stored_rejects_its_message_before_anything_is_done() {
    for (follow_up, expected) in impossible() {
        let (service, faults) = Storage::new().in_order().connect().await;
        let good = report("good".to_owned());
        let (runs, event) = handle(&service, &[good, follow_up], 1).await;
        assert!(is_rejected(&event), "{event:?}");
        assert_eq!(runs, 1);
        assert_eq!(count(&service, "orders").await, 0);
        let poisoned = poison(&service, "orders-poison").await;
        let error = poisoned[0].0.error.as_deref().expect("an error");
        assert!(error.contains(expected), "{error}");
        let queues = service.queues().await.expect("lists");
        assert_eq!(queues.len(), 2, "only the order's: {queues:?}");
        // The move, and once more after its queue was created.
        assert_eq!(faults.calls(Operation::Apply), 2);
    }
}

/// The backend takes no more in one step with the delete of the message.
#[tokio::test(start_paused = true)]
async fn too_many_reject_their_message_before_anything_is_done() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let (service, faults) = storage.connect().await;
        let most = faults.capabilities().max_apply - 1;
        let (_, event) = handle(&service, &vec![report(String::new()); most], 1).await;
        assert!(
            matches!(event, ListenerEventKind::Completed { .. }),
            "{event:?}"
        );
        assert_eq!(count(&service, "reports").await, most);
        let large = report("x".repeat(40 * 1024));
        let many = faults.capabilities().max_apply_bytes / (40 * 1024) + 2;
        for (follow_ups, expected) in [
            (
                vec![report(String::new()); most + 1],
                format!(
                    "{} follow-ups; one settlement takes {most} at most",
                    most + 1
                ),
            ),
            (vec![large; many], "bytes besides the largest".to_owned()),
        ] {
            let applied = faults.calls(Operation::Apply);
            let (runs, event) = handle(&service, &follow_ups, 1).await;
            let rejected = is_rejected(&event);
            assert!(rejected, "{event:?}");
            assert_eq!(runs, 1);
            let moves = faults.calls(Operation::Apply) - applied;
            assert!(
                moves <= 2,
                "more than the move, and once more for its queue: {moves}"
            );
            let poisoned = poison(&service, "orders-poison").await;
            let error = poisoned
                .last()
                .and_then(|(record, _)| record.error.as_deref());
            assert!(
                error.is_some_and(|error| error.contains(&expected)),
                "{error:?}"
            );
        }
        assert_eq!(count(&service, "reports").await, most);
        assert_eq!(count(&service, "orders").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_on_poison_that_can_never_be_stored_does_not_prevent_the_move() {
    for (follow_up, _) in impossible() {
        let service = testing::service().await;
        service.submit(order(1)).await.expect("submitted");
        let accept = service
            .accept::<Order>()
            .on_poison(move |_: Poisoned<Order>| Some(follow_up.clone()));
        let delivery = accept.await.expect("no error").expect("a message");
        let settled = delivery.reject("sold out").await.expect("moved");
        assert_eq!(settled, Settled::Poisoned(PoisonReason::Rejected));
        assert_eq!(count(&service, "orders").await, 0);
        let poisoned = poison(&service, "orders-poison").await;
        assert_eq!(poisoned[0].0.error.as_deref(), Some("sold out"));
        assert_eq!(service.queues().await.expect("lists").len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_the_storage_refuses_is_a_failed_attempt_with_that_error() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let (service, _) = storage
            .refusing("reports", ErrorKind::Denied)
            .connect()
            .await;
        let (runs, event) = handle(&service, &[report(String::new())], 3).await;
        assert!(
            matches!(
                event,
                ListenerEventKind::Poisoned {
                    reason: PoisonReason::Failed,
                    attempts: 3,
                    ..
                }
            ),
            "{event:?}"
        );
        assert_eq!(runs, 3);
        let poisoned = poison(&service, "orders-poison").await;
        let error = poisoned[0].0.error.as_deref().expect("an error");
        assert!(
            error.contains("queue `reports`: access was denied"),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_the_storage_finds_invalid_rejects_its_message() {
    for kind in [
        ErrorKind::TooLarge,
        ErrorKind::InvalidInput,
        ErrorKind::Unsupported,
    ] {
        let (service, _) = Storage::new().refusing("reports", kind).connect().await;
        let (runs, event) = handle(&service, &[report(String::new())], 1).await;
        assert!(is_rejected(&event), "{event:?}");
        assert_eq!(runs, 1);
        assert_eq!(count(&service, "orders").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn who_accepts_a_message_gets_the_storages_refusal() {
    let storage = Storage::new().refusing("reports", ErrorKind::Denied);
    let (service, _) = storage.connect().await;
    service.submit(order(1)).await.expect("submitted");
    let delivery = accepted::<Order>(&service).await;
    let complete = Disposition::complete().then_follow_up(report(String::new()));
    let error = delivery.settle(complete).await.expect_err("refused");
    assert!(
        matches!(&error.kind, SettleErrorKind::NotDone(error) if error.kind() == ErrorKind::Denied),
        "{error:?}"
    );
    assert_eq!(count(&service, "orders").await, 1);
}

#[tokio::test(start_paused = true)]
async fn one_of_on_poison_that_the_storage_refuses_does_not_prevent_the_move() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let (service, _) = storage
            .refusing("reports", ErrorKind::Denied)
            .connect()
            .await;
        service.submit(order(1)).await.expect("submitted");
        let accept = service
            .accept::<Order>()
            .on_poison(|_: Poisoned<Order>| Some(report(String::new())));
        let delivery = accept.await.expect("no error").expect("a message");
        let settled = delivery.reject("sold out").await.expect("moved");
        assert_eq!(settled, Settled::Poisoned(PoisonReason::Rejected));
        assert_eq!(count(&service, "orders").await, 0);
        assert_eq!(count(&service, "orders-poison").await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_poison_queue_that_refuses_leaves_the_message_and_submits_nothing() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let storage = storage.refusing("orders-poison", ErrorKind::Denied);
        let (service, _) = storage.connect().await;
        service.submit(order(1)).await.expect("submitted");
        let accept = service
            .accept::<Order>()
            .on_poison(|_: Poisoned<Order>| Some(report(String::new())));
        let delivery = accept.await.expect("no error").expect("a message");
        let error = delivery.reject("sold out").await.expect_err("refused");
        assert!(
            matches!(error.kind, SettleErrorKind::NotDone(_)),
            "{error:?}"
        );
        assert_eq!(count(&service, "orders").await, 1);
        assert_eq!(service.queues().await.expect("lists").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_cannot_be_reached_for_a_while_decides_nothing() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let storage = storage.refusing("reports", ErrorKind::Unreachable);
        let (service, _) = storage.connect().await;
        let (_, event) = handle(&service, &[report(String::new())], 1).await;
        assert!(
            matches!(event, ListenerEventKind::NotSettled { .. }),
            "{event:?}"
        );

        let accept = service
            .accept::<Order>()
            .wait(Duration::from_secs(60))
            .on_poison(|_: Poisoned<Order>| Some(report(String::new())));
        let delivery = accept.await.expect("no error").expect("a message");
        delivery.reject("no").await.expect_err("unreachable");
        assert_eq!(count(&service, "orders").await, 1);
    }
}

/// A submission after a failed settlement is another follow-up than those of the settlement.
#[tokio::test(start_paused = true)]
async fn a_submission_after_a_failed_settlement_has_an_id_of_its_own() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    let complete = || Disposition::complete().then_follow_up(report("with it".to_owned()));
    let delivery = service.accept::<Order>().await.expect("no error");
    faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
    let failed = delivery.expect("a message").settle(complete()).await;
    let delivery = failed.expect_err("refused").delivery;
    assert_eq!(faults.injected(Operation::Apply), 1);
    let text = "before it".to_owned();
    let submitted = delivery.submit(Report { text }).await;
    submitted.expect("submitted");
    delivery.settle(complete()).await.expect("settled");

    let mut ids = Vec::new();
    while let Some(report) = service.accept::<Report>().await.expect("no error") {
        ids.push(report.envelope().id.clone());
        report.complete().await.expect("completed");
    }
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_ne!(ids[0], ids[1]);
}

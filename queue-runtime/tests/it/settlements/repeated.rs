//! Settlements that are repeated: which of them are tries of one, and what the others prove.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::ManualClock;
use queue_runtime::error::Operation;
use queue_runtime::testing::{Fault, FaultInjector};
use queue_runtime::{Delivery, Disposition, FollowUp, ListenerEventKind, QueueService, Received};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{advance, sleep};

use crate::settlements::fixture::{
    Invoice, LEASE, MOMENT, Parcel, Stage, lease_lost, submit_parcel, unknown, with_invoice,
};
use crate::support::{GUARD, NEVER, count, guarded, poison};

/// A completion with an invoice whose first try met a fault of the network, and whose repeat was refused.
async fn unanswered_completion(fault: Fault) -> (Stage, Delivery<Parcel>) {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    stage.leave_unanswered(Operation::Apply, fault);
    let delivery = unknown(delivery.settle(with_invoice()).await);
    (stage, delivery)
}

/// A retry that was carried out and got no answer.
async fn unanswered_retry(delay: Duration) -> (Stage, Delivery<Parcel>) {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    stage.leave_unanswered(Operation::Update, Fault::AnswerLost);
    let delivery = unknown(delivery.retry_after(delay, "not now").await);
    (stage, delivery)
}

/// A completion that was carried out and got no answer.
async fn unanswered_delete() -> (Stage, Delivery<Parcel>) {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    stage.leave_unanswered(Operation::Delete, Fault::AnswerLost);
    let delivery = unknown(delivery.complete().await);
    (stage, delivery)
}

/// The caller settles again after the lease has ended.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_was_not_carried_out_is_not_completed_when_another_holds_the_message() {
    let (stage, delivery) = unanswered_completion(Fault::RequestLost).await;
    advance(LEASE).await;
    let theirs = stage.accept_elsewhere().await;
    let delivery = lease_lost(delivery.settle(with_invoice()).await);
    assert!(delivery.is_cancelled());
    assert_eq!(stage.stored().await, (1, 0));
    theirs.release().await.expect("the other is unharmed");
    let again = stage.accept().await;
    again.settle(with_invoice()).await.expect("settled");
    assert_eq!(stage.stored().await, (0, 1));
}

/// A settlement proves nothing about an unanswered one that asked for something else.
#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_not_reported_as_the_rejection_that_follows() {
    let (stage, delivery) = unanswered_completion(Fault::AnswerLost).await;
    drop(unknown(delivery.reject("no").await));
    assert!(poison(&stage.other, "parcel-poison").await.is_empty());
    assert_eq!(stage.stored().await, (0, 1));
}

/// The put-back was carried out, but the receipt proves it for neither.
#[tokio::test(start_paused = true)]
async fn an_unanswered_retry_is_not_reported_as_the_release_that_follows() {
    let (stage, delivery) = unanswered_retry(Duration::ZERO).await;
    drop(unknown(delivery.release().await));
    let again = stage.accept().await;
    assert_eq!(again.envelope().attempts.failures, 1);
    assert_eq!(again.envelope().attempts.forgiven, 0);
}

/// The first settlement was carried out, so the second was not.
#[tokio::test(start_paused = true)]
async fn an_unanswered_retry_is_not_reported_as_one_with_another_delay() {
    let (_stage, delivery) = unanswered_retry(Duration::from_secs(3600)).await;
    drop(unknown(delivery.retry_after(MOMENT, "not now").await));
}

/// The first settlement was carried out, so the follow-up of the second is not stored.
#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_not_reported_as_one_with_other_follow_ups() {
    let other = Disposition::complete().then(&Invoice { parcel: 2 });
    let later = FollowUp::new(&Invoice { parcel: 1 }).with_delay(LEASE);
    let elsewhere = FollowUp::new(&Invoice { parcel: 1 })
        .with_queue("invoices-bulk")
        .expect("a name");
    let [later, elsewhere] =
        [later, elsewhere].map(|one| Disposition::complete().then_follow_up(one));
    for second in [other, later, elsewhere] {
        let (_stage, delivery) = unanswered_completion(Fault::AnswerLost).await;
        drop(unknown(delivery.settle(second).await));
    }
}

/// The same disposition is the same settlement, although its follow-ups are encoded again at another time.
#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_done_if_it_is_asked_for_again() {
    let (stage, delivery) = unanswered_completion(Fault::AnswerLost).await;
    advance(MOMENT).await;
    delivery.settle(with_invoice()).await.expect("completed");
    assert_eq!(stage.stored().await, (0, 1));
}

#[tokio::test(start_paused = true)]
async fn several_unanswered_settlements_prove_nothing_about_the_last() {
    let (stage, delivery) = unanswered_delete().await;
    stage.leave_unanswered(Operation::Update, Fault::RequestLost);
    let delivery = unknown(delivery.release().await);
    drop(unknown(delivery.release().await));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_lease_does_not_prove_that_an_unanswered_delete_was_not_carried_out() {
    let (stage, delivery) = unanswered_delete().await;
    sleep(LEASE * 3 / 4).await;
    assert!(
        !delivery.is_cancelled(),
        "a renewal that fails proves nothing"
    );
    delivery.cancelled().await;
    drop(unknown(delivery.complete().await));
    assert_eq!(stage.stored().await.0, 0);
}

/// The runtime of the application ends while a settlement is on its way. It is repeated in the background, and
/// finds the message gone, as the first one left it.
#[test]
fn a_settlement_with_follow_ups_that_is_dropped_half_way_is_unanswered() {
    let runtime = || -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("up")
    };
    let (test, application) = (runtime(), runtime());
    let clock = Arc::new(ManualClock::new());
    let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let service = QueueService::with_backend(Arc::new(faults.clone())).clock(clock);
    let service = test.block_on(service.connect()).expect("connects");
    test.block_on(submit_parcel(&service));
    faults.fail_next(1, Operation::Apply, Fault::AnswerStalled);
    let mut events = {
        let _inside = application.enter();
        let listener = service.listener(async |_: Received<Parcel>| with_invoice());
        let listener = listener.handler_timeout(NEVER);
        let events = listener.events();
        // It stops with its runtime.
        std::mem::forget(listener.start().expect("starts"));
        events
    };
    let stalled = guarded(faults.until_injected(1, Operation::Apply));
    test.block_on(stalled).expect("it settles");
    application.shutdown_timeout(GUARD);
    faults.release();
    let settled = async {
        loop {
            match events.recv().await.expect("it is settled").kind {
                ListenerEventKind::Completed { .. } => return,
                event @ ListenerEventKind::NotSettled { .. } => panic!("{event:?}"),
                _ => {}
            }
        }
    };
    test.block_on(guarded(settled)).expect("it is settled");
    assert_eq!(faults.calls(Operation::Apply), 2);
    let left = async |queue| count(&service, queue).await;
    assert_eq!(test.block_on(left("parcel")), 0);
    assert_eq!(test.block_on(left("invoice")), 1);
}

/// The follow-up is stored, so only the delete at the end of the operation is in doubt.
#[tokio::test(start_paused = true)]
async fn an_unanswered_delete_after_follow_ups_in_order_is_unknown() {
    let stage = Stage::remote().await;
    let delivery = stage.accept().await;
    stage.leave_unanswered(Operation::Delete, Fault::AnswerLost);
    drop(unknown(delivery.settle(with_invoice()).await));
    assert_eq!(stage.faults.calls(Operation::Delete), 2);
    assert_eq!(stage.stored().await, (0, 1));
}

/// The first retry was carried out, and the message keeps its error.
#[tokio::test(start_paused = true)]
async fn an_unanswered_retry_is_reported_as_done_only_with_the_same_error() {
    for (second, is_same) in [("no stock", true), ("no truck", false)] {
        let stage = Stage::local().await;
        let delivery = stage.accept().await;
        stage.leave_unanswered(Operation::Update, Fault::AnswerLost);
        let retried = delivery.retry_after(Duration::ZERO, "no stock").await;
        let delivery = unknown(retried);
        let retried = delivery.retry_after(Duration::ZERO, second).await;
        if is_same {
            drop(retried.expect("it was carried out"))
        } else {
            drop(unknown(retried))
        }
        let record = stage.accept().await.envelope().attempts.clone();
        assert_eq!(record.last_error.as_deref(), Some("no stock"));
        assert_eq!(record.failures, 1);
    }
}

/// The first rejection was carried out, and the poison record has its error.
#[tokio::test(start_paused = true)]
async fn an_unanswered_rejection_is_reported_as_done_only_with_the_same_error() {
    for (second, is_same) in [("no stock", true), ("no truck", false)] {
        let stage = Stage::local().await;
        let delivery = stage.accept().await;
        stage.leave_unanswered(Operation::Apply, Fault::AnswerLost);
        let delivery = unknown(delivery.reject("no stock").await);
        let rejected = delivery.reject(second).await;
        if is_same {
            drop(rejected.expect("it was carried out"))
        } else {
            drop(unknown(rejected))
        }
        let poisoned = poison(&stage.other, "parcel-poison").await;
        assert_eq!(poisoned.len(), 1);
        assert_eq!(poisoned[0].0.error.as_deref(), Some("no stock"));
    }
}

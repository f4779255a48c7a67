//! A settlement whose answer is lost, or that is late: what is reported, and whether the message is lost.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::error::Operation;
use queue_runtime::receive::{SettleError, Settled};
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{Delivery, ErrorKind, QueueService};
use tokio::time::{sleep, sleep_until};

use crate::settlements::fixture::{
    LEASE, MOMENT, Parcel, Stage, lease_lost, not_done, submit_parcel, unknown, with_invoice,
};
use crate::support::count;
use crate::support::remote::Remote;

/// A renewal is carried out and its answer lost; a delete is not carried out. The repeated delete fails
/// because of the renewal.
async fn doubtful_delete(stage: &Stage) -> Result<(), SettleError<Parcel>> {
    let delivery = stage.accept().await;
    stage
        .faults
        .fail_next(1, Operation::Update, Fault::AnswerLost);
    stage
        .faults
        .fail_next(1, Operation::Delete, Fault::RequestLost);
    sleep(LEASE / 2 + MOMENT).await;
    assert_eq!(stage.faults.injected(Operation::Update), 1);
    let completed = delivery.complete().await;
    assert_eq!(stage.faults.calls(Operation::Delete), 2);
    completed
}

#[tokio::test(start_paused = true)]
async fn a_mismatch_by_our_own_renewal_proves_no_delete() {
    let stage = Stage::remote().await;
    drop(unknown(doubtful_delete(&stage).await));
    sleep(LEASE).await;
    drop(stage.accept_elsewhere().await);
}

#[tokio::test(start_paused = true)]
async fn a_mismatch_by_our_own_renewal_proves_that_nothing_was_deleted_if_it_is_distinct() {
    let stage = Stage::local().await;
    drop(not_done(doubtful_delete(&stage).await));
    sleep(LEASE).await;
    drop(stage.accept_elsewhere().await);
}

/// Calls `complete` a moment before the lease ends. The delete does not arrive; the other consumer receives the
/// message before it is repeated.
async fn late_delete(
    stage: &Stage,
    settle: impl AsyncFnOnce(Delivery<Parcel>),
) -> Result<(), SettleError<Parcel>> {
    let accepted = tokio::time::Instant::now();
    let delivery = stage.accept().await;
    // Not renewed.
    stage
        .faults
        .fail_next(1, Operation::Update, Fault::Refused(ErrorKind::Denied));
    stage
        .faults
        .fail_next(1, Operation::Delete, Fault::RequestLost);
    sleep_until(accepted + LEASE - MOMENT).await;
    let other = async {
        sleep_until(accepted + LEASE + MOMENT).await;
        settle(stage.accept_elsewhere().await).await;
    };
    let (completed, ()) = tokio::join!(delivery.complete(), other);
    assert_eq!(stage.faults.calls(Operation::Delete), 2);
    completed
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_another_made_after_the_lease_is_not_ours() {
    for stage in [Stage::local().await, Stage::remote().await] {
        let complete = async |theirs: Delivery<Parcel>| theirs.complete().await.expect("theirs");
        drop(unknown(late_delete(&stage, complete).await));
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_another_holds_was_not_deleted() {
    let keep = async |theirs: Delivery<Parcel>| drop(theirs);
    let stage = Stage::local().await;
    drop(lease_lost(late_delete(&stage, keep).await));
    assert_eq!(stage.stored().await.0, 1);
    let stage = Stage::remote().await;
    drop(unknown(late_delete(&stage, keep).await));
    assert_eq!(stage.stored().await.0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_arrives_twice_is_done() {
    let clock = TokioClock::new();
    let memory = MemoryBackend::new(Arc::new(clock.clone()));
    let remote = Arc::new(Remote::over(FaultInjector::new(Arc::new(memory))));
    let service = QueueService::with_backend(remote.clone()).clock(Arc::new(clock));
    let service = service
        .on_current_runtime()
        .connect()
        .await
        .expect("connects");
    submit_parcel(&service).await;
    let delivery = service.accept::<Parcel>().await.expect("no error");
    remote.delete_twice();
    let completed = delivery.expect("a message").complete().await;
    completed.expect("nobody else can have deleted it");
    assert_eq!(count(&service, "parcel").await, 0);
}

/// Before the end of its lease, nobody else can have deleted a message.
#[tokio::test(start_paused = true)]
async fn a_delete_of_a_message_that_no_longer_exists_is_done() {
    for stage in [Stage::local().await, Stage::remote().await] {
        let delivery = stage.accept().await;
        let queue = stage.other.any_queue("parcel").expect("a name");
        queue.clear().await.expect("cleared");
        let settled = delivery.complete().await;
        settled.expect("nothing was to be done with it");
    }
}

/// A renewal that succeeds proves that the settlement before it did nothing.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_succeeds_settles_the_doubt() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Delete, Fault::RequestLost);
    faults.fail_next(2, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let delivery = unknown(delivery.complete().await);
    sleep(LEASE / 2 + MOMENT).await;
    assert_eq!(faults.calls(Operation::Update), 1, "it was renewed");
    let delivery = not_done(delivery.complete().await);
    delivery.complete().await.expect("completed");
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_put_back_is_done_if_nobody_else_can_have_the_message() {
    for stage in [Stage::local().await, Stage::remote().await] {
        let delivery = stage.accept().await;
        stage
            .faults
            .fail_next(1, Operation::Update, Fault::AnswerLost);
        let retried = delivery.retry_after(Duration::ZERO, "not now").await;
        assert!(
            matches!(retried, Ok(Settled::Retried { .. })),
            "{retried:?}"
        );
        let again = stage.accept().await;
        assert_eq!((again.attempt(), again.dequeue_count()), (2, 2));
    }
}

/// Each settlement waits between its tries, whatever the answers are.
#[tokio::test(start_paused = true)]
async fn a_settlement_has_a_pause_between_its_tries() {
    let stage = Stage::remote().await;
    let faults = &stage.faults;
    let at_once = Fault::Throttled(Some(Duration::ZERO));
    faults.fail_next(10_000, Operation::Delete, at_once);
    let delivery = not_done(stage.accept().await.complete().await);
    let deletes = faults.injected(Operation::Delete);
    assert!((5..=25).contains(&deletes), "{deletes}");
    drop(delivery);
    faults.heal();

    sleep(2 * LEASE).await;
    // The queue exists, and a put on it fails as if it did not.
    let missing = Fault::Refused(ErrorKind::QueueNotFound);
    faults.fail_next(10_000, Operation::Put, missing);
    let settled = stage.accept().await.settle(with_invoice()).await;
    drop(not_done(settled));
    let puts = faults.injected(Operation::Put);
    assert!((5..=25).contains(&puts), "{puts}");
}

#[tokio::test(start_paused = true)]
async fn a_message_is_gone_with_its_queue() {
    for answered in [true, false] {
        let stage = Stage::local().await;
        let mut delivery = stage.accept().await;
        if !answered {
            stage.leave_unanswered(Operation::Delete, Fault::RequestLost);
            delivery = unknown(delivery.complete().await);
        }
        let queue = stage.other.any_queue("parcel").expect("a name");
        queue.delete().await.expect("deleted");
        if answered {
            drop(lease_lost(delivery.complete().await))
        } else {
            drop(unknown(delivery.complete().await))
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_is_never_answered_ends_with_the_lease() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    stage.faults.fail_every(Operation::Delete, Fault::Stalled);
    let started = tokio::time::Instant::now();
    drop(unknown(delivery.complete().await));
    assert_eq!(started.elapsed(), LEASE);
}

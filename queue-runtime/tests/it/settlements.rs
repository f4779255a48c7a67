//! Settlements whose answers are lost: what is reported, and whether the message or its follow-ups are lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use queue_core::backend::Backend;
use queue_runtime::backend::MemoryBackend;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{
    Delivery, Disposition, ErrorKind, FollowUp, ListenerEvent, Message, Operation, QueueService,
    Received, SettleError, SettleProblem, Settled,
};
use serde::{Deserialize, Serialize};
use tokio::time::{advance, sleep, sleep_until};

use crate::remote::Remote;
use crate::support::{NEVER, count, events, poison, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Parcel {
    weight: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Invoice {
    parcel: u32,
}

const LEASE: Duration = Duration::from_secs(2);
const MOMENT: Duration = Duration::from_millis(1);

/// A consumer behind faults, and another one. One parcel is queued.
struct Stage {
    service: QueueService,
    other: QueueService,
    faults: FaultInjector,
}

impl Stage {
    /// On a backend that is atomic and tells a stale receipt from a missing message.
    async fn local() -> Self {
        Self::with(|faults| Arc::new(faults)).await
    }

    /// On a backend that is and does neither.
    async fn remote() -> Self {
        Self::with(|faults| Arc::new(Remote::over(faults))).await
    }

    async fn with(backend: impl FnOnce(FaultInjector) -> Arc<dyn Backend>) -> Self {
        let clock = TokioClock::new();
        let memory = Arc::new(MemoryBackend::new(Arc::new(clock.clone())));
        let faults = FaultInjector::new(memory.clone());
        let connect = async |backend: Arc<dyn Backend>| {
            let service = QueueService::over(backend).clock(Arc::new(clock.clone()));
            let service = service.on_current_runtime().connect().await;
            service.expect("connects")
        };
        let service = connect(backend(faults.clone())).await;
        let other = connect(memory).await;
        let submitted = other.submit(Parcel { weight: 1 }).await;
        submitted.expect("submitted");
        // Creates the queue of the follow-ups.
        let invoices = other.queue_at("invoice").expect("a name");
        invoices.create().await.expect("created");
        Self {
            service,
            other,
            faults,
        }
    }

    async fn accept(&self) -> Delivery<Parcel> {
        let accept = self.service.accept().visibility_timeout(LEASE);
        accept.await.expect("no error").expect("a message")
    }

    async fn parcels(&self) -> u64 {
        count(&self.other, "parcel").await
    }

    async fn invoices(&self) -> u64 {
        count(&self.other, "invoice").await
    }
}

fn with_invoice() -> Disposition {
    Disposition::complete().then(&Invoice { parcel: 1 })
}

macro_rules! assert_problem {
    ($settled:expr, $problem:ident) => {
        match $settled {
            Ok(settled) => panic!("reported as {settled:?}"),
            Err(error) => {
                let problem = &error.problem;
                assert!(matches!(problem, SettleProblem::$problem(_)), "{problem:?}");
                error.delivery
            }
        }
    };
}

/// The lease ends after an unanswered settlement that did nothing, and another consumer has the message for a
/// while. The handler runs again, because nothing else stores the follow-up.
#[tokio::test(start_paused = true)]
async fn follow_ups_are_not_presumed_stored() {
    let stage = Stage::local().await;
    let held = Duration::from_secs(10);
    stage
        .faults
        .fail_next(1, Operation::Apply, Fault::RequestLost);
    stage
        .faults
        .fail_next(1, Operation::Apply, Fault::LeaseLost(held));
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let listener = stage.service.listener(move |_: Received<Parcel>| {
        counted.fetch_add(1, SeqCst);
        async { with_invoice() }
    });
    let listener = listener.visibility_timeout(LEASE).handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 2, |_| true).await;
    let [
        ListenerEvent::NotSettled { problem, .. },
        ListenerEvent::Completed { .. },
    ] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert!(
        matches!(problem, SettleProblem::LeaseLost(_)),
        "{problem:?}"
    );
    assert_eq!(stage.faults.injected(Operation::Apply), 2);
    assert_eq!(runs.load(SeqCst), 2);
    assert_eq!((stage.parcels().await, stage.invoices().await), (0, 1));
    stop(listener).await;
}

/// The same with a delivery, whose caller settles again after the lease has ended.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_was_not_carried_out_is_not_completed_when_another_holds_the_message() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Apply, Fault::RequestLost);
    faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
    let delivery = assert_problem!(delivery.settle(with_invoice()).await, Unknown);
    advance(LEASE).await;
    let theirs = stage.other.accept::<Parcel>().await;
    let theirs = theirs.expect("no error").expect("the lease has ended");
    let delivery = assert_problem!(delivery.settle(with_invoice()).await, LeaseLost);
    assert!(delivery.is_cancelled());
    assert_eq!((stage.parcels().await, stage.invoices().await), (1, 0));
    theirs.release().await.expect("the other is unharmed");
    let again = stage.accept().await;
    again.settle(with_invoice()).await.expect("settled");
    assert_eq!((stage.parcels().await, stage.invoices().await), (0, 1));
}

/// An atomic settlement was carried out as a whole or not at all.
#[tokio::test(start_paused = true)]
async fn follow_ups_of_a_settlement_whose_answer_is_lost_are_stored_once() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    stage
        .faults
        .fail_next(1, Operation::Apply, Fault::AnswerLost);
    let settled = delivery.settle(with_invoice()).await.expect("settled");
    assert_eq!(settled, Settled::Completed);
    assert_eq!(stage.faults.calls(Operation::Apply), 2);
    assert_eq!((stage.parcels().await, stage.invoices().await), (0, 1));
}

/// On a backend that is not atomic, an unanswered put is repeated, and the delete follows when all are stored.
#[tokio::test(start_paused = true)]
async fn follow_ups_are_stored_before_the_message_is_deleted() {
    let stage = Stage::remote().await;
    let delivery = stage.accept().await;
    stage
        .faults
        .fail_next(1, Operation::Put, Fault::RequestLost);
    stage
        .faults
        .fail_next(1, Operation::Delete, Fault::AnswerLost);
    let settled = delivery.settle(with_invoice()).await.expect("settled");
    assert_eq!(settled, Settled::Completed);
    assert_eq!(
        stage.faults.calls(Operation::Put),
        2,
        "none after it is stored"
    );
    assert_eq!(stage.faults.calls(Operation::Delete), 2);
    assert_eq!((stage.parcels().await, stage.invoices().await), (0, 1));
}

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
    drop(assert_problem!(doubtful_delete(&stage).await, Unknown));
    sleep(LEASE).await;
    let again = stage.other.accept::<Parcel>().await.expect("no error");
    assert!(again.is_some(), "it is still stored");
}

#[tokio::test(start_paused = true)]
async fn a_mismatch_by_our_own_renewal_proves_that_nothing_was_deleted_if_it_is_distinct() {
    let stage = Stage::local().await;
    drop(assert_problem!(doubtful_delete(&stage).await, NotDone));
    sleep(LEASE).await;
    let again = stage.other.accept::<Parcel>().await.expect("no error");
    assert!(again.is_some(), "it is still stored");
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
        let theirs = stage.other.accept::<Parcel>().await;
        settle(theirs.expect("no error").expect("the lease has ended")).await;
    };
    let (completed, ()) = tokio::join!(delivery.complete(), other);
    assert_eq!(stage.faults.calls(Operation::Delete), 2);
    completed
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_another_made_after_the_lease_is_not_ours() {
    for stage in [Stage::local().await, Stage::remote().await] {
        let complete = async |theirs: Delivery<Parcel>| theirs.complete().await.expect("theirs");
        drop(assert_problem!(
            late_delete(&stage, complete).await,
            Unknown
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_another_holds_was_not_deleted() {
    let keep = async |theirs: Delivery<Parcel>| drop(theirs);
    let stage = Stage::local().await;
    drop(assert_problem!(late_delete(&stage, keep).await, LeaseLost));
    assert_eq!(stage.parcels().await, 1);
    let stage = Stage::remote().await;
    drop(assert_problem!(late_delete(&stage, keep).await, Unknown));
    assert_eq!(stage.parcels().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_arrives_twice_is_done() {
    let clock = TokioClock::new();
    let memory = MemoryBackend::new(Arc::new(clock.clone()));
    let remote = Arc::new(Remote::over(FaultInjector::new(Arc::new(memory))));
    let service = QueueService::over(remote.clone()).clock(Arc::new(clock));
    let service = service
        .on_current_runtime()
        .connect()
        .await
        .expect("connects");
    service
        .submit(Parcel { weight: 1 })
        .await
        .expect("submitted");
    let delivery = service.accept::<Parcel>().await.expect("no error");
    remote.delete_twice();
    let completed = delivery.expect("a message").complete().await;
    completed.expect("nobody else can have deleted it");
    assert_eq!(count(&service, "parcel").await, 0);
}

/// A settlement proves nothing about an unanswered one that asked for something else.
#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_not_reported_as_the_rejection_that_follows() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
    let delivery = assert_problem!(delivery.settle(with_invoice()).await, Unknown);
    drop(assert_problem!(delivery.reject("no").await, Unknown));
    assert!(poison(&stage.other, "parcel-poison").await.is_empty());
    assert_eq!((stage.parcels().await, stage.invoices().await), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_lease_does_not_prove_that_an_unanswered_delete_was_not_carried_out() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Delete, Fault::AnswerLost);
    faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let delivery = assert_problem!(delivery.complete().await, Unknown);
    sleep(LEASE * 3 / 4).await;
    assert!(
        !delivery.is_cancelled(),
        "a renewal that fails proves nothing"
    );
    delivery.cancelled().await;
    drop(assert_problem!(delivery.complete().await, Unknown));
    assert_eq!(stage.parcels().await, 0);
}

/// A renewal that succeeds proves that the settlement before it did nothing.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_succeeds_settles_the_doubt() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Delete, Fault::RequestLost);
    faults.fail_next(2, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let delivery = assert_problem!(delivery.complete().await, Unknown);
    sleep(LEASE / 2 + MOMENT).await;
    assert_eq!(faults.calls(Operation::Update), 1, "it was renewed");
    let delivery = assert_problem!(delivery.complete().await, NotDone);
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

/// The put-back was carried out, but the receipt proves it for neither.
#[tokio::test(start_paused = true)]
async fn an_unanswered_retry_is_not_reported_as_the_release_that_follows() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Update, Fault::AnswerLost);
    faults.fail_next(1, Operation::Update, Fault::Refused(ErrorKind::Denied));
    let delivery = assert_problem!(
        delivery.retry_after(Duration::ZERO, "not now").await,
        Unknown
    );
    drop(assert_problem!(delivery.release().await, Unknown));
    let again = stage.accept().await;
    assert_eq!(again.envelope().attempts.failures, 1);
    assert_eq!(again.envelope().attempts.forgiven, 0);
}

/// The first settlement was carried out, so the second was not.
#[tokio::test(start_paused = true)]
async fn an_unanswered_retry_is_not_reported_as_one_with_another_delay() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Update, Fault::AnswerLost);
    faults.fail_next(1, Operation::Update, Fault::Refused(ErrorKind::Denied));
    let hour = Duration::from_secs(3600);
    let delivery = assert_problem!(delivery.retry_after(hour, "not now").await, Unknown);
    drop(assert_problem!(
        delivery.retry_after(MOMENT, "not now").await,
        Unknown
    ));
}

/// The first settlement was carried out, so the follow-up of the second is not stored.
#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_not_reported_as_one_with_other_follow_ups() {
    let other = Disposition::complete().then(&Invoice { parcel: 2 });
    let later = FollowUp::new(&Invoice { parcel: 1 }).with_delay(LEASE);
    for second in [other, Disposition::complete().then_follow_up(later)] {
        let stage = Stage::local().await;
        let delivery = stage.accept().await;
        let faults = &stage.faults;
        faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
        faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
        let delivery = assert_problem!(delivery.settle(with_invoice()).await, Unknown);
        drop(assert_problem!(delivery.settle(second).await, Unknown));
    }
}

/// The same disposition is the same settlement, although its follow-ups are encoded again at another time.
#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_done_if_it_is_asked_for_again() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
    let delivery = assert_problem!(delivery.settle(with_invoice()).await, Unknown);
    advance(MOMENT).await;
    delivery.settle(with_invoice()).await.expect("completed");
    assert_eq!((stage.parcels().await, stage.invoices().await), (0, 1));
}

/// Each settlement waits between its tries, whatever the answers are.
#[tokio::test(start_paused = true)]
async fn a_settlement_has_a_pause_between_its_tries() {
    let stage = Stage::remote().await;
    let faults = &stage.faults;
    let at_once = Fault::Throttled(Some(Duration::ZERO));
    faults.fail_next(10_000, Operation::Delete, at_once);
    let delivery = assert_problem!(stage.accept().await.complete().await, NotDone);
    let deletes = faults.injected(Operation::Delete);
    assert!((5..=25).contains(&deletes), "{deletes}");
    drop(delivery);
    faults.heal();

    sleep(2 * LEASE).await;
    // The queue exists, and a put on it fails as if it did not.
    let missing = Fault::Refused(ErrorKind::QueueNotFound);
    faults.fail_next(10_000, Operation::Put, missing);
    let settled = stage.accept().await.settle(with_invoice()).await;
    drop(assert_problem!(settled, NotDone));
    let puts = faults.injected(Operation::Put);
    assert!((5..=25).contains(&puts), "{puts}");
}

/// A handler's work is remembered if its follow-ups are stored, and only then.
#[tokio::test(start_paused = true)]
async fn a_completion_is_remembered_when_its_follow_ups_are_stored() {
    for (stored, runs) in [(true, 1), (false, 2)] {
        let stage = Stage::remote().await;
        let faults = &stage.faults;
        let operation = if stored {
            Operation::Delete
        } else {
            Operation::Put
        };
        faults.fail_next(1, operation, Fault::Refused(ErrorKind::Denied));
        let ran = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&ran);
        let listener = stage.service.listener(move |_: Received<Parcel>| {
            counted.fetch_add(1, SeqCst);
            async { with_invoice() }
        });
        let listener = listener.visibility_timeout(LEASE).handler_timeout(NEVER);
        let mut seen = listener.events();
        let listener = listener.start().expect("starts");
        let found = events(&mut seen, 2, |_| true).await;
        match (&found[..], stored) {
            ([ListenerEvent::NotSettled { problem, .. }, _], true) => {
                assert!(matches!(problem, SettleProblem::NotDone(_)), "{problem:?}");
            }
            ([ListenerEvent::Retried { .. }, _], false) => {}
            _ => panic!("stored: {stored}, {found:?}"),
        }
        let last = &found[1];
        assert!(matches!(last, ListenerEvent::Completed { .. }), "{last:?}");
        assert_eq!(ran.load(SeqCst), runs, "stored: {stored}");
        assert_eq!((stage.parcels().await, stage.invoices().await), (0, 1));
        stop(listener).await;
    }
}

/// A cleared queue is no success: the follow-ups are not stored.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_gone_unasked_does_not_complete_with_follow_ups() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let queue = stage.other.queue_at("parcel").expect("a name");
    queue.clear().await.expect("cleared");
    drop(assert_problem!(
        delivery.settle(with_invoice()).await,
        LeaseLost
    ));
    assert_eq!(stage.invoices().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_gone_with_its_queue() {
    for answered in [true, false] {
        let stage = Stage::local().await;
        let mut delivery = stage.accept().await;
        if !answered {
            let faults = &stage.faults;
            faults.fail_next(1, Operation::Delete, Fault::RequestLost);
            faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
            delivery = assert_problem!(delivery.complete().await, Unknown);
        }
        let queue = stage.other.queue_at("parcel").expect("a name");
        queue.delete().await.expect("deleted");
        match answered {
            true => drop(assert_problem!(delivery.complete().await, LeaseLost)),
            false => drop(assert_problem!(delivery.complete().await, Unknown)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_is_never_answered_ends_with_the_lease() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    stage.faults.fail_every(Operation::Delete, Fault::Stalled);
    let started = tokio::time::Instant::now();
    drop(assert_problem!(delivery.complete().await, Unknown));
    assert_eq!(started.elapsed(), LEASE);
}

/// Nothing was asked of the message itself.
#[tokio::test(start_paused = true)]
async fn a_follow_up_whose_put_is_unanswered_leaves_no_doubt_about_the_message() {
    let stage = Stage::remote().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    faults.fail_next(1, Operation::Put, Fault::RequestLost);
    faults.fail_next(1, Operation::Put, Fault::Refused(ErrorKind::Denied));
    drop(assert_problem!(
        delivery.settle(with_invoice()).await,
        NotDone
    ));
}

#[tokio::test(start_paused = true)]
async fn several_unanswered_settlements_prove_nothing_about_the_last() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let faults = &stage.faults;
    let refused = || Fault::Refused(ErrorKind::Denied);
    faults.fail_next(1, Operation::Delete, Fault::AnswerLost);
    faults.fail_next(1, Operation::Delete, refused());
    let delivery = assert_problem!(delivery.complete().await, Unknown);
    faults.fail_next(1, Operation::Update, Fault::RequestLost);
    faults.fail_next(1, Operation::Update, refused());
    let delivery = assert_problem!(delivery.release().await, Unknown);
    drop(assert_problem!(delivery.release().await, Unknown));
}

/// The follow-ups of a settlement are numbered after those submitted before it.
#[tokio::test(start_paused = true)]
async fn follow_ups_of_a_settlement_have_ids_of_their_own() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let submitted = delivery.submit(Invoice { parcel: 1 }).await;
    let first = submitted.expect("submitted").id;
    let settled = delivery.settle(with_invoice()).await;
    settled.expect("settled");
    let mut ids = Vec::new();
    while let Some(invoice) = stage.other.accept::<Invoice>().await.expect("no error") {
        ids.push(invoice.envelope().id.clone());
        invoice.complete().await.expect("completed");
    }
    assert_eq!((ids.len(), &ids[0]), (2, &first));
    assert_ne!(ids[1], first);
}

/// More follow-ups than in the first try do not get ids that others have.
#[tokio::test(start_paused = true)]
async fn more_follow_ups_of_a_settlement_have_ids_of_their_own() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let refused = Fault::Refused(ErrorKind::Denied);
    stage.faults.fail_next(1, Operation::Apply, refused);
    let delivery = assert_problem!(delivery.settle(with_invoice()).await, NotDone);
    let submitted = delivery.submit(Invoice { parcel: 2 }).await;
    submitted.expect("submitted");
    let more = with_invoice().then(&Invoice { parcel: 3 });
    delivery.settle(more).await.expect("settled");
    let mut ids = HashSet::new();
    while let Some(invoice) = stage.other.accept::<Invoice>().await.expect("no error") {
        ids.insert(invoice.envelope().id.clone());
        invoice.complete().await.expect("completed");
    }
    assert_eq!(ids.len(), 3);
}

/// A storage that fails is no fault of the message.
#[tokio::test(start_paused = true)]
async fn a_damaged_storage_does_not_count_as_refused_follow_ups() {
    for kind in [ErrorKind::Corrupt, ErrorKind::Storage] {
        let stage = Stage::local().await;
        let refused = Fault::Refused(kind);
        stage.faults.fail_every(Operation::Apply, refused);
        let listener = stage
            .service
            .listener(async |_: Received<Parcel>| with_invoice());
        let listener = listener.visibility_timeout(LEASE).handler_timeout(NEVER);
        let mut seen = listener.events();
        let listener = listener.start().expect("starts");
        let found = events(&mut seen, 1, |_| true).await;
        let left = matches!(
            found[0],
            ListenerEvent::NotSettled {
                problem: SettleProblem::NotDone(_),
                ..
            }
        );
        assert!(left, "{kind:?}: {found:?}");
        stop(listener).await;
    }
}

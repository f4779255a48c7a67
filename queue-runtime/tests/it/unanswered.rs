//! Settlements that are repeated: which of them are tries of one, and what the others prove.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Backend;
use queue_runtime::backend::MemoryBackend;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{
    Clock, Delivery, Disposition, ErrorKind, ListenerEvent, ManualClock, Message, Operation,
    QueueService, Received, SettleError, SettleProblem, Settled,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::remote::Remote;
use crate::support::{GUARD, NEVER, count, guarded, poison};

#[derive(Debug, Serialize, Deserialize, Message)]
struct Parcel {
    weight: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Invoice {
    parcel: u32,
}

fn with_invoice() -> Disposition {
    Disposition::complete().then(&Invoice { parcel: 1 })
}

/// Connects to the backend, and submits a parcel to it.
async fn with_parcel(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> QueueService {
    let service = QueueService::over(backend).clock(clock);
    let service = service.connect().await.expect("connects");
    let submitted = service.submit(Parcel { weight: 1 }).await;
    submitted.expect("submitted");
    for queue in ["invoice", "parcel-poison"] {
        let queue = service.queue_at(queue).expect("a name");
        queue.create().await.expect("created");
    }
    service
}

/// A service in paused time, one parcel that it has accepted, and the faults below it.
async fn accepted(
    backend: impl FnOnce(FaultInjector) -> Arc<dyn Backend>,
) -> (QueueService, Delivery<Parcel>, FaultInjector) {
    let clock = Arc::new(TokioClock::new());
    let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let service = with_parcel(backend(faults.clone()), clock).await;
    let delivery = service.accept().await.expect("no error");
    (service, delivery.expect("a parcel"), faults)
}

/// Has the next call carried out and not answered, and the repeat refused, so that the settlement ends.
fn leave_unanswered(faults: &FaultInjector, operation: Operation) {
    faults.fail_next(1, operation, Fault::AnswerLost);
    faults.fail_next(1, operation, Fault::Refused(ErrorKind::Denied));
}

fn unknown(settled: Result<Settled, SettleError<Parcel>>) -> Delivery<Parcel> {
    let error = settled.expect_err("it was not answered");
    let problem = &error.problem;
    assert!(matches!(problem, SettleProblem::Unknown(_)), "{problem:?}");
    error.delivery
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
    let service = test.block_on(with_parcel(Arc::new(faults.clone()), clock));
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
            match events.recv().await.expect("it is settled") {
                ListenerEvent::Completed { .. } => return,
                event @ ListenerEvent::NotSettled { .. } => panic!("{event:?}"),
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
    let (service, delivery, faults) = accepted(|faults| Arc::new(Remote::over(faults))).await;
    leave_unanswered(&faults, Operation::Delete);
    drop(unknown(delivery.settle(with_invoice()).await));
    assert_eq!(faults.calls(Operation::Delete), 2);
    assert_eq!(count(&service, "parcel").await, 0);
    assert_eq!(count(&service, "invoice").await, 1);
}

/// The first retry was carried out, and the message keeps its error.
#[tokio::test(start_paused = true)]
async fn an_unanswered_retry_is_reported_as_done_only_with_the_same_error() {
    for (second, is_same) in [("no stock", true), ("no truck", false)] {
        let (service, delivery, faults) = accepted(|faults| Arc::new(faults)).await;
        leave_unanswered(&faults, Operation::Update);
        let retried = delivery.retry_after(Duration::ZERO, "no stock").await;
        let delivery = unknown(retried);
        let retried = delivery.retry_after(Duration::ZERO, second).await;
        match is_same {
            true => drop(retried.expect("it was carried out")),
            false => drop(unknown(retried)),
        }
        let again = service.accept::<Parcel>().await.expect("no error");
        let record = again.expect("a parcel").envelope().attempts.clone();
        assert_eq!(record.last_error.as_deref(), Some("no stock"));
        assert_eq!(record.failures, 1);
    }
}

/// The first rejection was carried out, and the poison record has its error.
#[tokio::test(start_paused = true)]
async fn an_unanswered_rejection_is_reported_as_done_only_with_the_same_error() {
    for (second, is_same) in [("no stock", true), ("no truck", false)] {
        let (service, delivery, faults) = accepted(|faults| Arc::new(faults)).await;
        leave_unanswered(&faults, Operation::Apply);
        let delivery = unknown(delivery.reject("no stock").await);
        let rejected = delivery.reject(second).await;
        match is_same {
            true => drop(rejected.expect("it was carried out")),
            false => drop(unknown(rejected)),
        }
        let poisoned = poison(&service, "parcel-poison").await;
        assert_eq!(poisoned.len(), 1);
        assert_eq!(poisoned[0].0.error.as_deref(), Some("no stock"));
    }
}

//! The record that the work of an idempotent message is done is written in one step with the end of the message, if both are
//! in one storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use queue_runtime::envelope::Envelope;
use queue_runtime::error::Operation;
use queue_runtime::idempotency::{RecordState, ResultStore};
use queue_runtime::receive::{Ended, Rider, SettleErrorKind};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{Delivery, FollowUp, Message, QueueService, Received, RetryPolicy};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};

use crate::support::flaky_results::memory_results;
use crate::support::{count, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "charges")]
struct Charge {
    #[message(key)]
    order: u32,
}

/// How many keys are in flight, and how many are done.
async fn recorded(results: &impl ResultStore) -> (usize, usize) {
    let page = results.list(None, None, 100).await.expect("listed");
    let is_done = |state: &RecordState| matches!(state, RecordState::Done { .. });
    let done = page.records.iter().filter(|record| is_done(&record.state));
    let done = done.count();
    (page.records.len() - done, done)
}

async fn accept(service: &QueueService) -> Option<Delivery<Charge>> {
    let results = service.results().expect("memory has results");
    let accept = service.accept::<Charge>().idempotent(results);
    accept.await.expect("no error")
}

#[tokio::test(start_paused = true)]
async fn nothing_is_recorded_before_the_message_is_deleted() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(Charge { order: 7 }).await.expect("stored");
    let results = service.results().expect("memory has results");
    let charge = accept(&service).await.expect("a message");
    faults.fail_next(1, Operation::Apply, Fault::AnswerStalled);
    let completing = tokio::spawn(charge.complete());
    while faults.injected(Operation::Apply) == 0 {
        assert_eq!(recorded(&results).await, (1, 0), "it is asked for only now");
        tokio::task::yield_now().await;
    }
    faults.release();
    let completed = completing.await.expect("no panic");
    completed.expect("settled");
    assert_eq!(recorded(&results).await, (0, 1));
    assert_eq!(count(&service, "charges").await, 0);
}

/// The network loses the answer, or the request.
#[tokio::test(start_paused = true)]
async fn a_settlement_without_an_answer_is_recorded_once() {
    for fault in [Fault::AnswerLost, Fault::RequestLost] {
        let (service, faults) = testing::service_with_faults().await;
        service.submit(Charge { order: 7 }).await.expect("stored");
        let charge = accept(&service).await.expect("a message");
        faults.fail_next(1, Operation::Apply, fault.clone());
        charge.complete().await.expect("settled");
        assert_eq!(faults.injected(Operation::Apply), 1, "{fault:?}");
        let results = service.results().expect("memory has results");
        assert_eq!(recorded(&results).await, (0, 1), "{fault:?}");
        assert_eq!(count(&service, "charges").await, 0, "{fault:?}");
    }
}

/// Whoever receives the message then learns that its work is done.
#[tokio::test(start_paused = true)]
async fn work_is_recorded_whose_message_cannot_be_settled() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(Charge { order: 7 }).await.expect("stored");
    let charge = accept(&service).await.expect("a message");
    faults.fail_next(1, Operation::Apply, Fault::LeaseLost(30 * SECOND));
    let unsettled = charge.complete().await.expect_err("the lease is lost");
    assert!(
        matches!(unsettled.kind, SettleErrorKind::LeaseLost(_)),
        "{unsettled}"
    );
    let results = service.results().expect("memory has results");
    assert_eq!(recorded(&results).await, (0, 1));
    tokio::time::sleep(60 * SECOND).await;
    assert!(
        accept(&service).await.is_none(),
        "it is completed without its handler"
    );
    assert_eq!(count(&service, "charges").await, 0);
}

/// Whoever stands around the storage's own store sees each call, too.
#[tokio::test(start_paused = true)]
async fn another_store_is_asked_before_the_message_is_deleted() {
    let (service, faults) = testing::service_with_faults().await;
    let charges = (0..5).map(|order| Charge { order });
    service.submit_all(charges).await.expect("stored");
    let before = faults.calls(Operation::Apply);
    let results = memory_results();
    let handler = async |_: Received<Charge>| {};
    let listener = service.listener(handler).idempotent(results.clone());
    let listener = listener.start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(listener.info().completed, 5);
    stop(listener).await;
    assert_eq!(recorded(&results).await, (0, 5));
    assert_eq!(faults.calls(Operation::Apply), before);
    assert_eq!(faults.calls(Operation::Delete), 5, "each is deleted alone");
}

/// A rider that fails is asked again with the next delivery, and the handler is not.
#[tokio::test(start_paused = true)]
async fn work_is_recorded_whose_required_rider_fails() {
    let service = testing::service().await;
    service.submit(Charge { order: 7 }).await.expect("stored");
    let (calls, results) = (Arc::new(AtomicUsize::new(0)), service.results());
    let seen = Arc::clone(&calls);
    let handler = move |_: Received<Charge>| {
        seen.fetch_add(1, Ordering::Relaxed);
        async {}
    };
    let ink = Arc::new(AtomicUsize::new(0));
    let listener = service
        .listener(handler)
        .idempotent(results.expect("memory has results"))
        .retry(RetryPolicy::fixed(SECOND))
        .rider(DryPen(Arc::clone(&ink)))
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    let info = listener.info();
    stop(listener).await;
    assert_eq!((info.retried, info.duplicates), (2, 1), "{info:?}");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(ink.load(Ordering::Relaxed), 3);
}

/// Fails twice.
struct DryPen(Arc<AtomicUsize>);

impl Rider for DryPen {
    fn ride(&self, _: &Envelope, _: Ended<'_>) -> Option<FollowUp> {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) > 1, "no ink");
        None
    }

    fn is_required(&self) -> bool {
        true
    }
}

/// The claim is not released for a settlement of which nobody has heard.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_is_given_up_is_found_recorded() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(Charge { order: 7 }).await.expect("stored");
    let results = service.results().expect("memory has results");
    let charge = accept(&service).await.expect("a message");
    faults.fail_next(1, Operation::Apply, Fault::AnswerStalled);
    let given_up = tokio::time::timeout(SECOND, charge.complete()).await;
    given_up.expect_err("it gets no answer");
    tokio::time::sleep(SECOND).await;
    assert_eq!(recorded(&results).await, (0, 1));
    assert_eq!(count(&service, "charges").await, 0);
}

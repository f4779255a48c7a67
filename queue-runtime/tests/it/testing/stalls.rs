//! Calls that are late, or never answered until a test says so.

use std::time::Duration;

use queue_core::backend::{BackendExt as _, NewMessage};
use queue_runtime::error::Operation;
use queue_runtime::testing::Fault;
use queue_tests::MINUTE;
use tokio::time::{Instant, timeout};

use crate::testing::support::{count, injector, queue};

#[tokio::test(start_paused = true)]
async fn a_delay_is_paused_time() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::Delayed(MINUTE));
    let started = Instant::now();
    let put = faults.put(&queue(), NewMessage::new("a")).await;
    put.expect("put");
    assert_eq!(started.elapsed(), MINUTE);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_call_starts_when_it_is_released() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::Stalled);
    let put = tokio::spawn({
        let faults = faults.clone();
        async move { faults.put(&queue(), NewMessage::new("a")).await }
    });
    faults.until_injected(1, Operation::Put).await;
    tokio::time::sleep(MINUTE).await;
    assert!(!put.is_finished());
    assert_eq!(count(&faults).await, 0);
    faults.release();
    put.await.expect("no panic").expect("put");
    assert_eq!(count(&faults).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_answer_is_that_of_a_call_that_was_carried_out() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::AnswerStalled);
    let put = tokio::spawn({
        let faults = faults.clone();
        async move { faults.put(&queue(), NewMessage::new("a")).await }
    });
    faults.until_injected(1, Operation::Put).await;
    assert_eq!(count(&faults).await, 1);
    tokio::time::sleep(MINUTE).await;
    assert!(!put.is_finished());
    faults.heal();
    put.await.expect("no panic").expect("put");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_on_a_stalled_call_has_changed_nothing() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::Stalled);
    let queue = queue();
    let put = faults.put(&queue, NewMessage::new("a"));
    let given_up = timeout(Duration::from_secs(1), put).await;
    assert!(given_up.is_err());
    faults.release();
    assert_eq!(count(&faults).await, 0);
}

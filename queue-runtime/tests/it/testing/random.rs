//! Random faults.

use std::sync::Arc;

use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::ManualClock;
use queue_runtime::error::Operation;
use queue_runtime::testing::{Fault, FaultInjector};

use crate::testing::support::{count, queue};

const CALLS: usize = 1000;

/// Puts that fail at random, by their seed: which of them.
async fn failures(faults: &FaultInjector) -> Vec<bool> {
    faults.fail_sometimes(0.25, Operation::Put, Fault::RequestLost);
    let created = faults.create_queue(&queue(), &Metadata::new()).await;
    created.expect("created");
    let mut failures = Vec::new();
    for _ in 0..CALLS {
        let put = faults.put(&queue(), NewMessage::new("a")).await;
        failures.push(put.is_err());
    }
    failures
}

fn memory() -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::new(Arc::new(ManualClock::new())))
}

#[tokio::test]
async fn a_seed_repeats_its_faults_and_another_has_others() {
    let first = FaultInjector::new(memory());
    println!("seed {}", first.seed());
    let again = FaultInjector::seeded(memory(), first.seed());
    let other = FaultInjector::seeded(memory(), !first.seed());
    let failed = failures(&first).await;
    assert_eq!(failed, failures(&again).await);
    assert_ne!(failed, failures(&other).await);
}

#[tokio::test]
async fn faults_are_as_frequent_as_their_probability_and_all_counted() {
    let faults = FaultInjector::seeded(memory(), 42);
    let failed = failures(&faults).await;
    let failed = failed.iter().filter(|failed| **failed).count();
    assert_eq!(faults.injected(Operation::Put), failed);
    assert_eq!(count(&faults).await, CALLS - failed);
    // Six standard deviations around the mean, though the seed never changes.
    assert!((168..=332).contains(&failed), "{failed} of {CALLS} failed");
}

#[tokio::test]
async fn certain_and_impossible_faults() {
    let faults = FaultInjector::new(memory());
    faults.fail_sometimes(0.0, Operation::ListQueues, Fault::RequestLost);
    faults.list_queues("").await.expect("never fails");
    faults.fail_sometimes(1.0, Operation::ListQueues, Fault::RequestLost);
    faults.list_queues("").await.expect_err("always fails");
    faults.heal();
    faults.list_queues("").await.expect("healed");
}

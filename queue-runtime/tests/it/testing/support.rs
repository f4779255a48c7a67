//! A queue whose storage fails as it is told.

use std::sync::Arc;

use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage, ReceivedMessage};
use queue_runtime::QueueName;
use queue_runtime::backend::MemoryBackend;
use queue_runtime::testing::{FaultInjector, TokioClock};
use queue_tests::MINUTE;

pub(crate) fn queue() -> QueueName {
    "orders".parse().expect("a name")
}

/// An injector over one empty queue.
pub(crate) async fn injector() -> FaultInjector {
    let memory = MemoryBackend::new(Arc::new(TokioClock::new()));
    let faults = FaultInjector::seeded(Arc::new(memory), 7);
    let created = faults.create_queue(&queue(), &Metadata::new()).await;
    created.expect("created");
    faults
}

pub(crate) async fn put(faults: &FaultInjector, body: &'static str) {
    let put = faults.put(&queue(), NewMessage::new(body)).await;
    put.expect("put");
}

pub(crate) async fn receive(faults: &FaultInjector) -> ReceivedMessage {
    let received = faults.receive(&queue(), 1, MINUTE).await;
    received.expect("received").pop().expect("a message")
}

pub(crate) async fn count(faults: &FaultInjector) -> usize {
    let properties = faults.properties(&queue()).await;
    properties.expect("the queue exists").approximate_count
}

//! What a storage offers, asked before anything starts; and results in a container beside one that keeps none.

use std::sync::Arc;

use async_trait::async_trait;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::clock::SystemClock;
use queue_runtime::idempotency::ResultStore;
use queue_runtime::payloads::{MemoryPayloads, PayloadStore};
use queue_runtime::testing::FaultInjector;
use queue_runtime::{QueueService, once, testing};
use serde_json::json;

use crate::support::remote::Remote;

#[tokio::test]
async fn memory_offers_all_but_transactions() {
    let can = testing::service().await.can();
    let all = json!({
        "settle_in_one_step": true, "transactions": false, "unique": true, "schedules": true, "groups": true,
        "shared_rates": true, "tracking": true, "browsing": true, "large_payloads": true, "results": true,
    });
    assert_eq!(serde_json::to_value(can).expect("JSON"), all);
    let with_payloads = QueueService::builder("memory:").payloads(Arc::new(MemoryPayloads::new()));
    let with_payloads = with_payloads.connect().await.expect("connects");
    let can = with_payloads.can();
    assert!(
        !can.settle_in_one_step && !can.unique && can.schedules,
        "{can:?}"
    );
}

#[tokio::test]
async fn what_a_remote_storage_lacks_is_told() {
    let memory = MemoryBackend::new(Arc::new(SystemClock::new()));
    let remote = Remote::over(FaultInjector::new(Arc::new(memory)));
    let service = QueueService::with_backend(Arc::new(remote));
    let can = service.connect().await.expect("connects").can();
    assert!(
        !can.settle_in_one_step && !can.unique && !can.schedules && !can.browsing,
        "{can:?}"
    );
}

/// Has containers beside its queues, and keeps no results.
#[derive(Debug)]
struct WithContainers(MemoryBackend);

#[async_trait]
impl Backend for WithContainers {
    forward_backend!(self => self.0; all but results payload_store);

    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        None
    }

    fn payload_store(&self, _: &str) -> queue_runtime::Result<Option<Arc<dyn PayloadStore>>> {
        Ok(Some(Arc::new(MemoryPayloads::new())))
    }
}

#[tokio::test]
async fn a_container_keeps_results_for_a_storage_that_keeps_none() {
    let memory = MemoryBackend::new(Arc::new(SystemClock::new()));
    let backend = Arc::new(WithContainers(memory));
    let without = QueueService::with_backend(backend.clone());
    let without = without.connect().await.expect("connects");
    assert!(without.results().is_none() && !without.can().results);

    let service = QueueService::with_backend(backend.clone()).results_in("results");
    let service = service.connect().await.expect("connects");
    assert!(service.can().results);
    let store = service.results().expect("it is given");
    for other in [7, 8] {
        let done = once(
            &store,
            "order-7",
            async move { Ok::<_, std::io::Error>(other) },
        );
        assert_eq!(done.await.expect("done"), 7);
    }

    let both = QueueService::with_backend(backend)
        .payload_container("shop")
        .results_in("shop");
    let refused = both.connect().await.expect_err("two purposes").to_string();
    assert!(
        refused.contains("`shop`") && refused.contains("another one than that of the payloads"),
        "{refused}"
    );
}

//! Services whose queues are spread over shards, in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::policy::StorageRetry;
use queue_runtime::sharded::{Shards, shard_of};
use queue_runtime::testing::{FaultInjector, TokioClock};
use queue_runtime::{Message, QueueName, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[message(
    queue = "orders",
    visibility_timeout = "30s",
    poison_threshold = 3,
    key_scope = "global"
)]
pub(crate) struct CustomerOrder {
    #[message(key)]
    pub(crate) customer: u32,
    pub(crate) number: u32,
}

pub(crate) const QUEUE: QueueName = QueueName::from_static("orders");

/// Storages in memory, with faults.
pub(crate) struct World {
    pub(crate) accounts: Vec<FaultInjector>,
}

impl World {
    pub(crate) fn new(accounts: usize) -> Self {
        let account =
            |_| FaultInjector::new(Arc::new(MemoryBackend::new(Arc::new(TokioClock::new()))));
        Self {
            accounts: (0..accounts).map(account).collect(),
        }
    }

    pub(crate) async fn service(&self, shards: u32) -> QueueService {
        let accounts = self.accounts.iter().map(|account| {
            let account: Arc<dyn Backend> = Arc::new(account.clone());
            account
        });
        let service = QueueService::sharded(accounts, Shards::new(shards))
            .clock(Arc::new(TokioClock::new()))
            .storage_retry(StorageRetry::never())
            .on_current_runtime();
        service.connect().await.expect("connects")
    }

    /// How many messages each shard of the queue has.
    pub(crate) async fn counts(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for account in &self.accounts {
            for name in account.list_queues("orders-s").await.expect("listed") {
                let (queue, shard) = shard_of(&name).expect("a shard");
                assert_eq!(queue, QUEUE);
                let properties = account.properties(&name).await.expect("properties");
                counts.insert(shard, properties.approximate_count);
            }
        }
        counts
    }
}

pub(crate) fn orders(numbers: std::ops::Range<u32>) -> impl Iterator<Item = CustomerOrder> {
    numbers.map(|number| CustomerOrder {
        customer: number % 50,
        number,
    })
}

/// Handles what is on the queue until it is empty, and returns how often each order was completed.
pub(crate) async fn drain(service: &QueueService) -> BTreeMap<u32, u32> {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let handled = Arc::clone(&seen);
    let listener = service.listener(move |order: Received<CustomerOrder>| {
        *handled
            .lock()
            .expect("held")
            .entry(order.number)
            .or_default() += 1;
        async {}
    });
    let listener = listener.until_empty().start().expect("starts");
    let drained = timeout(Duration::from_secs(3600), listener.drained()).await;
    let _ = drained.expect("nothing is on a shard that nobody serves");
    let seen = seen.lock().expect("held");
    seen.clone()
}

pub(crate) fn once(numbers: std::ops::Range<u32>) -> BTreeMap<u32, u32> {
    numbers.map(|number| (number, 1)).collect()
}

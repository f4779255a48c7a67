//! Backends over stubs of accounts that throttle. Time is virtual, and stands still while a request is under way, so that
//! the slowest machine sends as many requests a second as any other.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Backend, BrowsedMessage, Created, Metadata, OpOutcomes, Ops, Page, PageMark,
    PeekedMessage, QueueProperties, ReceivedMessage,
};
use queue_core::internal::forward_backend;
use queue_runtime::backend::{AzureBackend, MemoryBackend};
use queue_runtime::clock::Clock;
use queue_runtime::policy::{StorageLimit, StorageRetry};
use queue_runtime::service::ServiceBuilder;
use queue_runtime::{MessageId, QueueName, QueueService, Result};
use queue_tests::azure_stub::AzureStub;
use tokio::task::spawn_blocking;

/// The requests a second that the stub allows on a queue, and a setting below it.
pub(crate) const ALLOWED: usize = 100;
pub(crate) const LIMIT: StorageLimit = StorageLimit::new().per_queue(90);

pub(crate) fn stub(account: &str, clock: &Arc<dyn Clock>) -> AzureStub {
    let queues = Arc::new(MemoryBackend::new(Arc::clone(clock)));
    let stub = AzureStub::start(account, queues, Arc::clone(clock), Some(ALLOWED));
    stub.expect("a port is free")
}

pub(crate) async fn open(stub: &AzureStub, clock: &Arc<dyn Clock>) -> Still {
    let azure = AzureBackend::builder(&stub.connection_string(), Arc::clone(clock));
    Still(azure.open().await.expect("it is opened"))
}

/// Connects, and creates the queue.
pub(crate) async fn connect(
    service: ServiceBuilder,
    clock: &Arc<dyn Clock>,
    limit: StorageLimit,
) -> QueueService {
    let service = service
        .clock(Arc::clone(clock))
        .storage_limit(limit)
        .storage_retry(StorageRetry::never())
        .on_current_runtime();
    let service = service.connect().await.expect("connected");
    let orders = service.any_queue("orders").expect("a name");
    orders.create().await.expect("created");
    service
}

/// A backend whose requests take no time: Tokio's, which is paused, does not go on by itself while something blocks.
#[derive(Debug)]
pub(crate) struct Still(pub(crate) AzureBackend);

/// Has time stand still until this is dropped.
fn still() -> Sender<()> {
    let (end, ended) = channel();
    // Fails, when the sender is dropped.
    spawn_blocking(move || ended.recv().ok());
    end
}

/// Forwards methods, during which time stands still.
macro_rules! stand_still {
    ($($method:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        #[async_trait]
        #[warn(clippy::missing_trait_methods, reason = "a default would hide the engine's own")]
        impl Backend for Still {
            forward_backend!(self => self.0; capabilities queue_uri sharded notifier results payload_store
                transactions attachment);

            $(async fn $method(&self, $($argument: $type),*) -> $output {
                let _still = still();
                self.0.$method($($argument),*).await
            })*
        }
    };
}

stand_still! {
    create_queue(queue: &QueueName, metadata: &Metadata) -> Result<Created>;
    delete_queue(queue: &QueueName) -> Result<()>;
    list_queues(prefix: &str) -> Result<Vec<QueueName>>;
    properties(queue: &QueueName) -> Result<QueueProperties>;
    metadata(queue: &QueueName) -> Result<Metadata>;
    set_metadata(queue: &QueueName, metadata: &Metadata) -> Result<()>;
    receive(queue: &QueueName, max: usize, visibility: Duration) -> Result<Vec<ReceivedMessage>>;
    peek(queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>>;
    browse(queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page>;
    find(queue: &QueueName, id: &MessageId, max: usize) -> Result<Vec<BrowsedMessage>>;
    clear(queue: &QueueName) -> Result<()>;
    apply(ops: Ops) -> Result<OpOutcomes, ApplyError>;
}

//! Backends over accounts of our own server that throttle. Time is virtual, and stands still while a request is under way,
//! so that the slowest machine sends as many requests a second as any other.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Backend, BrowsedMessage, Created, Located, Metadata, OpOutcomes, Ops, Page,
    PageMark, PeekedMessage, QueueProperties, ReceivedMessage,
};
use queue_core::internal::forward_backend;
use queue_runtime::backend::{AzureBackend, MemoryBackend};
use queue_runtime::clock::Clock;
use queue_runtime::policy::{StorageLimit, StorageRetry};
use queue_runtime::service::ServiceBuilder;
use queue_runtime::{MessageId, QueueName, QueueService, Result};
use queue_server::{Account, DEVELOPMENT_KEY, Load, Running, Server};
use queue_tests::azurite::lasting_port;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

/// The requests a second that an account allows on a queue, and a setting below it.
pub(crate) const ALLOWED: usize = 100;
pub(crate) const LIMIT: StorageLimit = StorageLimit::new().per_queue(90);

/// An account on a server of its own, which can be stopped.
pub(crate) struct Throttled {
    name: String,
    account: Account,
    pub(crate) queues: Arc<dyn Backend>,
    port: u16,
    server: Option<Running>,
}

impl Throttled {
    pub(crate) async fn start(name: &str, clock: &Arc<dyn Clock>) -> Self {
        let queues: Arc<dyn Backend> = Arc::new(MemoryBackend::new(Arc::clone(clock)));
        let account = Account::new(
            name,
            DEVELOPMENT_KEY,
            Arc::clone(&queues),
            Arc::clone(clock),
        );
        let allowed = NonZeroUsize::new(ALLOWED).expect("more than none");
        let mut throttled = Self {
            name: name.to_owned(),
            account: account.expect("valid").with_limit(allowed),
            queues,
            port: lasting_port().expect("a port is free"),
            server: None,
        };
        throttled.start_again().await;
        throttled
    }

    pub(crate) async fn start_again(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await;
        let server = Server::new(vec![self.account.clone()]);
        let server = server.start(listener.expect("the port is free"));
        self.server = Some(server.expect("it is bound"));
    }

    pub(crate) async fn stop(&mut self) {
        let server = self.server.take().expect("it runs");
        server.stop().await.expect("it stops");
    }

    pub(crate) fn load(&self, queue: &QueueName) -> Load {
        self.account.load(queue).expect("it has a limit")
    }

    pub(crate) async fn open(&self, clock: &Arc<dyn Clock>) -> Still {
        let (name, port) = (&self.name, self.port);
        let url = format!(
            "AccountName={name};AccountKey={DEVELOPMENT_KEY};QueueEndpoint=http://127.0.0.1:{port}/{name}"
        );
        let azure = AzureBackend::builder(&url, Arc::clone(clock));
        Still(azure.open().await.expect("it is opened"))
    }
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
                transactions introduce attachment);

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
    locate(id: &MessageId, max: usize) -> Result<Vec<Located>>;
    clear(queue: &QueueName) -> Result<()>;
    apply(ops: Ops) -> Result<OpOutcomes, ApplyError>;
}

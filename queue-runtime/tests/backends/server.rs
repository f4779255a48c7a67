//! The engine for Azure under the conformance suite, on our own server over memory: both sides of the protocol, by HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use queue_core::ManualClock;
use queue_core::backend::Backend;
use queue_core::clock::BoxFuture;
use queue_core::conformance::{Harness, Load, OpenedBackend, Ordering, Stepped, Survival};
use queue_runtime::backend::{AzureBackend, MemoryBackend};
use queue_server::{Account, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Running, Server};
use tokio::net::TcpListener;

use crate::threads;

struct ServerHarness;

struct ServerStore {
    clock: ManualClock,
    url: String,
    _server: Running,
    client: Option<Arc<dyn Backend>>,
}

#[async_trait]
impl Harness for ServerHarness {
    async fn open(&self) -> Box<dyn OpenedBackend> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("server-{}", NEXT.fetch_add(1, Relaxed));
        let clock = ManualClock::new();
        let queues = MemoryBackend::named(&name, Arc::new(clock.clone())).with_max_body(64 * 1024);
        let account = Account::new(
            DEVELOPMENT_ACCOUNT,
            DEVELOPMENT_KEY,
            Arc::new(queues),
            Arc::new(clock.clone()),
        );
        let server = Server::new(vec![account.expect("a valid account")]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let server = server.start(listener).expect("it is bound");
        let address = server.address();
        let mut store = ServerStore {
            clock,
            url: format!(
                "AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY};\
                 QueueEndpoint=http://{address}/{DEVELOPMENT_ACCOUNT}"
            ),
            _server: server,
            client: None,
        };
        store.client = Some(store.connect().await);
        Box::new(store)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        threads::spawn(task)
    }

    /// Each operation is a request.
    fn load(&self) -> Load {
        Load {
            tasks: 8,
            messages: 2_000,
        }
    }
}

impl ServerStore {
    async fn connect(&self) -> Arc<dyn Backend> {
        let builder = AzureBackend::builder(&self.url, Arc::new(self.clock.clone()));
        Arc::new(builder.open().await.expect("open"))
    }
}

#[async_trait]
impl OpenedBackend for ServerStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(self.client.as_ref().expect("open"))
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        self.connect().await
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client = None;
        self.client = Some(self.connect().await);
        self.client()
    }

    fn survival(&self) -> Survival {
        Survival::Kept
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    fn step_back(&self, by: Duration) -> Stepped {
        let by = SignedDuration::try_from(by).expect("within range");
        self.clock.step_wall_clock(-by);
        Stepped::Yes
    }

    fn ordering(&self) -> Ordering {
        Ordering::BestEffort
    }
}

queue_core::conformance_tests!(ServerHarness);

//! The Azure backend under the conformance suite, on Azurite.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::Backend;
use queue_core::clock::BoxFuture;
use queue_core::conformance::{Harness, Load, Ordering, ReceiptScope, Stepped, Store, Survival};
use queue_runtime::SystemClock;
use queue_runtime::backend::AzureBackend;

use crate::case::{BUSY, RUNTIME};
use crate::server::ACCOUNT;

struct AzuriteHarness;

/// Tests share the account; each has its own prefix of queue names.
struct AzuriteStore {
    namespace: String,
    client: Option<Arc<dyn Backend>>,
}

#[async_trait]
impl Harness for AzuriteHarness {
    async fn open(&self) -> Box<dyn Store> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Box::new(AzuriteStore {
            namespace: format!("t{}-", NEXT.fetch_add(1, Relaxed)),
            client: Some(connect().await),
        })
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        RUNTIME.block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let running = RUNTIME.spawn(task);
        Box::pin(async {
            if let Err(failure) = running.await {
                std::panic::resume_unwind(failure.into_panic());
            }
        })
    }

    /// Azurite executes a few hundred operations per second.
    fn load(&self) -> Load {
        Load {
            tasks: 8,
            messages: 800,
        }
    }
}

async fn connect() -> Arc<dyn Backend> {
    // Azurite and its clients may share few cores with other programs.
    let builder = AzureBackend::builder(
        &BUSY.connection_string(ACCOUNT),
        Arc::new(SystemClock::new()),
    )
    .deadline(Duration::from_secs(60));
    Arc::new(builder.open().await.expect("open"))
}

#[async_trait]
impl Store for AzuriteStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(self.client.as_ref().expect("open"))
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        connect().await
    }

    /// Opens another client of the running service. Restarting Azurite would test its persistence, which
    /// saves every five seconds and forgets times to live, rather than this backend.
    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client = None;
        self.client = Some(connect().await);
        self.client()
    }

    fn survival(&self) -> Survival {
        Survival::Kept
    }

    async fn advance(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn step_back(&self, _by: Duration) -> Stepped {
        Stepped::OutOfReach
    }

    /// Half of it must exceed the pauses of a slow machine.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn ordering(&self) -> Ordering {
        Ordering::BestEffort
    }

    /// Azurite gives all messages of one receive the same receipt.
    fn receipts(&self) -> ReceiptScope {
        ReceiptScope::Batch
    }

    fn namespace(&self) -> String {
        self.namespace.clone()
    }
}

queue_core::conformance_tests!(AzuriteHarness);

//! The notifier over NATS under its conformance suite.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::clock::BoxFuture;
use queue_core::conformance::notify::{Arming, Delivery, Harness, Medium};
use queue_core::notify::Notifier;
use queue_runtime::notify::NatsNotifier;
use queue_tests::nats::NatsServer;
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("threads start"));

struct NatsHarness;

/// A server, and an account of it.
struct Nats {
    server: NatsServer,
    account: String,
    client: Arc<NatsNotifier>,
}

#[async_trait]
impl Harness for NatsHarness {
    async fn open(&self) -> Box<dyn Medium> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let server = crate::start();
        Box::new(Nats {
            client: Arc::new(crate::connect(&server).await),
            server,
            account: format!("azure://shop-{}", NEXT.fetch_add(1, Relaxed)),
        })
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        RUNTIME.block_on(test);
    }
}

#[async_trait]
impl Medium for Nats {
    fn account(&self) -> String {
        self.account.clone()
    }

    fn client(&self) -> Arc<dyn Notifier> {
        Arc::clone(&self.client) as Arc<dyn Notifier>
    }

    async fn second_client(&self) -> Arc<dyn Notifier> {
        Arc::new(crate::connect(&self.server).await)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Later
    }

    fn arming(&self) -> Arming {
        Arming::Always
    }

    async fn pause(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

queue_core::notifier_tests!(NatsHarness);

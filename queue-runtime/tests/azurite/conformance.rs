//! The Azure backend under the conformance suite, on Azurite: one account, and shards on two.
//!
//! `QUEUE_TEST_AZURE`, a connection string, has the tests of one account run on that account, which may be a real one:
//! `docs/azure.md` has the command and what it costs.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::Backend;
use queue_core::clock::BoxFuture;
use queue_core::conformance::{
    Harness, Load, OpenedBackend, Ordering, ReceiptScope, Stepped, Survival,
};
use queue_runtime::Error;
use queue_runtime::backend::AzureBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::sharded::Shards;
use queue_tests::azurite::Azurite;

use crate::case::{BUSY, RUNTIME};
use crate::server::{self, ACCOUNT, SECOND_ACCOUNT};
use crate::stalls::{Pulse, Stalls};

struct AzuriteHarness {
    storage: Storage,
    stalls: Stalls,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Storage {
    Account,
    /// Four on two accounts.
    Shards,
}

/// Each request costs Azurite more the more messages it has, so that shards have one of their own.
static OF_SHARDS: LazyLock<Azurite> = LazyLock::new(server::start);

impl Storage {
    fn azurite(self) -> &'static Azurite {
        match self {
            Self::Account => &BUSY,
            Self::Shards => &OF_SHARDS,
        }
    }

    /// Returns the connection string of an account.
    fn account(self, name: &str) -> String {
        match std::env::var("QUEUE_TEST_AZURE") {
            Ok(given) if self == Self::Account => given,
            _ => self.azurite().connection_string(name),
        }
    }

    fn pulse(self) -> &'static Pulse {
        static OF_ACCOUNT: LazyLock<&Pulse> =
            LazyLock::new(|| Pulse::start(Storage::Account.account(ACCOUNT)));
        static OF_SHARDS: LazyLock<&Pulse> =
            LazyLock::new(|| Pulse::start(Storage::Shards.account(ACCOUNT)));
        match self {
            Self::Account => *OF_ACCOUNT,
            Self::Shards => *OF_SHARDS,
        }
    }
}

impl AzuriteHarness {
    fn of(storage: Storage) -> Self {
        Self {
            storage,
            stalls: Stalls::of(storage.pulse()),
        }
    }
}

/// Azurite and its clients may share few cores with other programs.
const DEADLINE: Duration = Duration::from_secs(60);
/// Half of it must exceed the pauses of a slow machine.
const STORE_LEASE: Duration = Duration::from_secs(30);

/// Tests share the accounts; each has its own prefix of queue names, and deletes its queues in the end.
struct AzuriteStore {
    storage: Storage,
    namespace: String,
    client: Option<Arc<dyn Backend>>,
}

#[async_trait]
impl Harness for AzuriteHarness {
    async fn open(&self) -> Box<dyn OpenedBackend> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        /// A real account may have queues of an earlier run.
        static RUN: LazyLock<u16> = LazyLock::new(rand::random);
        let number = NEXT.fetch_add(1, Relaxed);
        let mut store = AzuriteStore {
            storage: self.storage,
            namespace: format!("t{:04x}-{number}-", *RUN),
            client: None,
        };
        store.client = Some(store.connect().await);
        Box::new(store)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        self.stalls.forget();
        RUNTIME.block_on(test);
    }

    fn stalled(&self) -> bool {
        self.stalls.total() > STORE_LEASE / 6
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

impl AzuriteStore {
    async fn account(&self, name: &str) -> Arc<dyn Backend> {
        let account = self.storage.account(name);
        let builder = AzureBackend::builder(&account, Arc::new(SystemClock::new()));
        Arc::new(builder.deadline(DEADLINE).open().await.expect("open"))
    }

    async fn connect(&self) -> Arc<dyn Backend> {
        let account = self.account(ACCOUNT).await;
        if self.storage == Storage::Account {
            return account;
        }
        let accounts = vec![account, self.account(SECOND_ACCOUNT).await];
        let name = self.queue("shards");
        let shards = Shards::new(4).name(name).patience(DEADLINE);
        let opened = shards.open(accounts, Arc::new(SystemClock::new()));
        Arc::new(opened.await.expect("connects"))
    }
}

impl Drop for AzuriteStore {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        let namespace = self.namespace.clone();
        let deleting = async move {
            for queue in client.list_queues(&namespace).await? {
                client.delete_queue(&queue).await?;
            }
            Ok::<_, Error>(())
        };
        // On a thread that may block. Those that stay cost something on a real account, and Azurite is slower with them.
        let deleted = std::thread::spawn(move || RUNTIME.block_on(deleting)).join();
        if !matches!(deleted, Ok(Ok(()))) {
            eprintln!(
                "queues named {}… were not deleted: {deleted:?}",
                self.namespace
            );
        }
    }
}

#[async_trait]
impl OpenedBackend for AzuriteStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(self.client.as_ref().expect("open"))
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        self.connect().await
    }

    /// Opens another client of the running service. Restarting Azurite would test its persistence, which
    /// saves every five seconds and forgets times to live, rather than this backend.
    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client = None;
        self.client = Some(self.connect().await);
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

    fn lease(&self) -> Duration {
        STORE_LEASE
    }

    fn ordering(&self) -> Ordering {
        Ordering::BestEffort
    }

    /// Azurite gives all messages of one receive the same receipt.
    fn receipts(&self) -> ReceiptScope {
        ReceiptScope::Batch
    }

    fn longest_name(&self) -> usize {
        match self.storage {
            Storage::Account => 63,
            Storage::Shards => 60,
        }
    }

    fn namespace(&self) -> String {
        self.namespace.clone()
    }
}

queue_core::conformance_tests!(AzuriteHarness::of(Storage::Account));

mod on_shards {
    use super::*;

    queue_core::conformance_tests!(AzuriteHarness::of(Storage::Shards));
}

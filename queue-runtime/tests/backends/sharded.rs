//! Shards under the conformance suite: on one memory storage, on two, and on two SQLite files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use queue_core::ManualClock;
use queue_core::backend::Backend;
use queue_core::clock::{BoxFuture, Clock};
use queue_core::conformance::{Harness, Load, OpenedBackend, Ordering, Stepped, Survival};
use queue_runtime::backend::{MemoryBackend, SqliteBackend};
use queue_sharded::Shards;
use tempfile::TempDir;

use crate::threads;

/// What the accounts are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accounts {
    Memory(usize),
    Files(usize),
}

pub(crate) struct ShardedHarness(pub(crate) Accounts);

struct ShardedStore {
    accounts: Accounts,
    name: String,
    folder: TempDir,
    clock: ManualClock,
    files: Vec<Arc<SqliteBackend>>,
    client: Option<Arc<dyn Backend>>,
}

#[async_trait]
impl Harness for ShardedHarness {
    async fn open(&self) -> Box<dyn OpenedBackend> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut store = ShardedStore {
            accounts: self.0,
            name: format!("shards-{}", NEXT.fetch_add(1, Relaxed)),
            folder: TempDir::new().expect("a folder"),
            clock: ManualClock::new(),
            files: Vec::new(),
            client: None,
        };
        let (client, files) = store.connect().await;
        (store.client, store.files) = (Some(client), files);
        Box::new(store)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        threads::spawn(task)
    }

    fn load(&self) -> Load {
        Load {
            messages: 20_000,
            ..Load::default()
        }
    }
}

impl ShardedStore {
    async fn connect(&self) -> (Arc<dyn Backend>, Vec<Arc<SqliteBackend>>) {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let (mut accounts, mut files): (Vec<Arc<dyn Backend>>, _) = (Vec::new(), Vec::new());
        match self.accounts {
            Accounts::Memory(count) => {
                for number in 0..count {
                    let name = format!("{}-{number}", self.name);
                    accounts.push(Arc::new(MemoryBackend::named(&name, Arc::clone(&clock))));
                }
            }
            Accounts::Files(count) => {
                for number in 0..count {
                    let path = self.folder.path().join(format!("{number}.db"));
                    let opened = SqliteBackend::open(path, Arc::clone(&clock)).await;
                    let file = Arc::new(opened.expect("open"));
                    accounts.push(Arc::<SqliteBackend>::clone(&file));
                    files.push(file);
                }
            }
        }
        let shards = Shards::new(4).open(accounts, clock).await;
        (Arc::new(shards.expect("connects")), files)
    }
}

#[async_trait]
impl OpenedBackend for ShardedStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(self.client.as_ref().expect("open"))
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        self.connect().await.0
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client = None;
        for file in self.files.drain(..) {
            file.close().await;
        }
        let (client, files) = self.connect().await;
        (self.client, self.files) = (Some(client), files);
        self.client()
    }

    fn survival(&self) -> Survival {
        match self.accounts {
            Accounts::Memory(_) => Survival::Gone,
            Accounts::Files(_) => Survival::Kept,
        }
    }

    fn ordering(&self) -> Ordering {
        Ordering::BestEffort
    }

    fn longest_name(&self) -> usize {
        60
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    fn step_back(&self, by: Duration) -> Stepped {
        let by = SignedDuration::try_from(by).expect("within range");
        self.clock.step_wall_clock(-by);
        Stepped::Yes
    }
}

mod on_one_memory {
    use super::*;

    queue_core::conformance_tests!(ShardedHarness(Accounts::Memory(1)));
}

mod on_two_memories {
    use super::*;

    queue_core::conformance_tests!(ShardedHarness(Accounts::Memory(2)));
}

mod on_two_files {
    use super::*;

    queue_core::conformance_tests!(ShardedHarness(Accounts::Files(2)));
}

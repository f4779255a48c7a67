//! The memory backend under the conformance suite, plain or wrapped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use queue_core::ManualClock;
use queue_core::backend::Backend;
use queue_core::clock::BoxFuture;
use queue_core::conformance::{Harness, Load, OpenedBackend, Stepped, Survival};
use queue_runtime::backend::MemoryBackend;

use crate::threads;

/// Wraps the backend that the suite tests.
pub(crate) type Wrap = Arc<dyn Fn(MemoryBackend) -> Arc<dyn Backend> + Send + Sync>;

pub(crate) struct MemoryHarness {
    pub(crate) wrap: Wrap,
    pub(crate) load: Load,
}

struct MemoryStore {
    name: String,
    clock: ManualClock,
    wrap: Wrap,
    client: Option<Arc<dyn Backend>>,
}

impl MemoryHarness {
    pub(crate) fn new() -> Self {
        Self {
            wrap: Arc::new(|backend| Arc::new(backend)),
            load: Load::default(),
        }
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    async fn open(&self) -> Box<dyn OpenedBackend> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut store = MemoryStore {
            name: format!("conformance-{}", NEXT.fetch_add(1, Relaxed)),
            clock: ManualClock::new(),
            wrap: Arc::clone(&self.wrap),
            client: None,
        };
        store.client = Some(store.connect());
        Box::new(store)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        threads::spawn(task)
    }

    fn load(&self) -> Load {
        self.load
    }
}

impl MemoryStore {
    fn connect(&self) -> Arc<dyn Backend> {
        let clock = Arc::new(self.clock.clone());
        (self.wrap)(MemoryBackend::named(&self.name, clock))
    }
}

#[async_trait]
impl OpenedBackend for MemoryStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(self.client.as_ref().expect("open"))
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        self.connect()
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client = None;
        self.client = Some(self.connect());
        self.client()
    }

    fn survival(&self) -> Survival {
        Survival::Gone
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

queue_core::conformance_tests!(MemoryHarness::new());

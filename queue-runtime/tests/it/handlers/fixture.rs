use std::future::{Future, IntoFuture};
use std::sync::Arc;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::ManualClock;
use queue_runtime::testing::FaultInjector;
use queue_runtime::{
    ListenerBuilder, ListenerEvent, ListenerEventKind, ListenerHandle, QueueService,
};
use queue_tests::SECOND;
use tokio::runtime::Runtime;
use tokio::sync::broadcast::Receiver;

use crate::support::jobs::{Job, Mood};
use crate::support::{events, guarded};

/// A service whose time stands still, a runtime for the test, and one for the listener.
pub(crate) struct Apart {
    pub(crate) test: Runtime,
    pub(crate) listener: Runtime,
    pub(crate) clock: ManualClock,
    pub(crate) service: QueueService,
}

impl Apart {
    pub(crate) fn new() -> Self {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().expect("up")
        };
        let (test, clock) = (runtime(), ManualClock::new());
        let service = QueueService::builder("memory:").clock(Arc::new(clock.clone()));
        Self {
            service: test.block_on(service.connect()).expect("up"),
            listener: runtime(),
            test,
            clock,
        }
    }

    pub(crate) fn with_faults() -> (Self, FaultInjector) {
        let apart = Self::new();
        let clock = || Arc::new(apart.clock.clone());
        let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock())));
        let service = QueueService::with_backend(Arc::new(faults.clone())).clock(clock());
        let service = apart.test.block_on(service.connect()).expect("up");
        (Self { service, ..apart }, faults)
    }

    pub(crate) fn submit(&self, mood: Mood) {
        let submitted = self.service.submit(Job { mood }).into_future();
        self.test.block_on(submitted).expect("submitted");
    }

    /// Starts a listener on its own runtime.
    pub(crate) fn start(
        &self,
        listener: ListenerBuilder<Job>,
    ) -> (ListenerHandle, Receiver<ListenerEvent>) {
        let events = listener.events();
        let _inside = self.listener.enter();
        (listener.start().expect("starts"), events)
    }

    pub(crate) fn within_guard<T>(&self, future: impl Future<Output = T>) -> T {
        let output = self.test.block_on(guarded(future));
        output.expect("it happens")
    }

    /// Shuts the runtime of the listener down, and does not wait.
    pub(crate) fn without_listener(self) -> (Runtime, QueueService) {
        self.listener.shutdown_background();
        (self.test, self.service)
    }

    /// Lets a moment pass, so short that all who sleep wake long before a lease ends.
    pub(crate) fn pass_time(&self) {
        self.clock.advance(SECOND / 100);
    }

    /// Lets time pass until `count` events have come that `wanted` picks.
    pub(crate) fn events_as_time_passes(
        &self,
        seen: &mut Receiver<ListenerEvent>,
        count: usize,
        wanted: impl Fn(&ListenerEventKind) -> bool,
    ) -> Vec<ListenerEventKind> {
        let passing = async {
            loop {
                self.pass_time();
                tokio::task::yield_now().await;
            }
        };
        self.test.block_on(async {
            tokio::select! {
                found = events(seen, count, wanted) => found,
                () = passing => unreachable!("time never ends"),
            }
        })
    }
}

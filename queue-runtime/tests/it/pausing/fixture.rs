//! Two services on one storage, of which one pauses the other's queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::error::Operation;
use queue_runtime::notify::{LocalNotifier, Notifier, Writers};
use queue_runtime::policy::{ExponentialIdle, TaskRange};
use queue_runtime::settings::Paused;
use queue_runtime::testing::{FaultInjector, TokioClock};
use queue_runtime::{
    AnyQueue, ListenerBuilder, ListenerEvent, ListenerEventKind, ListenerHandle, QueueService,
    Received,
};
use queue_tests::SECOND;
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;

use crate::support::NEVER;
use crate::support::jobs::{Job, submit_jobs};

/// Within which a pause is obeyed, of storage where reading the metadata costs little.
pub(crate) const LAG: Duration = Duration::from_secs(5);

pub(crate) const REASON: Option<&str> = Some("the warehouse is closed");

/// Two services on one storage: one that listens, and that of the operator and of those who submit.
pub(crate) struct Pair {
    pub(crate) worker: QueueService,
    /// The calls of the worker.
    pub(crate) faults: FaultInjector,
    pub(crate) office: QueueService,
    pub(crate) jobs: AnyQueue,
}

impl Pair {
    /// The office announces to the worker what it submits.
    pub(crate) async fn new() -> Self {
        Self::announced_by(None).await
    }

    /// The worker finds by polling what the office submits.
    pub(crate) async fn silent() -> Self {
        let other = LocalNotifier::new(Writers::OtherProcesses);
        Self::announced_by(Some(Arc::new(other))).await
    }

    async fn announced_by(office: Option<Arc<LocalNotifier>>) -> Self {
        let memory = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
        let faults = FaultInjector::new(memory.clone());
        let worker = connect(Arc::new(faults.clone())).await;
        let office = match office {
            None => connect(memory).await,
            Some(notifier) => connect(Arc::new(Unheard(memory, notifier))).await,
        };
        submit_jobs(&office, 0).await;
        let jobs = office.any_queue("jobs").expect("a name");
        Self {
            worker,
            faults,
            office,
            jobs,
        }
    }

    pub(crate) async fn submit(&self, jobs: usize) {
        submit_jobs(&self.office, jobs).await;
    }

    pub(crate) async fn pause(&self) {
        self.jobs.pause(REASON).await.expect("paused");
    }

    pub(crate) async fn resume(&self) {
        let was = self.jobs.resume().await.expect("resumed");
        assert!(was.is_some(), "it was paused");
    }

    /// The numbers of receives, and of reads of properties or metadata, of the worker.
    pub(crate) fn calls(&self) -> (usize, usize) {
        let calls = [Operation::Receive, Operation::Properties];
        let [receives, reads] = calls.map(|operation| self.faults.calls(operation));
        (receives, reads)
    }
}

pub(crate) async fn connect(backend: Arc<dyn Backend>) -> QueueService {
    let service = QueueService::with_backend(backend).clock(Arc::new(TokioClock::new()));
    let service = service.on_current_runtime().connect();
    service.await.expect("connects")
}

/// The same storage with another notifier.
#[derive(Debug)]
struct Unheard(Arc<MemoryBackend>, Arc<LocalNotifier>);

#[async_trait]
impl Backend for Unheard {
    forward_backend!(self => self.0; all but notifier);

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        let notifier: Arc<LocalNotifier> = Arc::clone(&self.1);
        Some(notifier)
    }
}

/// A listener whose handler takes a second, and accepts first attempts only.
pub(crate) fn listen(service: &QueueService, tasks: impl Into<TaskRange>) -> ListenerBuilder<Job> {
    let listener = service.listener(async |job: Received<Job>| {
        assert_eq!(job.attempt(), 1);
        sleep(SECOND).await;
    });
    // Few polls, so that their events do not push out the others.
    let idle = ExponentialIdle::up_to(30 * SECOND);
    listener.idle(idle).tasks(tasks).handler_timeout(NEVER)
}

pub(crate) fn start(listener: ListenerBuilder<Job>) -> (ListenerHandle, Receiver<ListenerEvent>) {
    let events = listener.events();
    (listener.start().expect("starts"), events)
}

/// The events of the pause that have been published.
pub(crate) fn told(events: &mut Receiver<ListenerEvent>) -> Vec<Option<Paused>> {
    let kinds = std::iter::from_fn(|| Some(events.try_recv().ok()?.kind));
    let told = kinds.filter_map(|kind| match kind {
        ListenerEventKind::QueuePaused(paused) => Some(Some(paused)),
        ListenerEventKind::QueueResumed => Some(None),
        _ => None,
    });
    told.collect()
}

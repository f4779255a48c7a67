//! Storages, the processes that use them, and the messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::clock::Clock;
use queue_runtime::error::Operation;
use queue_runtime::payloads::{MemoryPayloads, PayloadStore};
use queue_runtime::policy::StorageRetry;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{AnyQueue, Delivery, Message, QueueService};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "jobs", poison_threshold = 3, visibility_timeout = "30s")]
pub(crate) struct Job {
    #[message(key)]
    pub(crate) number: u32,
}

pub(crate) const VISIBILITY: Duration = Duration::from_secs(30);

/// Beyond all leases.
pub(crate) const LATER: Duration = Duration::from_secs(3600);

/// How a storage records deleted items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marks {
    /// Beside the message, in the step that settles.
    Beside,
    /// In the header of the pack, with the next renewal.
    InHeader,
}

pub(crate) const BOTH: [Marks; 2] = [Marks::Beside, Marks::InHeader];

/// A storage in memory.
#[derive(Debug, Clone)]
pub(crate) struct World {
    marks: Marks,
    clock: Arc<dyn Clock>,
    storage: Arc<dyn Backend>,
    payloads: Arc<dyn PayloadStore>,
}

/// A service, and what is between it and the storage.
pub(crate) struct Process {
    pub(crate) service: QueueService,
    pub(crate) faults: FaultInjector,
}

impl World {
    /// Of paused time.
    pub(crate) fn new(marks: Marks) -> Self {
        Self::with_clock(marks, Arc::new(TokioClock::new()))
    }

    pub(crate) fn with_clock(marks: Marks, clock: Arc<dyn Clock>) -> Self {
        Self {
            marks,
            storage: Arc::new(MemoryBackend::new(Arc::clone(&clock))),
            payloads: Arc::new(MemoryPayloads::with_clock(Arc::clone(&clock))),
            clock,
        }
    }

    pub(crate) async fn service(&self) -> QueueService {
        self.process().await.service
    }

    pub(crate) async fn process(&self) -> Process {
        let faults = FaultInjector::new(Arc::clone(&self.storage));
        println!("seed of the faults: {}", faults.seed());
        let storage: Arc<dyn Backend> = Arc::new(faults.clone());
        let mut service = QueueService::with_backend(storage)
            .clock(Arc::clone(&self.clock))
            .storage_retry(StorageRetry::never())
            .on_current_runtime();
        // A storage beside which there is a payload store is not atomic.
        if self.marks == Marks::InHeader {
            service = service.payloads(Arc::clone(&self.payloads));
        }
        let service = service.connect().await.expect("connects");
        Process { service, faults }
    }
}

impl Process {
    /// Ends the process: nothing that it does from now on is carried out. Waits until its leases have ended.
    pub(crate) async fn kill(self) {
        for operation in [
            Operation::Receive,
            Operation::Update,
            Operation::Delete,
            Operation::Put,
            Operation::Apply,
        ] {
            self.faults.fail_every(operation, Fault::Stalled);
        }
        for listener in self.service.listeners() {
            drop(listener.stop_on_drop());
        }
        drop(self.service);
        sleep(LATER).await;
    }
}

/// Submits jobs with these numbers, packed.
pub(crate) async fn submit(service: &QueueService, numbers: impl IntoIterator<Item = u32>) {
    let jobs = numbers.into_iter().map(|number| Job { number });
    service.submit_all(jobs).packed().await.expect("submitted");
}

pub(crate) fn jobs(service: &QueueService) -> AnyQueue {
    service.any_queue("jobs").expect("a name")
}

/// The number of messages in the storage, packs counted as one.
pub(crate) async fn depth(service: &QueueService) -> usize {
    let properties = jobs(service).properties().await;
    properties.expect("properties").approximate_count
}

pub(crate) async fn accept(service: &QueueService) -> Delivery<Job> {
    let accepted = service.accept::<Job>().await.expect("accepts");
    accepted.expect("a job")
}

/// How often each job was handled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handled(Arc<Mutex<BTreeMap<u32, u32>>>);

impl Handled {
    /// Counts a run, and returns how many of the job there were.
    pub(crate) fn count(&self, number: u32) -> u32 {
        let mut counts = self.0.lock().expect("not poisoned");
        let runs = counts.entry(number).or_default();
        *runs += 1;
        *runs
    }

    pub(crate) fn of(&self, number: u32) -> u32 {
        let counts = self.0.lock().expect("not poisoned");
        counts.get(&number).copied().unwrap_or_default()
    }

    /// The jobs that were handled a number of times other than `expected`.
    pub(crate) fn other_than(
        &self,
        expected: u32,
        numbers: std::ops::Range<u32>,
    ) -> Vec<(u32, u32)> {
        let runs = numbers.map(|number| (number, self.of(number)));
        runs.filter(|(_, runs)| *runs != expected).collect()
    }
}

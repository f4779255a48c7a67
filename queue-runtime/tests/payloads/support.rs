//! The world outside of the processes, and their messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::payloads::{MemoryPayloads, PayloadStore};
use queue_runtime::testing::TokioClock;
use queue_runtime::{Delivery, Message, QueueService, StorageRetry};
use queue_tests::incompressible;
use serde::{Deserialize, Serialize};

use crate::life::{Life, Mortal, MortalStore};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "films", poison_threshold = 1, visibility_timeout = "30s")]
pub(crate) struct Film {
    pub(crate) title: String,
    pub(crate) frames: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "trailers", poison_threshold = 1, visibility_timeout = "30s")]
pub(crate) struct Trailer {
    pub(crate) title: String,
    pub(crate) frames: String,
}

/// More than a body takes, and less than is worth waiting for.
pub(crate) const LARGE: usize = 100 * 1024;

pub(crate) fn film(title: &str) -> Film {
    Film {
        title: title.to_owned(),
        frames: incompressible(LARGE),
    }
}

/// A storage and a store of payloads, and what was handled.
pub(crate) struct World {
    pub(crate) storage: Arc<MemoryBackend>,
    pub(crate) store: Arc<dyn PayloadStore>,
    pub(crate) handled: Arc<Mutex<Vec<String>>>,
    acknowledged: Mutex<Vec<String>>,
    refused: Mutex<Vec<String>>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(TokioClock::new());
        Self {
            storage: Arc::new(MemoryBackend::new(clock.clone())),
            store: Arc::new(MemoryPayloads::with_clock(clock)),
            handled: Arc::default(),
            acknowledged: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Starts a process.
    pub(crate) async fn process(&self, life: &Arc<Life>) -> QueueService {
        let storage = Mortal::new(Arc::clone(&self.storage), Arc::clone(life));
        let store = MortalStore {
            inner: Arc::clone(&self.store),
            life: Arc::clone(life),
        };
        let service = QueueService::with_backend(Arc::new(storage))
            .clock(Arc::new(TokioClock::new()))
            .storage_retry(StorageRetry::never())
            .payloads(Arc::new(store))
            .on_current_runtime();
        service.connect().await.expect("connects")
    }

    /// Returns the names of all objects in the store.
    pub(crate) async fn objects(&self) -> Vec<String> {
        let page = self.store.list("", None).await.expect("listed");
        assert_eq!(page.next, None);
        page.objects.into_iter().map(|object| object.name).collect()
    }

    pub(crate) fn handle(&self, title: &str) {
        note(&self.handled, title);
    }

    pub(crate) fn acknowledge(&self, title: &str) {
        note(&self.acknowledged, title);
    }

    pub(crate) fn refuse(&self, title: &str) {
        note(&self.refused, title);
    }

    pub(crate) fn acknowledged(&self) -> Vec<String> {
        self.acknowledged.lock().expect("no panic").clone()
    }

    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.lock().expect("no panic").clone()
    }

    pub(crate) fn handled(&self) -> Vec<String> {
        self.handled.lock().expect("no panic").clone()
    }
}

pub(crate) fn note(titles: &Mutex<Vec<String>>, title: &str) {
    titles.lock().expect("no panic").push(title.to_owned());
}

pub(crate) async fn accepted<M: Message>(service: &QueueService) -> Delivery<M> {
    let accepted = service.accept::<M>().await.expect("received");
    accepted.expect("there is a message")
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

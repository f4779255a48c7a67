//! The world outside of the processes, and their messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::payloads::{MemoryPayloads, PayloadStore};
use queue_runtime::policy::StorageRetry;
use queue_runtime::testing::TokioClock;
use queue_runtime::{Delivery, Disposition, Message, QueueService, Received, RetryPolicy};
use queue_tests::{DAY, HOUR, incompressible};
use serde::{Deserialize, Serialize};

use crate::payloads::life::{Life, Mortal, MortalStore};

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

pub(crate) fn long_film(length: usize) -> Film {
    Film {
        frames: incompressible(length),
        ..film("long")
    }
}

/// Submits, accepts and completes a film of this length.
pub(crate) async fn goes_through(service: &QueueService, length: usize) {
    let submitted = service.submit(long_film(length)).await;
    submitted.expect("submitted");
    let delivery = accepted::<Film>(service).await;
    assert_eq!(delivery.frames.len(), length);
    delivery.complete().await.expect("completed");
}

/// Goes through everything that a message goes through: a retry, the poison queue, a redrive, a follow-up, a request and
/// its reply.
pub(crate) async fn goes_through_all(service: &QueueService, length: usize) {
    let shown = long_film(length);
    service.submit(shown.clone()).await.expect("submitted");
    let torn = service
        .listener(async |_: Received<Film>| Disposition::retry("the reel is torn"))
        .retry(RetryPolicy::fixed(Duration::from_millis(10)))
        .poison_threshold(2);
    let torn = torn.until_empty().start().expect("starts").drained().await;
    assert_eq!((torn.info.retried, torn.info.poisoned), (1, 1));
    let poisoned = service.queue::<Film>().poison().expect("valid");
    let redriven = poisoned.redrive().run().await.expect("redriven");
    assert_eq!(redriven.redriven, 1);
    let delivery = accepted::<Film>(service).await;
    assert!(*delivery.message() == shown, "another film");
    let trailer = Trailer {
        title: "a trailer".to_owned(),
        frames: incompressible(length / 2),
    };
    let complete = Disposition::complete().then(&trailer);
    delivery.settle(complete).await.expect("completed");
    let delivery = accepted::<Trailer>(service).await;
    assert!(*delivery.message() == trailer, "another trailer");
    delivery.complete().await.expect("completed");

    let answering = service.listener(async |film: Received<Film>| {
        Disposition::reply(&Trailer {
            title: film.title.clone(),
            frames: film.frames.clone(),
        })
    });
    let answering = answering.start().expect("starts");
    let reply = service.request(shown.clone()).reply::<Trailer>();
    let reply = reply.timeout(Duration::from_secs(300)).await;
    assert!(
        reply.expect("answered").frames == shown.frames,
        "another reply"
    );
    let stopped = answering.shutdown(Duration::from_secs(60)).await;
    assert!(stopped.graceful);
}

/// A storage and a payload store, and what was handled.
pub(crate) struct World {
    pub(crate) storage: Arc<dyn Backend>,
    pub(crate) store: Arc<dyn PayloadStore>,
    pub(crate) handled: Arc<Mutex<Vec<String>>>,
    acknowledged: Mutex<Vec<String>>,
    refused: Mutex<Vec<String>>,
    /// Longer than any lease, and than a message waits for its payload.
    pub(crate) rest: Duration,
    /// After which marks are not needed.
    pub(crate) retention: Duration,
}

impl World {
    /// A world in memory, of paused time.
    pub(crate) fn new() -> Self {
        let clock = Arc::new(TokioClock::new());
        let storage = Arc::new(MemoryBackend::new(clock.clone()));
        let store = Arc::new(MemoryPayloads::with_clock(clock));
        Self {
            rest: HOUR,
            retention: 30 * DAY,
            ..Self::of(storage, store)
        }
    }

    /// A world of real time.
    pub(crate) fn of(storage: Arc<dyn Backend>, store: Arc<dyn PayloadStore>) -> Self {
        Self {
            storage,
            store,
            rest: Duration::from_secs(65),
            retention: Duration::from_secs(1),
            handled: Arc::default(),
            acknowledged: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Whether its time is real: on a slow machine a lease may end, and a request may fail.
    pub(crate) fn is_real(&self) -> bool {
        self.retention < HOUR
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
            .storage_retry(if self.is_real() {
                StorageRetry::default()
            } else {
                StorageRetry::never()
            })
            .payloads(Arc::new(store))
            .on_current_runtime();
        service.connect().await.expect("connects")
    }

    /// Returns the names of all objects in the store.
    pub(crate) async fn objects(&self) -> Vec<String> {
        objects(&*self.store, "").await
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

pub(crate) async fn objects(store: &dyn PayloadStore, prefix: &str) -> Vec<String> {
    let page = store.list(prefix, None).await.expect("listed");
    assert_eq!(page.next, None);
    page.objects.into_iter().map(|object| object.name).collect()
}

pub(crate) fn note(titles: &Mutex<Vec<String>>, title: &str) {
    titles.lock().expect("no panic").push(title.to_owned());
}

pub(crate) async fn accepted<M: Message>(service: &QueueService) -> Delivery<M> {
    let accepted = service.accept::<M>().wait(Duration::from_secs(60)).await;
    accepted.expect("received").expect("there is a message")
}

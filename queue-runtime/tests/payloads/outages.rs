//! A store that cannot be reached now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::backend::{Created, MemoryBackend};
use queue_runtime::payloads::{MemoryPayloads, ObjectPage, PayloadStore};
use queue_runtime::testing::TokioClock;
use queue_runtime::{
    AcceptError, Error, ErrorKind, ListenerEventKind, Operation, Outcome, QueueService, Received,
    Result, StorageRetry,
};

use crate::life::{Life, Mortal};
use crate::support::{Film, accepted, film};

/// A store that is unreachable while `is_down`.
#[derive(Debug, Default)]
struct Flaky {
    inner: MemoryPayloads,
    is_down: AtomicBool,
}

impl Flaky {
    fn check(&self, operation: Operation, outcome: Outcome) -> Result<()> {
        if self.is_down.load(SeqCst) {
            return Err(Error::new(ErrorKind::Unreachable, operation).with_outcome(outcome));
        }
        Ok(())
    }
}

#[async_trait]
impl PayloadStore for Flaky {
    async fn prepare(&self) -> Result<()> {
        self.check(Operation::StoreData, Outcome::Unknown)?;
        self.inner.prepare().await
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
        self.check(Operation::StoreData, Outcome::Unknown)?;
        self.inner.create(name, data).await
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        self.check(Operation::FetchData, Outcome::NotDone)?;
        self.inner.read(name, from, max).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.check(Operation::StoreData, Outcome::Unknown)?;
        self.inner.delete(name).await
    }

    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage> {
        self.check(Operation::ListData, Outcome::NotDone)?;
        self.inner.list(prefix, from).await
    }
}

async fn service(store: &Arc<Flaky>) -> QueueService {
    let clock = Arc::new(TokioClock::new());
    let storage = Arc::new(MemoryBackend::new(clock.clone()));
    let storage = Mortal::new(storage, Life::endless());
    let service = QueueService::with_backend(Arc::new(storage))
        .clock(clock)
        .storage_retry(StorageRetry::never())
        .payloads(store.clone())
        .on_current_runtime();
    service.connect().await.expect("connects")
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_payload_cannot_be_stored_is_not_submitted() {
    let store = Arc::new(Flaky::default());
    let service = service(&store).await;
    service.submit(film("stored")).await.expect("submitted");
    store.is_down.store(true, SeqCst);
    let error = service
        .submit(film("not stored"))
        .await
        .expect_err("no store");
    assert!(!error.is_unknown(), "{error}");
    let told = error.to_string();
    assert!(told.contains("store of payloads"), "{told}");
    assert_eq!(error.message.title, "not stored");
    store.is_down.store(false, SeqCst);
    let delivery = accepted::<Film>(&service).await;
    assert_eq!(delivery.title, "stored");
    delivery.complete().await.expect("completed");
    tokio::time::sleep(crate::support::HOUR).await;
    assert!(service.accept::<Film>().await.expect("nothing").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_fetched_costs_no_attempt() {
    let store = Arc::new(Flaky::default());
    let service = service(&store).await;
    service.submit(film("film")).await.expect("submitted");
    store.is_down.store(true, SeqCst);
    let error = service.accept::<Film>().await.expect_err("an outage");
    assert!(matches!(error, AcceptError::Data(_)), "{error}");

    let listener = service.listener(async |film: Received<Film>| assert_eq!(film.attempt(), 1));
    let mut events = listener.events();
    let listener = listener.until_empty().start().expect("starts");
    loop {
        let event = events.recv().await.expect("it runs").kind;
        if matches!(event, ListenerEventKind::DataUnavailable { .. }) {
            break;
        }
    }
    let health = service.health();
    assert!(!health.is_healthy(), "{health}");
    let told = health.to_string();
    assert!(
        told.starts_with("messages wait for their payloads: "),
        "{told}"
    );
    store.is_down.store(false, SeqCst);
    let report = listener.drained().await;
    assert_eq!((report.info.completed, report.info.retried), (1, 0));
    assert!(service.health().is_healthy());
}

/// Without its mark a message is not deleted: its copies could not tell that it is done.
#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_marked_is_not_deleted() {
    let store = Arc::new(Flaky::default());
    let service = service(&store).await;
    service.submit(film("film")).await.expect("submitted");
    let delivery = accepted::<Film>(&service).await;
    store.is_down.store(true, SeqCst);
    delivery.complete().await.expect_err("no store");
    store.is_down.store(false, SeqCst);
    tokio::time::sleep(crate::support::HOUR).await;
    let delivery = accepted::<Film>(&service).await;
    delivery.complete().await.expect("completed");
    let left = store.inner.list("data/", None).await.expect("listed");
    assert!(left.objects.is_empty(), "{left:?}");
}

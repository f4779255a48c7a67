//! A store that cannot be reached now and then.

use std::future::{IntoFuture as _, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::backend::{Backend as _, Created, MemoryBackend};
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::payloads::{MemoryPayloads, ObjectPage, PayloadStore};
use queue_runtime::policy::StorageRetry;
use queue_runtime::receive::AcceptErrorKind;
use queue_runtime::testing::TokioClock;
use queue_runtime::wire::Body;
use queue_runtime::{
    Error, ErrorKind, ListenerEventKind, ListenerHandle, QueueService, Received, Result,
};
use queue_tests::HOUR;

use crate::payloads::life::{Life, Mortal};
use crate::payloads::support::{Film, accepted, film};

/// A store that is unreachable while `is_down`, and answers no read while `hangs`.
#[derive(Debug, Default)]
struct Flaky {
    inner: MemoryPayloads,
    is_down: AtomicBool,
    hangs: AtomicBool,
    reads: AtomicU32,
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
        self.reads.fetch_add(1, SeqCst);
        if self.hangs.load(SeqCst) {
            return pending().await;
        }
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
    service_on(store).await.0
}

/// A service, and the storage below it.
async fn service_on(store: &Arc<Flaky>) -> (QueueService, Arc<MemoryBackend>) {
    let clock = Arc::new(TokioClock::new());
    let memory = Arc::new(MemoryBackend::new(clock.clone()));
    let storage = Mortal::new(memory.clone(), Life::endless());
    let service = QueueService::with_backend(Arc::new(storage))
        .clock(clock)
        .storage_retry(StorageRetry::never())
        .payloads(store.clone())
        .on_current_runtime();
    (service.connect().await.expect("connects"), memory)
}

/// A service with a film.
async fn with_film() -> (Arc<Flaky>, QueueService) {
    let store = Arc::new(Flaky::default());
    let service = service(&store).await;
    service.submit(film("film")).await.expect("submitted");
    (store, service)
}

/// Starts a listener, and waits until it has missed the data of a message.
async fn without_data(service: &QueueService) -> ListenerHandle {
    let listener = service.listener(async |film: Received<Film>| assert_eq!(film.attempt(), 1));
    let mut events = listener.events();
    let listener = listener.until_empty().start().expect("starts");
    loop {
        let event = events.recv().await.expect("it runs").kind;
        if matches!(event, ListenerEventKind::DataUnavailable { .. }) {
            break;
        }
    }
    listener
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
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
    let told = error.to_string();
    assert!(told.contains("payload store"), "{told}");
    assert_eq!(error.message.title, "not stored");
    store.is_down.store(false, SeqCst);
    let delivery = accepted::<Film>(&service).await;
    assert_eq!(delivery.title, "stored");
    delivery.complete().await.expect("completed");
    tokio::time::sleep(HOUR).await;
    assert!(service.accept::<Film>().await.expect("nothing").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_fetched_costs_no_attempt() {
    let (store, service) = with_film().await;
    store.is_down.store(true, SeqCst);
    let error = service.accept::<Film>().await.expect_err("an outage");
    assert!(matches!(error.kind, AcceptErrorKind::Data(_)), "{error}");

    let listener = without_data(&service).await;
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

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_stops_the_handling_and_costs_no_attempts() {
    let store = Arc::new(Flaky::default());
    let service = service(&store).await;
    for _ in 0..20 {
        service.submit(film("film")).await.expect("submitted");
    }
    store.is_down.store(true, SeqCst);
    let reads = store.reads.load(SeqCst);
    let listener = service.listener(async |film: Received<Film>| assert_eq!(film.attempt(), 1));
    let mut events = listener.events();
    let listener = listener.until_empty().start().expect("starts");
    let mut failures = 0;
    while failures < 10 {
        let event = events.recv().await.expect("it runs").kind;
        if let ListenerEventKind::DataUnavailable { after, error } = event {
            failures += 1;
            assert_eq!(error.operation(), Operation::FetchData);
            let backs_off = failures < 10 || after >= Duration::from_secs(10);
            assert!(backs_off, "{after:?}");
        }
    }
    tokio::time::sleep(HOUR).await;
    assert_eq!(listener.info().completed, 0);
    let reads = store.reads.load(SeqCst) - reads;
    assert!((10..20_000).contains(&reads), "{reads} requests in an hour");

    store.is_down.store(false, SeqCst);
    let report = listener.drained().await;
    assert_eq!((report.info.completed, report.info.retried), (20, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_unavailable() {
    let (store, service) = with_film().await;
    store.hangs.store(true, SeqCst);
    let listener = without_data(&service).await;
    store.hangs.store(false, SeqCst);
    let report = listener.drained().await;
    assert_eq!((report.info.completed, report.info.retried), (1, 0));
}

/// Waits until a read of the store has begun that is not answered.
async fn hanging(store: &Flaky, reads: u32) {
    while store.reads.load(SeqCst) == reads {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_stops_does_not_wait_for_the_data() {
    let (store, service) = with_film().await;
    store.hangs.store(true, SeqCst);
    let reads = store.reads.load(SeqCst);
    let listener = service.listener(async |_: Received<Film>| {});
    let listener = listener.start().expect("starts");
    hanging(&store, reads).await;
    let stopped = tokio::time::timeout(Duration::from_secs(1), listener.shutdown(HOUR));
    stopped.await.expect("it does not wait");
    store.hangs.store(false, SeqCst);
    let film = accepted::<Film>(&service).await;
    assert_eq!(film.attempt(), 1, "handed back at once");
}

/// Fetching may be what ends the process, so it is a part of the attempt.
#[tokio::test(start_paused = true)]
async fn a_message_on_its_last_chance_is_marked_before_its_data_is_fetched() {
    let store = Arc::new(Flaky::default());
    let (service, memory) = service_on(&store).await;
    service.submit(film("film")).await.expect("submitted");
    let queue = "films".parse().expect("valid");
    let lease = Duration::from_secs(30);
    let received = service.backend().receive(&queue, 1, lease).await;
    assert_eq!(received.expect("received").len(), 1);
    tokio::time::sleep(lease).await;

    store.hangs.store(true, SeqCst);
    let reads = store.reads.load(SeqCst);
    let accepting = tokio::spawn(service.accept::<Film>().into_future());
    hanging(&store, reads).await;
    let page = memory.browse(&queue, None, 10).await.expect("browsed");
    let Body::Event(event) = Body::read(&page.messages[0].body, usize::MAX) else {
        panic!("{page:?}")
    };
    assert!(event.envelope.attempts.last_chance);
    accepting.abort();
}

/// Without its mark a message is not deleted: its copies could not tell that it is done.
#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_marked_is_not_deleted() {
    let (store, service) = with_film().await;
    let delivery = accepted::<Film>(&service).await;
    store.is_down.store(true, SeqCst);
    delivery.complete().await.expect_err("no store");
    store.is_down.store(false, SeqCst);
    tokio::time::sleep(HOUR).await;
    let delivery = accepted::<Film>(&service).await;
    delivery.complete().await.expect("completed");
    let left = store.inner.list("data/", None).await.expect("listed");
    assert!(left.objects.is_empty(), "{left:?}");
}

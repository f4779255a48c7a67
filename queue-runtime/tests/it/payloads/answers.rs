//! Answers that are not the store's, or not whole, and requests that are carried out twice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{ApplyError, Backend, Created, MemoryBackend, Op, OpOutcomes, Ops};
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::payloads::{MemoryPayloads, ObjectPage, PayloadStore};
use queue_runtime::policy::StorageRetry;
use queue_runtime::receive::AcceptErrorKind;
use queue_runtime::testing::TokioClock;
use queue_runtime::{Error, ErrorKind, QueueName, QueueService, Result};
use queue_tests::HOUR;

use crate::payloads::life::{Life, Mortal};
use crate::payloads::support::{Film, World, accepted, film};

/// What becomes of an answer.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// Two thirds of it arrive.
    Cut,
    /// It is another program's.
    Page(&'static str),
    Unreachable,
    /// A creation is not carried out, and said to have found the object.
    Existed,
    Nothing,
}

/// A store some of whose answers are changed, and whose other requests to create are carried out twice.
#[derive(Debug)]
struct Changing {
    inner: Arc<dyn PayloadStore>,
    /// In their order, the changes of the next read of an object whose name begins in this way, or of its next creation.
    changes: Mutex<VecDeque<(&'static str, Change)>>,
}

impl Changing {
    fn of(inner: Arc<dyn PayloadStore>) -> Arc<Self> {
        let changes = Mutex::default();
        Arc::new(Self { inner, changes })
    }

    fn change(&self, prefix: &'static str, changes: &[Change]) {
        let changes = changes.iter().map(|change| (prefix, *change));
        self.changes.lock().expect("no panic").extend(changes);
    }

    fn next(&self, name: &str, creates: bool) -> Option<Change> {
        let mut changes = self.changes.lock().expect("no panic");
        let (prefix, change) = changes.front()?;
        let is_next = name.starts_with(prefix) && creates == matches!(change, Change::Existed);
        is_next
            .then(|| changes.pop_front())?
            .map(|(_, change)| change)
    }
}

#[async_trait]
impl PayloadStore for Changing {
    async fn prepare(&self) -> Result<()> {
        self.inner.prepare().await
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
        if self.next(name, true).is_some() {
            return Ok(Created::Existed);
        }
        self.inner.create(name, data.clone()).await?;
        self.inner.create(name, data).await
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        let answer = self.inner.read(name, from, max).await?;
        Ok(match self.next(name, false) {
            None | Some(Change::Nothing | Change::Existed) => answer,
            Some(Change::Cut) => answer.map(|answer| answer.slice(..answer.len() * 2 / 3)),
            Some(Change::Page(page)) => Some(page.into()),
            Some(Change::Unreachable) => {
                return Err(Error::new(ErrorKind::Unreachable, Operation::FetchData));
            }
        })
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name).await
    }

    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage> {
        self.inner.list(prefix, from).await
    }
}

async fn process(storage: &Arc<dyn Backend>, store: Arc<dyn PayloadStore>) -> QueueService {
    let storage = Mortal::new(Arc::clone(storage), Life::endless());
    connected(Arc::new(storage), store).await
}

async fn connected(storage: Arc<dyn Backend>, store: Arc<dyn PayloadStore>) -> QueueService {
    let service = QueueService::with_backend(storage)
        .clock(Arc::new(TokioClock::new()))
        .storage_retry(StorageRetry::never())
        .payloads(store)
        .on_current_runtime();
    service.connect().await.expect("connects")
}

const PAGE: &str = "<html>Welcome! Please log in.</html>";
const OTHER_PAGE: &str = "<html>Still here?</html>";

/// A world in which `film` was submitted, and a process some of whose answers can be changed.
async fn submitted() -> (World, Arc<Changing>, QueueService) {
    let world = World::new();
    let store = Changing::of(Arc::clone(&world.store));
    let service = process(&world.storage, store.clone()).await;
    service.submit(film("film")).await.expect("submitted");
    (world, store, service)
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_is_cut_or_a_page_is_never_believed() {
    for change in [
        Change::Cut,
        Change::Page(PAGE),
        Change::Page("+123456789abcdef0123456789abcdef"),
    ] {
        let (world, _, _) = submitted().await;
        let store = Changing::of(Arc::clone(&world.store));
        let service = process(&world.storage, store.clone()).await;
        store.change("identity", &[change; 2]);
        let error = service
            .submit(film("second"))
            .await
            .expect_err("no identity");
        assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
        assert!(error.to_string().contains("payload store"), "{error}");
        service.submit(film("third")).await.expect("submitted");
        let another = world.process(&Life::endless()).await;
        for title in ["film", "third"] {
            let delivery = accepted::<Film>(&another).await;
            assert_eq!((delivery.attempt(), &*delivery.title), (1, title));
            delivery.complete().await.expect("completed");
        }
    }
}

/// An empty one in its place, such as the folder under an unmounted disk, gets no identity from who has known another.
#[tokio::test(start_paused = true)]
async fn a_store_that_lost_its_identity_takes_no_submission() {
    let (world, store, service) = submitted().await;
    let identity = world
        .store
        .read("identity", 0, 64)
        .await
        .expect("read")
        .expect("there");
    world.store.delete("identity").await.expect("deleted");
    // After a while, and after an error.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for _ in 0..2 {
        let error = service.submit(film("lost")).await.expect_err("no identity");
        assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
        assert!(error.to_string().contains("payload store"), "{error}");
    }
    let swept = service.payloads().expect("a store").sweep().run().await;
    swept.expect_err("it is not the store");
    world
        .store
        .create("identity", identity)
        .await
        .expect("created");
    service.submit(film("second")).await.expect("submitted");
    world.store.delete("identity").await.expect("deleted");
    store.change("done/", &[Change::Unreachable]);
    let error = service.accept::<Film>().await.expect_err("unreachable");
    assert!(matches!(error.kind, AcceptErrorKind::Data(_)), "{error}");
    service.submit(film("lost")).await.expect_err("no identity");
    assert!(!world.objects().await.contains(&"identity".to_owned()));
}

/// Only what is wrong twice in the same way, in the right store, is damage.
#[tokio::test(start_paused = true)]
async fn a_page_in_place_of_an_answer_is_no_damage_and_no_mark() {
    let (_, store, service) = submitted().await;
    let page = ("data/", Change::Page(PAGE));
    let read_again = ("identity", Change::Nothing);
    let wrong = [
        (vec![page, ("identity", Change::Page(PAGE))], "identity"),
        (
            vec![page, read_again, ("data/", Change::Page(OTHER_PAGE))],
            "another way each time",
        ),
        (
            vec![page, read_again, ("data/", Change::Unreachable)],
            "could not be reached",
        ),
        (vec![("done/", Change::Page(PAGE))], "no mark"),
        (vec![("done/", Change::Page("do"))], "no mark"),
    ];
    for (changes, expected) in wrong {
        *store.changes.lock().expect("no panic") = changes.into();
        let AcceptErrorKind::Data(error) = service.accept::<Film>().await.expect_err(expected).kind
        else {
            panic!("{expected}");
        };
        assert!(format!("{error:?}").contains(expected), "{error:?}");
        tokio::time::sleep(HOUR).await;
    }
    // Once wrong, and right when it is read again.
    *store.changes.lock().expect("no panic") = vec![page].into();
    let delivery = accepted::<Film>(&service).await;
    assert_eq!((delivery.attempt(), &*delivery.title), (1, "film"));
    delivery.complete().await.expect("completed");
}

/// Without its mark, the message of a payload is not deleted.
#[tokio::test(start_paused = true)]
async fn a_mark_that_is_only_said_to_exist_is_none() {
    let (world, store, service) = submitted().await;
    let before = world.objects().await;
    let delivery = accepted::<Film>(&service).await;
    // However often it is tried.
    store.change("done/", &[Change::Existed; 100]);
    let error = delivery.complete().await.expect_err("there is no mark");
    let told = format!("{error:?}");
    assert!(told.contains("said to exist, and is not there"), "{told}");
    drop(error);
    assert_eq!(world.objects().await, before);
    tokio::time::sleep(HOUR).await;
    let films = QueueName::from_static("films");
    let left = world.storage.peek(&films, 1).await.expect("peeked");
    assert_eq!(left.len(), 1, "the message was deleted");
}

/// The second of two equal creations finds the object of the first.
#[tokio::test(start_paused = true)]
async fn a_doubled_upload_is_ours() {
    let (world, _, _) = submitted().await;
    let service = process(&world.storage, Changing::of(Arc::clone(&world.store))).await;
    let second = film("second");
    service.submit(second.clone()).await.expect("submitted");
    let first = accepted::<Film>(&service).await;
    first.complete().await.expect("completed");
    let delivery = accepted::<Film>(&service).await;
    assert!(*delivery.message() == second, "another film");
}

/// A storage whose updates of bodies are carried out twice, by a box in between that repeats what it sends.
#[derive(Debug)]
struct Doubling(Mortal);

#[async_trait]
impl Backend for Doubling {
    forward_backend!(self => self.0; all but apply);

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let has_body = |op: &Op| {
            matches!(
                op,
                Op::Renew { body: Some(_), .. } | Op::PutBack { body: Some(_), .. }
            )
        };
        if ops.iter().any(has_body) {
            self.0.apply(ops.clone()).await?;
        }
        self.0.apply(ops).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_doubled_submission_is_unknown_and_keeps_its_payload() {
    let storage = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
    let storage = Doubling(Mortal::new(storage, Life::endless()));
    let service = connected(Arc::new(storage), Arc::new(MemoryPayloads::new())).await;
    let sent = film("film");
    let error = service
        .submit(sent.clone())
        .await
        .expect_err("the second answer");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    let delivery = accepted::<Film>(&service).await;
    assert!(*delivery.message() == sent, "another film");
    delivery.complete().await.expect("completed");
}

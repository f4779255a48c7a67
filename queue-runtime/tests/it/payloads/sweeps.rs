//! What a sweep deletes, and what it leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::backend::{Backend as _, Created};
use queue_runtime::error::Operation;
use queue_runtime::payloads::{MemoryPayloads, ObjectPage, PayloadStore, Sweep, SweepReason};
use queue_runtime::{Error, ErrorKind, QueueName, QueueService, Result};
use queue_tests::{DAY, HOUR};

use crate::payloads::life::Life;
use crate::payloads::support::{Film, World, accepted, film};

const FILMS: QueueName = QueueName::from_static("films");
const POISON: QueueName = QueueName::from_static("films-poison");

fn sweep(service: &QueueService) -> Sweep {
    service.payloads().expect("it has a store").sweep()
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_is_referred_to_is_left() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    service.submit(film("waits")).await.expect("submitted");
    tokio::time::sleep(400 * DAY).await;
    let swept = sweep(&service).run().await.expect("swept");
    assert_eq!((swept.examined, swept.payloads, swept.marks), (1, 0, 0));
    assert_eq!(accepted::<Film>(&service).await.title, "waits");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_deletes_nothing_and_tells_the_same() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    let expiring = service.submit(film("expires")).time_to_live(HOUR);
    expiring.await.expect("submitted");
    tokio::time::sleep(9 * DAY).await;
    let before = world.objects().await;
    let dry = sweep(&service).dry_run().await.expect("looked");
    assert_eq!(world.objects().await, before);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let each = move |step: &queue_runtime::payloads::SweepStep<'_>| {
        noted
            .lock()
            .expect("no panic")
            .push((step.object.name.clone(), step.reason));
    };
    let swept = sweep(&service).each(each).run().await.expect("swept");
    assert_eq!(dry, swept);
    assert_eq!((swept.payloads, swept.marks), (1, 0));
    assert!(swept.bytes > 50_000, "{swept:?}");
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].1, SweepReason::Expired);
    assert_eq!(world.objects().await, ["identity"]);
}

#[tokio::test(start_paused = true)]
async fn payloads_of_a_cleared_queue_are_deleted_when_it_is_empty() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    for queue in [FILMS, POISON] {
        world
            .storage
            .create_queue(&queue, &Default::default())
            .await
            .expect("created");
    }
    service.submit(film("cleared")).await.expect("submitted");
    tokio::time::sleep(2 * HOUR).await;
    let cleared = || sweep(&service).cleared([FILMS, POISON]).expect("names");
    let error = cleared().run().await.expect_err("it has a message").error;
    assert!(
        error.to_string().contains("number of messages: 1"),
        "{error}"
    );

    world.storage.clear(&FILMS).await.expect("cleared");
    // By itself a sweep cannot know it.
    let swept = sweep(&service).run().await.expect("swept");
    assert_eq!(swept.payloads, 0);
    let swept = cleared().run().await.expect("swept");
    assert_eq!(swept.payloads, 1);

    // What is new may belong to a message that is being submitted.
    service.submit(film("new")).await.expect("submitted");
    world.storage.clear(&FILMS).await.expect("cleared");
    assert_eq!(cleared().run().await.expect("swept").payloads, 0);
}

#[tokio::test(start_paused = true)]
async fn what_others_put_there_is_left_and_counted() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    service.submit(film("film")).await.expect("submitted");
    world
        .store
        .create("data/notes.txt", "mine".into())
        .await
        .expect("created");
    tokio::time::sleep(40 * DAY).await;
    let swept = sweep(&service)
        .cleared(Vec::<QueueName>::new())
        .expect("none")
        .run()
        .await
        .expect("swept");
    assert_eq!((swept.examined, swept.unknown, swept.payloads), (1, 1, 0));
    assert!(world.objects().await.contains(&"data/notes.txt".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_interval_slows_a_sweep_down() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    for _ in 0..4 {
        service.submit(film("film")).await.expect("submitted");
    }
    let started = tokio::time::Instant::now();
    let swept = sweep(&service)
        .interval(Duration::from_secs(10))
        .run()
        .await
        .expect("swept");
    assert_eq!(swept.examined, 4);
    assert_eq!(started.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_store_has_nothing_to_sweep() {
    let service = queue_runtime::testing::service().await;
    assert!(service.payloads().is_none());
}

/// A store whose container does not exist before it is prepared.
#[derive(Debug)]
struct Container {
    inner: MemoryPayloads,
    exists: AtomicBool,
}

impl Container {
    fn exists(&self) -> bool {
        self.exists.load(Ordering::Relaxed)
    }

    fn check(&self, operation: Operation) -> Result<()> {
        let missing = || Error::new(ErrorKind::Storage, operation);
        self.exists().then_some(()).ok_or_else(missing)
    }
}

#[async_trait]
impl PayloadStore for Container {
    async fn prepare(&self) -> Result<()> {
        self.exists.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
        self.check(Operation::StoreData)?;
        self.inner.create(name, data).await
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        self.check(Operation::FetchData)?;
        self.inner.read(name, from, max).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.check(Operation::StoreData)?;
        self.inner.delete(name).await
    }

    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage> {
        self.check(Operation::ListData)?;
        self.inner.list(prefix, from).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_exist_is_not_created_by_a_sweep() {
    let container = Arc::new(Container {
        inner: MemoryPayloads::new(),
        exists: AtomicBool::new(false),
    });
    let world = World::of(World::new().storage, Arc::clone(&container) as _);
    let service = world.process(&Life::endless()).await;
    let error = sweep(&service).run().await.expect_err("there is none");
    assert_eq!(error.error.kind(), ErrorKind::Storage);
    sweep(&service).dry_run().await.expect_err("there is none");
    assert!(!container.exists());
    service.submit(film("film")).await.expect("submitted");
    assert!(container.exists());
    assert_eq!(sweep(&service).run().await.expect("swept").examined, 1);
}

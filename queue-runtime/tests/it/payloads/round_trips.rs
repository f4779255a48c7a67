//! What messages go through, with payloads in a store.

use std::sync::Arc;

use queue_runtime::backend::{Backend as _, MemoryBackend};
use queue_runtime::payloads::MemoryPayloads;
use queue_runtime::{Message, QueueName, QueueService};
use queue_tests::{DAY, HOUR};
use serde::{Deserialize, Serialize};

use crate::payloads::life::Life;
use crate::payloads::support::{
    Film, World, accepted, film, goes_through, goes_through_all, objects,
};

const MIB: usize = 1024 * 1024;

#[tokio::test(start_paused = true)]
async fn a_large_message_goes_through_all_and_leaves_nothing() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    goes_through_all(&service, 5 * MIB).await;
    assert_eq!(objects(&*world.store, "data/").await, Vec::<String>::new());
}

#[cfg(feature = "object-store")]
#[tokio::test]
async fn a_large_message_goes_through_all_with_a_folder_beside_sqlite() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}", directory.path().join("queue.db").display());
    let folder = directory.path().join("payloads");
    let store = queue_runtime::payloads::ObjectPayloads::create_in_folder(folder).expect("opens");
    let store = Arc::new(store);
    let service = QueueService::builder(&url).payloads(store.clone());
    let service = service.connect().await.expect("connects");
    goes_through_all(&service, 5 * MIB).await;
    goes_through(&service, 63 * MIB).await;
    assert_eq!(objects(&*store, "data/").await, Vec::<String>::new());
}

/// What fits its message takes no request to the store.
#[tokio::test(start_paused = true)]
async fn a_small_message_does_not_touch_the_store() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    let small = Film {
        frames: "x".repeat(1_000_000),
        ..film("compressible")
    };
    service.submit(small.clone()).await.expect("submitted");
    let delivery = accepted::<Film>(&service).await;
    assert!(*delivery.message() == small, "another film");
    delivery.complete().await.expect("completed");
    assert_eq!(world.objects().await, Vec::<String>::new());
}

/// A message of a queue with a time to live keeps its payload on the poison queue, however long that takes.
#[tokio::test(start_paused = true)]
async fn a_poison_message_keeps_its_payload_beyond_its_time_to_live() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    let poison = film("poison");
    for film in [poison.clone(), film("expires")] {
        let submitted = service.submit(film).time_to_live(HOUR);
        submitted.await.expect("submitted");
    }
    let delivery = accepted::<Film>(&service).await;
    assert_eq!(delivery.title, "poison");
    delivery.reject("the reel is torn").await.expect("moved");
    tokio::time::sleep(20 * DAY).await;
    let sweep = service.payloads().expect("it has a store").sweep();
    let swept = sweep.run().await.expect("swept");
    assert_eq!((swept.examined, swept.payloads), (2, 1));
    let poisoned = service.queue::<Film>().poison().expect("valid");
    assert_eq!(
        poisoned.redrive().run().await.expect("redriven").redriven,
        1
    );
    let delivery = accepted::<Film>(&service).await;
    assert!(*delivery.message() == poison, "another film");
    delivery.complete().await.expect("completed");
    assert_eq!(objects(&*world.store, "data/").await, Vec::<String>::new());
}

/// A service without the store leaves such messages where they are, and blames nothing on them.
#[tokio::test(start_paused = true)]
async fn a_service_without_the_store_leaves_the_message() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    service.submit(film("waits")).await.expect("submitted");
    let forgetful = QueueService::with_backend(world.storage.clone())
        .clock(Arc::new(queue_runtime::testing::TokioClock::new()))
        .on_current_runtime();
    let forgetful = forgetful.connect().await.expect("connects");
    for _ in 0..3 {
        let error = forgetful
            .accept::<Film>()
            .await
            .expect_err("it has no store");
        assert!(
            error
                .to_string()
                .contains("which this service does not have"),
            "{error}"
        );
    }
    let films: QueueName = "films".parse().expect("valid");
    let properties = world.storage.properties(&films).await.expect("read");
    assert_eq!(properties.approximate_count, 1);
    let delivery = accepted::<Film>(&service).await;
    assert_eq!(delivery.attempt(), 1);
}

/// What needs operations in one step says so: a store beside the messages has no part in it.
#[tokio::test(start_paused = true)]
async fn a_unique_message_needs_a_store_of_results_as_on_azure() {
    let clock = Arc::new(queue_runtime::testing::TokioClock::new());
    let storage = Arc::new(MemoryBackend::new(clock.clone()));
    let service = QueueService::with_backend(storage)
        .clock(clock)
        .payloads(Arc::new(MemoryPayloads::new()))
        .on_current_runtime();
    let service = service.connect().await.expect("connects");
    let refused = service.submit(Ticket { seat: 7 }).unique_until_settled();
    let error = refused.await.expect_err("it is not atomic").to_string();
    assert!(error.contains("set a store with `unique_in`"), "{error}");
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Ticket {
    #[message(key)]
    seat: u32,
}

#[tokio::test(start_paused = true)]
async fn large_and_small_messages_are_submitted_together() {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    let films: Vec<_> = (0..4)
        .map(|number| match number {
            2 => Film {
                title: "small".to_owned(),
                frames: String::new(),
            },
            _ => film(&format!("large {number}")),
        })
        .collect();
    let submitted = service.submit_all(films.clone()).await.expect("submitted");
    assert_eq!(submitted.len(), 4);
    for film in films {
        let delivery = accepted::<Film>(&service).await;
        assert!(*delivery.message() == film, "another film");
        delivery.complete().await.expect("completed");
    }
    assert_eq!(objects(&*world.store, "data/").await, Vec::<String>::new());
}

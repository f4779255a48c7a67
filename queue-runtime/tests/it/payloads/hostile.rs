//! Messages that say of their payloads what is not so, and stores that are not what they were.

use queue_runtime::backend::{Backend as _, BackendExt as _, NewMessage};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::receive::AcceptErrorKind;
use queue_runtime::wire::Body;
use queue_runtime::{ErrorKind, QueueName, QueueService};

use crate::payloads::life::Life;
use crate::payloads::support::{Film, World, accepted, film};

const FILMS: QueueName = QueueName::from_static("films");
const POISON: QueueName = QueueName::from_static("films-poison");

/// A world in which a film was submitted, and its event.
async fn submitted() -> (World, QueueService, String) {
    let world = World::new();
    let service = world.process(&Life::endless()).await;
    service.submit(film("film")).await.expect("submitted");
    let message = world
        .storage
        .peek(&FILMS, 1)
        .await
        .expect("peeked")
        .remove(0);
    let event = String::from_utf8(message.body.to_vec()).expect("text");
    (world, service, event)
}

fn reference(event: &str) -> &str {
    let (_, rest) = event.split_once(r#""dataref":""#).expect("it has one");
    rest.split_once('"').expect("it ends").0
}

/// Puts an event in place of the film's. Returns why it is poison, and checks that the payload was left alone.
async fn poisoned(change: impl Fn(&str) -> String) -> (PoisonReason, String) {
    let (world, service, event) = submitted().await;
    world.storage.clear(&FILMS).await.expect("cleared");
    let changed = change(&event);
    assert_ne!(changed, event);
    let before = world.objects().await;
    world
        .storage
        .put(&FILMS, NewMessage::new(changed))
        .await
        .expect("put");
    let accepted = service.accept::<Film>().await.expect("moved");
    assert!(accepted.is_none(), "it is handled");
    assert_eq!(world.objects().await, before);
    let moved = world
        .storage
        .peek(&POISON, 1)
        .await
        .expect("peeked")
        .remove(0);
    let Body::Event(event) = Body::read(&moved.body, usize::MAX) else {
        panic!("{:?}", moved.body)
    };
    let record = event.envelope.poison.clone().expect("it is poison");
    (record.reason, record.error.expect("it says why"))
}

#[tokio::test(start_paused = true)]
async fn a_payload_of_another_queue_is_not_fetched() {
    let (reason, error) = poisoned(|event| event.replace(":films:", ":orders:")).await;
    assert_eq!(reason, PoisonReason::Undecodable);
    assert!(error.contains("another queue's message"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_is_none_of_ours_is_not_followed() {
    for other in [
        "https://example.com/film",
        "../../films/film",
        "urn:queue:payload:../../films",
        "file:///etc/passwd",
    ] {
        let (reason, error) = poisoned(|event| event.replace(reference(event), other)).await;
        assert_eq!(reason, PoisonReason::Undecodable);
        assert!(error.contains("elsewhere"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_nobody_stored_is_missing() {
    // Another event's id, and another random number.
    let changes: [fn(&str) -> String; 2] = [
        |event| event.replacen(r#""id":""#, r#""id":"other-"#, 1),
        |event| {
            let reference = reference(event);
            let (rest, random) = reference.split_at(reference.len() - 32);
            let other: String = random.chars().rev().collect();
            event.replace(reference, &format!("{rest}{other}"))
        },
    ];
    for change in changes {
        let (reason, error) = poisoned(change).await;
        assert_eq!(reason, PoisonReason::Undecodable);
        assert!(error.contains("is not in the payload store"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_or_digest_that_is_not_so_is_damage() {
    let changes: [fn(&str) -> String; 2] = [
        |event| event.replacen(r#""datasize":1"#, r#""datasize":2"#, 1),
        |event| event.replacen(r#""datadigest":""#, r#""datadigest":"0"#, 1),
    ];
    for change in changes {
        let (reason, error) = poisoned(change).await;
        assert_eq!(reason, PoisonReason::Damaged);
        assert!(error.contains("does not expand"), "{error}");
    }
    let huge = |event: &str| event.replacen(r#""datasize":1"#, r#""datasize":900"#, 1);
    let (reason, error) = poisoned(huge).await;
    assert_eq!(reason, PoisonReason::Undecodable);
    assert!(error.contains("are allowed"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_returns_other_bytes_is_damage() {
    let (world, service, _) = submitted().await;
    let name = world
        .objects()
        .await
        .into_iter()
        .find(|name| name.starts_with("data/"));
    let name = name.expect("a payload");
    let length = world.store.read(&name, 0, usize::MAX).await.expect("read");
    let length = length.expect("it is there").len();
    world.store.delete(&name).await.expect("deleted");
    world
        .store
        .create(&name, vec![7; length].into())
        .await
        .expect("created");
    assert!(service.accept::<Film>().await.expect("moved").is_none());
    // What is damaged may yet be repaired.
    assert!(world.objects().await.contains(&name));
}

/// Whatever happens to the store, the message waits for it: it is there when the store is.
#[tokio::test(start_paused = true)]
async fn another_store_is_an_outage_and_not_a_missing_payload() {
    let (world, service, _) = submitted().await;
    let objects = world.objects().await;
    let data = objects
        .iter()
        .find(|name| name.starts_with("data/"))
        .expect("a payload");
    let read = async |name: &str| world.store.read(name, 0, usize::MAX).await.expect("read");
    let (identity, payload) = (read("identity").await, read(data).await);
    drop(service);

    // An empty one, then one of somebody else.
    world.store.delete("identity").await.expect("deleted");
    world.store.delete(data).await.expect("deleted");
    for other in [
        None,
        Some("0123456789abcdef0123456789abcdef"),
        Some("nonsense"),
    ] {
        if let Some(other) = other {
            world
                .store
                .create("identity", other.into())
                .await
                .expect("created");
        }
        let service = world.process(&Life::endless()).await;
        let AcceptErrorKind::Data(error) =
            service.accept::<Film>().await.expect_err("an outage").kind
        else {
            panic!("another error");
        };
        assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("this is not the store of the payloads"),
            "{text}"
        );
        world.store.delete("identity").await.expect("deleted");
    }

    let restored = [("identity", identity), (data.as_str(), payload)];
    for (name, bytes) in restored {
        let bytes = bytes.expect("it was there");
        world.store.create(name, bytes).await.expect("created");
    }
    let service = world.process(&Life::endless()).await;
    let delivery = accepted::<Film>(&service).await;
    assert_eq!((delivery.attempt(), &*delivery.title), (1, "film"));
}

/// A store that was replaced under a running process is noticed before anything is called missing.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_replaced_meanwhile_is_noticed() {
    let (world, service, _) = submitted().await;
    for name in world.objects().await {
        world.store.delete(&name).await.expect("deleted");
    }
    let error = service.accept::<Film>().await.expect_err("an outage");
    assert!(error.to_string().contains("`identity`"), "{error}");
}

/// A pending message that anybody forged costs nobody anything.
#[tokio::test(start_paused = true)]
async fn a_forged_pending_message_harms_no_other() {
    let (world, service, event) = submitted().await;
    let forged = event.replace(r#""type":""#, r#""type":"queue.pending","was":""#);
    let forged = forged.replace(r#""datasize""#, r#""size""#);
    world
        .storage
        .put(
            &FILMS,
            NewMessage::new(forged.replace(":films:", ":orders:")),
        )
        .await
        .expect("put");
    let delivery = accepted::<Film>(&service).await;
    delivery.complete().await.expect("completed");
    assert!(service.accept::<Film>().await.expect("nothing").is_none());
    let done = world.objects().await;
    let done = done.iter().filter(|name| name.starts_with("done/"));
    // That of the film, and that of nothing.
    assert_eq!(done.count(), 2);
}

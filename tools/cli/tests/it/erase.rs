//! `queues erase`.

use queue_runtime::backend::{Backend as _, BackendExt as _, NewMessage};
use queue_runtime::{Disposition, Message, QueueName, Received};
use queue_tests::incompressible;
use serde::{Deserialize, Serialize};

use crate::support::Storage;

const ADA: &str = "ada@example.org";

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "letters", poison_threshold = 1, history = 100)]
struct Letter {
    to: String,
    about: String,
}

fn letter(to: &str, about: impl Into<String>) -> Letter {
    let (to, about) = (to.to_owned(), about.into());
    Letter { to, about }
}

/// Six letters to Ada: on the queue, of which one is too large for its row and two are in a pack, on the poison queue and in the
/// history. Bob has five.
async fn storage() -> Storage {
    let storage = Storage::new();
    let service = storage.service().await;
    for to in [ADA, "bob@example.org"] {
        service.submit(letter(to, "x")).await.expect("submitted");
    }
    let failing = async |letter: Received<Letter>| Disposition::reject(format!("no {}", letter.to));
    let failing = service.listener(failing).until_empty();
    drop(failing.start().expect("starts").drained().await);
    for to in [ADA, "bob@example.org"] {
        service.submit(letter(to, "x")).await.expect("submitted");
        let large = letter(to, incompressible(300_000));
        service.submit(large).await.expect("submitted");
    }
    // In one pack.
    let packed = [ADA, "bob@example.org", ADA].map(|to| letter(to, "packed"));
    let packed = service.submit_all(packed).packed();
    packed.await.expect("submitted");
    storage
}

#[tokio::test]
async fn a_persons_messages_are_found_and_deleted_on_all_queues() {
    let storage = storage().await;
    let found = storage.run(&["erase", "--match", ADA]);
    for line in ["letters", "letters-history", "letters-poison"] {
        assert!(found.out.contains(line), "{found:?}");
    }
    assert!(found.error.contains("nothing was deleted"), "{found:?}");
    assert_eq!(storage.json(&["erase", "--match", ADA]).len(), 6);

    storage
        .run(&["erase", "--match", ADA, "--delete"])
        .failed(5, "--yes");
    let deleted = storage.out(&["erase", "--match", ADA, "--delete", "--yes"]);
    assert!(deleted.contains("deleted 6 messages"), "{deleted}");
    assert_eq!(storage.json(&["erase", "--match", ADA]).len(), 0);
    assert_eq!(
        storage.json(&["erase", "--match", "bob@example.org"]).len(),
        5
    );
}

#[tokio::test]
async fn a_message_that_a_consumer_holds_is_taken_from_it() {
    let storage = storage().await;
    let service = storage.service().await;
    let held = service
        .accept::<Letter>()
        .await
        .expect("accepts")
        .expect("a letter");
    assert_eq!(held.to, ADA);
    let deleted = storage.out(&["erase", "--match", ADA, "--delete", "--yes"]);
    assert!(deleted.contains("deleted 6 messages"), "{deleted}");
    held.retry("not now").await.expect_err("it is gone");
}

#[tokio::test]
async fn what_cannot_be_searched_is_told_and_a_short_text_refused() {
    let storage = storage().await;
    storage
        .run(&["erase", "--match", "ada"])
        .failed(1, "at least 4");
    // A copy without the data that is attached to the other.
    let (service, queue) = (storage.service().await, QueueName::from_static("letters"));
    let page = service
        .backend()
        .browse(&queue, None, 10)
        .await
        .expect("a page");
    let mut all = page.messages.into_iter();
    let attached = all.find(|one| one.body.windows(7).any(|part| part == b"dataref"));
    let attached = attached.expect("the large one");
    let copy = NewMessage::new(attached.body);
    service.backend().put(&queue, copy).await.expect("put");
    let found = storage.run(&["erase", "--match", ADA]);
    assert!(found.error.contains("is not searched"), "{found:?}");
    found.failed(6, "1 message cannot be searched");
}

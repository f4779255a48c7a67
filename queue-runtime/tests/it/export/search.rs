//! The messages that contain a text, wherever it is in them.

use bytes::Bytes;
use queue_runtime::backend::{BackendExt as _, NewMessage};
use queue_runtime::{AnyQueue, Disposition, ErrorKind, Message, QueueService, Received, testing};
use queue_tests::incompressible;
use serde::{Deserialize, Serialize};

use crate::support::count;

const TEXT: &str = "Ada Löwe";

#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(queue = "letters", poison_threshold = 1, history = 100)]
struct Letter {
    from: String,
    about: String,
    number: u64,
}

impl Letter {
    fn of(from: &str, about: impl Into<String>) -> Self {
        Self {
            from: from.to_owned(),
            about: about.into(),
            number: 4_711_081_500_123,
        }
    }
}

/// How many messages of a queue contain a text, page by page.
async fn found(queue: &AnyQueue, text: &str) -> usize {
    let (mut found, mut from) = (0, None);
    loop {
        let page = queue.search(text, from.as_ref(), 3).await.expect("a page");
        assert!(page.left.is_empty(), "{:?}", page.left);
        found += page.messages.len();
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
}

async fn put(service: &QueueService, queue: &AnyQueue, body: impl Into<Bytes>) {
    let put = service
        .backend()
        .put(queue.name(), NewMessage::new(body.into()));
    put.await.expect("put");
}

#[tokio::test(start_paused = true)]
async fn a_text_is_found_however_the_message_is_stored() {
    let service = testing::service().await;
    let letters = service.queue::<Letter>().any();
    for about in [
        "short".to_owned(),
        // Compressed, and attached.
        "long ".repeat(100_000),
        incompressible(200_000),
    ] {
        let both = [Letter::of(TEXT, about.as_str()), Letter::of("Bob", about)];
        for letter in both {
            service.submit(letter).await.expect("submitted");
        }
    }
    assert_eq!(found(&letters, TEXT).await, 3);
    // In packs.
    let many = (0..10).map(|number| match number % 2 {
        0 => Letter::of(TEXT, "packed"),
        _ => Letter::of("Bob", "packed"),
    });
    let packed = service.submit_all(many).packed();
    packed.await.expect("submitted");
    assert_eq!(found(&letters, TEXT).await, 8);
    // Neither in Base64, of which there is enough for any few characters, nor in the name of an attribute.
    let large = letters.export(None, 10).await.expect("a page").messages;
    let line = serde_json::to_string(&large).expect("JSON");
    let (_, data) = line
        .split_once(r#""data_base64":""#)
        .expect("a compressed one");
    for text in [&data[..12], "messagegroup", "datacontenttype"] {
        assert_eq!(found(&letters, text).await, 0, "{text}");
    }

    // With escapes, in a number, in an attribute, and in what is no JSON.
    put(&service, &letters, r#"{"from":"Ada L\u00f6we"}"#).await;
    put(&service, &letters, format!("from {TEXT}")).await;
    put(&service, &letters, [b"\xff\x00 ", TEXT.as_bytes()].concat()).await;
    let unknown = service
        .submit(Letter::of("Bob", "short"))
        .client_id("Ada-Löwe");
    unknown.await.expect("submitted");
    assert_eq!(found(&letters, TEXT).await, 11);
    assert_eq!(found(&letters, "Ada-Löwe").await, 1);
    assert_eq!(found(&letters, "4711081500123").await, 17, "a whole number");
    assert_eq!(
        found(&letters, "471108150012").await,
        0,
        "a part of a number"
    );
    assert_eq!(found(&letters, "ADA LÖWE").await, 0);
    let id = "letter-01a2-77";
    let known = service.submit(Letter::of("Bob", "short")).id(id);
    known.await.expect("submitted");
    assert_eq!(found(&letters, id).await, 1, "a whole id");
    assert_eq!(found(&letters, "etter-01a2-7").await, 0, "a part of an id");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_opened_is_left_and_not_said_to_lack_the_text() {
    let service = testing::service().await;
    let letters = service.queue::<Letter>().any();
    letters.create().await.expect("created");
    let event = r#"{"specversion":"1.0","id":"1","source":"a","type":"letter""#;
    for (rest, problem) in [
        (r#","dataref":"https://example.org/1"}"#, "elsewhere"),
        (
            r#","dataencoding":"none","datasize":3,"data_base64":"AAAA"}"#,
            "",
        ),
    ] {
        put(&service, &letters, format!("{event}{rest}")).await;
        let page = letters.search(TEXT, None, 10).await.expect("a page");
        assert_eq!(page.messages.len(), 0);
        let [left] = &page.left[..] else {
            panic!("{page:?}")
        };
        assert!(left.problem.contains(problem), "{left:?}");
        letters.clear().await.expect("cleared");
    }
}

#[tokio::test(start_paused = true)]
async fn errors_on_poison_queues_and_in_histories_are_searched_and_erased() {
    let service = testing::service().await;
    service
        .submit(Letter::of("Bob", "x"))
        .await
        .expect("submitted");
    let failing = async |_: Received<Letter>| Disposition::reject(format!("unknown: {TEXT}"));
    let listener = service.listener(failing).until_empty();
    drop(listener.start().expect("valid").drained().await);
    let poison = service.queue::<Letter>().poison().expect("a name");
    for queue in [
        poison,
        service.queue::<Letter>().any().history().expect("a name"),
    ] {
        let page = queue.search(TEXT, None, 10).await.expect("a page");
        assert_eq!(page.messages.len(), 1, "{}", queue.name());
        queue
            .delete_exported(&page.messages[0])
            .await
            .expect("deleted");
        assert_eq!(count(&service, queue.name().as_str()).await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_in_everything_is_refused() {
    let service = testing::service().await;
    let letters = service.queue::<Letter>().any();
    let short = letters
        .search("Ada", None, 10)
        .await
        .expect_err("too short");
    assert_eq!(short.kind(), ErrorKind::InvalidInput);
    let text = short.to_string();
    assert!(text.contains("3 characters; at least 4"), "{text}");
}

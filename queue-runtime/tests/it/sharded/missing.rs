//! A queue one of whose shards is missing: each operation says so, and names the shard.

use std::path::Path;
use std::sync::Arc;

use queue_runtime::backend::{
    Backend, BackendExt as _, Metadata, NewMessage, Op, ReceivedMessage, Sharded as _,
};
use queue_runtime::error::RetryAdvice;
use queue_runtime::policy::StorageRetry;
use queue_runtime::service::ConnectErrorKind;
use queue_runtime::sharded::{ShardedBackend, Shards};
use queue_runtime::testing::TokioClock;
use queue_runtime::{ErrorKind, MessageId, QueueName, QueueService, Received};
use queue_tests::SECOND;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::support::shards::{CustomerOrder, QUEUE, World};

async fn backend(world: &World) -> ShardedBackend {
    let accounts = world.accounts.iter().map(|account| {
        let account: Arc<dyn Backend> = Arc::new(account.clone());
        account
    });
    let opened = Shards::new(4).open(accounts.collect(), Arc::new(TokioClock::new()));
    opened.await.expect("connects")
}

/// Deletes a shard of the queue `orders`, which has four on two accounts.
async fn lose(world: &World, shard: usize) {
    let name = QueueName::new(&format!("orders-s{shard}")).expect("a name");
    let deleted = world.accounts[shard % 2].delete_queue(&name).await;
    deleted.expect("deleted");
}

/// Receives a message of the second shard.
async fn of_second_shard(backend: &ShardedBackend) -> ReceivedMessage {
    for number in 0..8 {
        let message = NewMessage::new(format!("{number}"));
        backend.put(&QUEUE, message).await.expect("put");
    }
    loop {
        let received = backend.receive(&QUEUE, 1, 60 * SECOND).await;
        let received = received.expect("received").pop().expect("there are more");
        if received.id.as_str().starts_with("1~") {
            return received;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_operation_names_the_shard() {
    let world = World::new(2);
    let backend = backend(&world).await;
    let none = Metadata::new();
    backend.create_queue(&QUEUE, &none).await.expect("created");
    let ReceivedMessage { id, receipt, .. } = of_second_shard(&backend).await;
    lose(&world, 1).await;

    let delete = Op::Delete {
        queue: QUEUE,
        id: id.clone(),
        receipt: receipt.clone(),
        moved: false,
    };
    let key = (0..).map(|key: u32| key.to_string());
    let key = key.into_iter().find(|key| backend.shard_of_key(key) == 1);
    let mut keyed = NewMessage::new("keyed");
    keyed.shard_key = key.map(Into::into);
    for (operation, failed) in [
        ("properties", backend.properties(&QUEUE).await.err()),
        ("create", backend.create_queue(&QUEUE, &none).await.err()),
        ("clear", backend.clear(&QUEUE).await.err()),
        ("browse", backend.browse(&QUEUE, None, 32).await.err()),
        ("peek", backend.peek(&QUEUE, 32).await.err()),
        (
            "find",
            backend.find(&QUEUE, &MessageId::random(), 1).await.err(),
        ),
        ("put", backend.put(&QUEUE, keyed).await.err()),
        (
            "update",
            backend
                .renew(&QUEUE, &id, &receipt, SECOND, None)
                .await
                .err(),
        ),
        ("delete", backend.delete(&QUEUE, &id, &receipt).await.err()),
        (
            "apply",
            backend
                .apply(vec![delete].into())
                .await
                .err()
                .map(|failed| failed.error),
        ),
        ("receive", backend.receive(&QUEUE, 1, SECOND).await.err()),
    ] {
        let error = failed.unwrap_or_else(|| panic!("{operation} succeeds"));
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Storage, "{operation}: {text}");
        let says = text.contains("shard 1: it is missing") && text.contains("queue `orders`");
        assert!(says, "{operation}: {text}");
    }
    assert_eq!(backend.list_queues("").await.expect("listed"), [QUEUE]);

    // It can be given up, and made anew.
    backend.delete_queue(&QUEUE).await.expect("deleted");
    let gone = backend.renew(&QUEUE, &id, &receipt, SECOND, None).await;
    assert_eq!(gone.expect_err("deleted").kind(), ErrorKind::QueueNotFound);
    backend.create_queue(&QUEUE, &none).await.expect("created");
    lose(&world, 3).await;
    backend.resize(4).await.expect("it creates what is missing");
    backend.properties(&QUEUE).await.expect("all are there");
}

/// Somebody else may put on the shards that a creator has created before it creates the first.
#[tokio::test(start_paused = true)]
async fn a_queue_with_messages_is_not_told_as_missing_while_it_is_created() {
    let world = World::new(2);
    let backend = backend(&world).await;
    let none = Metadata::new();
    backend.create_queue(&QUEUE, &none).await.expect("created");
    lose(&world, 0).await;
    let missing = backend.properties(&QUEUE).await.expect_err("not created");
    assert_eq!(missing.kind(), ErrorKind::QueueNotFound);

    let second = QueueName::new("orders-s1").expect("a name");
    let put = world.accounts[1]
        .put(&second, NewMessage::new("early"))
        .await;
    put.expect("put");
    let error = backend.properties(&QUEUE).await.expect_err("not created");
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert_eq!(error.retry(), RetryAdvice::Temporary);
    backend.create_queue(&QUEUE, &none).await.expect("created");
    let counted = backend.properties(&QUEUE).await.expect("all are there");
    assert_eq!(counted.approximate_count, 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_service_is_unhealthy_as_long_as_a_shard_is_missing() {
    let world = World::new(2);
    let old = world.service(4).await;
    let queue = old.any_queue("orders").expect("a name");
    queue.create().await.expect("created");
    lose(&world, 1).await;
    let service = world.service(4).await;
    let handler = async |_: Received<CustomerOrder>| {};
    service.listener(handler).start().expect("starts");
    // Longer than the longest pause of a shard that fails.
    sleep(60 * SECOND).await;
    for _ in 0..60 {
        sleep(SECOND).await;
        let health = service.health();
        assert!(!health.is_healthy() && !health.needs_restart(), "{health}");
        assert!(
            health.to_string().contains("shard 1: it is missing"),
            "{health}"
        );
    }
    let shards = service.shards().expect("it has some");
    shards.resize(4).await.expect("resized");
    sleep(60 * SECOND).await;
    let health = service.health();
    assert!(health.is_healthy(), "{health}");
}

fn url(folder: &Path, files: &[&str]) -> String {
    let files = files
        .iter()
        .map(|file| format!("sqlite:{}", folder.join(file).display()));
    format!("sharded:4|{}", files.collect::<Vec<_>>().join("|"))
}

async fn connect(url: &str) -> Result<QueueService, String> {
    let service = QueueService::builder(url).storage_retry(StorageRetry::never());
    service.connect().await.map_err(|error| match error.kind {
        ConnectErrorKind::Storage(error) => error.to_string(),
        other => panic!("{other}"),
    })
}

/// Closes a service, so that nobody has its files open.
async fn create(url: &str) {
    let service = connect(url).await.expect("connects");
    let queue = service.any_queue("orders").expect("a name");
    queue.create().await.expect("created");
}

#[tokio::test]
async fn a_program_that_is_refused_creates_no_file() {
    for (lost, given, text) in [
        (
            "b.db",
            ["a.db", "b.db", "c.db"],
            "has shard 1 of each queue",
        ),
        ("a.db", ["a.db", "b.db", "c.db"], "has `orders-s1`"),
        (
            "none",
            ["a.db", "typo.db", "c.db"],
            "has shard 1 of each queue",
        ),
        ("none", ["b.db", "a.db", "c.db"], "has `orders-s"),
        ("none", ["typo.db", "b.db", "c.db"], "has `orders-s"),
    ] {
        let folder = TempDir::new().expect("a folder");
        create(&url(folder.path(), &["a.db", "b.db", "c.db"])).await;
        let kept = TempDir::new().expect("a folder");
        if lost != "none" {
            std::fs::rename(folder.path().join(lost), kept.path().join(lost)).expect("moved");
        }
        let given_url = url(folder.path(), &given);
        let refused = connect(&given_url).await.expect_err("one is missing");
        assert!(refused.contains(text), "{lost} {given:?}: {refused}");
        for name in given {
            let is_new = name == lost || name == "typo.db";
            assert_eq!(
                folder.path().join(name).exists(),
                !is_new,
                "{lost} {given:?}: {name}"
            );
        }
        if lost != "none" {
            std::fs::rename(kept.path().join(lost), folder.path().join(lost)).expect("moved");
            connect(&given_url).await.expect("it is whole again");
        }
    }
    // What a later resize uses need not be there.
    let folder = TempDir::new().expect("a folder");
    create(&url(folder.path(), &["a.db", "b.db"])).await;
    let more = connect(&url(folder.path(), &["a.db", "b.db", "c.db"])).await;
    more.expect("it names one more");
}

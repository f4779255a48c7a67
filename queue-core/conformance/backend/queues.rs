//! Queues: their names, their metadata, and how many messages they hold and have held.

use std::time::Duration;

use super::harness::{
    Fixture, Harness, LONG, OpenedBackend, Survival, assert_lease_gone, assert_refused, metadata,
};
use crate::backend::{
    Atomicity, BackendExt as _, Created, Metadata, NewMessage, Op, PopReceipt, QueueTotals,
    ReceivedMessage, StorageId,
};
use crate::error::{ErrorKind, Result};
use crate::name::QueueName;

pub(super) async fn creating_a_queue_twice_is_idempotent(store: Box<dyn OpenedBackend>) {
    let (backend, queue) = (store.client(), store.queue("orders"));
    let of_five = metadata(&[("poisonthreshold", "5")]);
    for expected in [Created::New, Created::Existed] {
        let created = backend.create_queue(&queue, &of_five).await;
        assert_eq!(created.expect("create"), expected);
    }
}

pub(super) async fn creating_with_other_metadata_is_refused(store: Box<dyn OpenedBackend>) {
    let (backend, queue) = (store.client(), store.queue("orders"));
    let of_five = metadata(&[("poisonthreshold", "5")]);
    backend
        .create_queue(&queue, &of_five)
        .await
        .expect("create");
    for other in [Metadata::new(), metadata(&[("poisonthreshold", "6")])] {
        let refused = backend.create_queue(&queue, &other).await;
        assert_refused(refused, ErrorKind::QueueExists);
    }
    let properties = backend.properties(&queue).await.expect("properties");
    assert_eq!(properties.metadata, of_five, "it is left as it was");
}

pub(super) async fn metadata_is_replaced_as_a_whole(f: Fixture) {
    let one = metadata(&[("poisonthreshold", "5"), ("owner", "a b")]);
    let other = metadata(&[("defaulttimeout", "30")]);
    for wanted in [&one, &other, &other, &Metadata::new()] {
        f.backend
            .set_metadata(&f.queue, wanted)
            .await
            .expect("set metadata");
        let properties = f.backend.properties(&f.queue).await.expect("properties");
        assert_eq!(properties.metadata, *wanted);
        let alone = f.backend.metadata(&f.queue).await.expect("metadata");
        assert_eq!(alone, *wanted);
    }
}

pub(super) async fn queues_are_listed_by_prefix_in_order(store: Box<dyn OpenedBackend>) {
    let backend = store.client();
    let [a, b, other] = ["ab-2", "ab-10", "abc"].map(|name| store.queue(name));
    for queue in [&a, &b, &other] {
        let created = backend.create_queue(queue, &Metadata::new()).await;
        created.expect("create");
    }
    let list = async |prefix: &str| {
        let prefix = format!("{}{prefix}", store.namespace());
        backend.list_queues(&prefix).await.expect("list")
    };
    assert_eq!(list("ab-").await, [b.clone(), a.clone()]);
    assert_eq!(list("ab").await, [b.clone(), a.clone(), other.clone()]);
    assert_eq!(list("").await, [b, a, other.clone()]);
    assert_eq!(list("abc").await, [other]);
    assert_eq!(list("abcd").await, []);
}

pub(super) async fn a_deleted_queue_comes_back_empty(f: Fixture) {
    let put = f.put("before").await;
    let later = NewMessage::new("later").with_delay(f.lease);
    let later = f.put_message(later).await;
    f.backend
        .delete_queue(&f.queue)
        .await
        .expect("delete queue");
    let again = f.backend.delete_queue(&f.queue).await;
    assert_refused(again, ErrorKind::QueueNotFound);
    recreate(&f).await;
    assert_eq!(f.count().await, 0);
    f.advance(f.lease + f.lease).await;
    f.assert_nothing_visible().await;
    assert_lease_gone(f.backend.delete(&f.queue, &put.id, &put.receipt).await);
    let after = f.put("after").await;
    let earlier = [put.id, later.id];
    assert!(!earlier.contains(&after.id), "an id is never given again");
    assert_eq!(f.drain().await, ["after"]);
}

/// Creates the queue again, waiting until its name can be used.
async fn recreate(f: &Fixture) {
    for _ in 0..60 {
        match f.backend.create_queue(&f.queue, &Metadata::new()).await {
            Err(error) if error.kind() == ErrorKind::QueueBeingDeleted => {
                f.advance(Duration::from_secs(1)).await;
            }
            created => {
                assert_eq!(created.expect("create again"), Created::New);
                return;
            }
        }
    }
    panic!("the name is still blocked");
}

pub(super) async fn clearing_takes_invisible_messages_too(f: Fixture) {
    f.put("leased").await;
    let leased = f.receive_one().await;
    f.put("visible").await;
    f.put_message(NewMessage::new("delayed").with_delay(f.lease))
        .await;
    for _ in 0..2 {
        f.backend.clear(&f.queue).await.expect("clear");
        assert_eq!(f.count().await, 0);
    }
    f.assert_nothing_visible().await;
    assert_lease_gone(f.delete(&leased).await);
    f.advance(f.lease + f.lease).await;
    f.assert_nothing_visible().await;
    f.put("after").await;
    assert_eq!(f.drain().await, ["after"]);
}

pub(super) async fn the_count_includes_invisible_messages(f: Fixture) {
    assert_eq!(f.count().await, 0);
    f.put("one").await;
    f.put_message(NewMessage::new("two").with_delay(LONG)).await;
    assert_eq!(f.count().await, 2);
    let message = f.receive_one().await;
    assert_eq!(f.count().await, 2);
    f.delete(&message).await.expect("delete");
    assert_eq!(f.count().await, 1);
}

pub(super) async fn names_at_both_edges_work(store: Box<dyn OpenedBackend>) {
    let backend = store.client();
    let prefix = store.namespace();
    let short = "a".repeat(3_usize.saturating_sub(prefix.len()).max(1));
    let long = "z".repeat(store.longest_name() - prefix.len());
    for name in [short, long, "0-a-0".to_owned()] {
        let queue = store.queue(&name);
        let created = backend.create_queue(&queue, &Metadata::new()).await;
        assert_eq!(created.expect("create"), Created::New);
        let put = backend.put(&queue, NewMessage::new("body")).await;
        put.expect("put");
        let received = backend.receive(&queue, 1, LONG).await;
        assert_eq!(received.expect("receive").len(), 1);
        let uri = backend.queue_uri(&queue);
        assert!(!uri.contains('?'), "a queue's URI has no query: {uri}");
        assert!(uri.ends_with(queue.as_str()), "it ends in the name: {uri}");
    }
}

pub(super) async fn every_method_reports_a_missing_queue(f: Fixture) {
    // A receipt in the backend's own form, so that only the queue can be at fault.
    let put = f.put("elsewhere").await;
    let missing = f.store.queue("missing");
    let gone = |result: Result<()>| {
        let error = result.expect_err("the queue is missing");
        assert_eq!(error.queue(), Some(&missing), "{error}");
        assert_refused(Err::<(), _>(error), ErrorKind::QueueNotFound);
    };
    let b = &f.backend;
    gone(b.properties(&missing).await.map(drop));
    gone(b.metadata(&missing).await.map(drop));
    gone(b.set_metadata(&missing, &Metadata::new()).await);
    gone(b.put(&missing, NewMessage::new("body")).await.map(drop));
    gone(b.receive(&missing, 1, f.lease).await.map(drop));
    gone(b.peek(&missing, 1).await.map(drop));
    let updated = b.renew(&missing, &put.id, &put.receipt, f.lease, None);
    gone(updated.await.map(drop));
    gone(b.delete(&missing, &put.id, &put.receipt).await);
    gone(b.clear(&missing).await);
    gone(b.delete_queue(&missing).await);
    for op in ops_on(&missing, &put.id, &put.receipt) {
        let refused = b
            .apply(vec![op].into())
            .await
            .expect_err("the queue is missing");
        assert_eq!(refused.index, 0);
        gone(Err(refused.error));
    }
    assert_eq!(f.drain().await, ["elsewhere"]);
}

fn ops_on(queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Vec<Op> {
    let (id, receipt) = (id.clone(), receipt.clone());
    vec![
        Op::Put {
            queue: queue.clone(),
            message: NewMessage::new("body"),
        },
        Op::Renew {
            queue: queue.clone(),
            id: id.clone(),
            receipt: receipt.clone(),
            visibility: Duration::ZERO,
            body: None,
        },
        Op::Delete {
            queue: queue.clone(),
            id,
            receipt,
            moved: false,
        },
    ]
}

/// Opens a store; returns `None` if its backend counts no messages, after checking that it does not start to.
pub(super) async fn counting(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    let properties = f.backend.properties(&f.queue).await.expect("properties");
    if properties.totals.is_some() {
        return Some(f);
    }
    f.put("one").await;
    let properties = f.backend.properties(&f.queue).await.expect("properties");
    assert_eq!(properties.totals, None);
    None
}

#[track_caller]
fn assert_totals(totals: QueueTotals, put: usize, deleted: usize) {
    assert_eq!((totals.put, totals.deleted), (put, deleted));
}

/// Returns the totals of a queue, whose difference is the number of messages.
async fn totals_of(f: &Fixture, queue: &QueueName) -> QueueTotals {
    let properties = f.backend.properties(queue).await.expect("properties");
    let totals = properties.totals.expect("it counts");
    assert_eq!(totals.put - totals.deleted, properties.approximate_count);
    totals
}

async fn totals(f: &Fixture) -> QueueTotals {
    totals_of(f, &f.queue).await
}

fn put_op(queue: &QueueName) -> Op {
    Op::Put {
        queue: queue.clone(),
        message: NewMessage::moved("moved"),
    }
}

fn delete_op(queue: &QueueName, message: &ReceivedMessage) -> Op {
    Op::Delete {
        queue: queue.clone(),
        id: message.id.clone(),
        receipt: message.receipt.clone(),
        moved: true,
    }
}

pub(super) async fn puts_and_deletes_are_totalled(f: Fixture) {
    assert_totals(totals(&f).await, 0, 0);
    f.put("one").await;
    f.put_message(NewMessage::new("two").with_delay(LONG)).await;
    assert_totals(totals(&f).await, 2, 0);
    let mut message = f.receive_one().await;
    let updated = f.update(&message, LONG, Some("changed")).await;
    message.receipt = updated.expect("update").receipt;
    assert_totals(totals(&f).await, 2, 0);
    f.delete(&message).await.expect("delete");
    let gone = f.delete(&message).await;
    gone.expect_err("it is gone");
    assert_totals(totals(&f).await, 2, 1);
    // As many messages come as go.
    f.put("three").await;
    let message = f.receive_one().await;
    let ops = vec![put_op(&f.queue), delete_op(&f.queue, &message)];
    f.backend.apply(ops.into()).await.expect("apply");
    assert_totals(totals(&f).await, 4, 2);
}

pub(super) async fn totals_go_on_after_a_clear(f: Fixture) {
    f.put("leased").await;
    f.receive_one().await;
    f.put("visible").await;
    for _ in 0..2 {
        f.backend.clear(&f.queue).await.expect("clear");
        assert_totals(totals(&f).await, 2, 2);
    }
    f.put("after").await;
    assert_totals(totals(&f).await, 3, 2);
    let deleted = f.backend.delete_queue(&f.queue).await;
    deleted.expect("delete queue");
    match f.backend.create_queue(&f.queue, &Metadata::new()).await {
        Err(error) => assert_refused::<()>(Err(error), ErrorKind::QueueBeingDeleted),
        Ok(created) => {
            assert_eq!(created, Created::New);
            assert_totals(totals(&f).await, 0, 0);
        }
    }
}

pub(super) async fn a_moved_message_is_totalled_on_both_queues(f: Fixture) {
    let poison = f.store.queue("poison");
    f.create(&poison).await;
    f.put("moved").await;
    let message = f.receive_one().await;
    let ops = vec![put_op(&poison), delete_op(&f.queue, &message)];
    f.backend.apply(ops.into()).await.expect("apply");
    assert_totals(totals(&f).await, 1, 1);
    assert_totals(totals_of(&f, &poison).await, 1, 0);
}

pub(super) async fn what_is_undone_is_not_totalled(f: Fixture) {
    f.put("stays").await;
    let message = f.receive_one().await;
    let missing = f.store.queue("missing");
    let ops = vec![
        put_op(&f.queue),
        delete_op(&f.queue, &message),
        put_op(&missing),
    ];
    let failed = f.backend.apply(ops.into()).await;
    failed.expect_err("the queue is missing");
    match f.backend.capabilities().atomicity {
        Atomicity::Atomic => assert_totals(totals(&f).await, 1, 0),
        Atomicity::InOrder => assert_totals(totals(&f).await, 2, 1),
    }
}

pub(super) async fn expired_messages_are_totalled_once_removed(f: Fixture) {
    for _ in 0..3 {
        f.put_living("brief", f.lease).await;
    }
    f.put("lasting").await;
    f.advance(f.lease * 2).await;
    assert_eq!(f.drain().await, ["lasting"]);
    let after = totals(&f).await;
    assert_eq!(after.put, 4);
    assert!(after.deleted <= 3, "{after:?}");
    f.backend.clear(&f.queue).await.expect("clear");
    assert_totals(totals(&f).await, 4, 4);
}

pub(super) async fn totals_are_those_of_all_clients(f: Fixture) {
    let other = f.store.second_client().await;
    for round in 1..=3 {
        f.put("one").await;
        let put = other.put(&f.queue, NewMessage::new("other")).await;
        let put = put.expect("put");
        assert_totals(totals(&f).await, 2 * round, round - 1);
        let deleted = other.delete(&f.queue, &put.id, &put.receipt).await;
        deleted.expect("delete");
        let seen = other.properties(&f.queue).await.expect("properties");
        assert_totals(seen.totals.expect("it counts"), 2 * round, round);
    }
}

pub(super) async fn totals_survive_like_messages(mut f: Fixture) {
    for _ in 0..3 {
        f.put("one").await;
    }
    let message = f.receive_one().await;
    f.delete(&message).await.expect("delete");
    f = f.reopen().await;
    if f.store.survival() == Survival::Gone {
        return f.create(&f.queue).await;
    }
    assert_totals(totals(&f).await, 3, 1);
    f.put("one").await;
    assert_totals(totals(&f).await, 4, 1);
}

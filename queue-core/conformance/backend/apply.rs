//! Several operations in one `apply`, and the operation that deletes items of packs.

use std::time::Duration;

use bytes::Bytes;

use super::harness::{Fixture, Harness, Survival, assert_lease_gone, assert_refused, text};
use crate::backend::{
    ApplyError, Atomicity, BackendExt as _, ItemSet, Metadata, NewMessage, Op, OpOutcome,
    ReceivedMessage,
};
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::name::QueueName;

pub(super) async fn nothing_to_apply_does_nothing(f: Fixture) {
    assert_eq!(
        f.backend.apply(Vec::new().into()).await.expect("apply")[..],
        []
    );
}

pub(super) async fn operations_apply_across_queues(f: Fixture) {
    let poison = f.store.queue("orders-poison");
    f.create(&poison).await;
    f.put("a").await;
    f.put("b").await;
    let received = f.receive(2).await;
    let outcomes = f.backend.apply(
        vec![
            put(&poison, "moved"),
            delete(&f.queue, &received[0]),
            update(&f.queue, &received[1], "changed"),
            put(&f.queue, "c"),
        ]
        .into(),
    );
    let outcomes = outcomes.await.expect("apply");
    let [
        OpOutcome::Put(_),
        OpOutcome::Deleted,
        OpOutcome::Updated(lease),
        OpOutcome::Put(last),
    ] = &outcomes[..]
    else {
        panic!("an outcome for each, in order: {outcomes:?}");
    };
    let mut bodies = f.drain().await;
    bodies.sort();
    assert_eq!(bodies, ["c", "changed"]);
    let moved = f.backend.receive(&poison, 10, f.lease).await;
    let moved = moved.expect("receive");
    assert_eq!(moved.len(), 1);
    assert_eq!(text(&moved[0].body), "moved");
    let stale = f.backend.delete(&f.queue, &last.id, &last.receipt).await;
    assert_lease_gone(stale);
    let id = &received[1].id;
    assert_lease_gone(f.backend.delete(&f.queue, id, &lease.receipt).await);
}

pub(super) async fn receipts_from_an_apply_are_valid(f: Fixture) {
    f.put("a").await;
    let message = f.receive_one().await;
    let ops = vec![update(&f.queue, &message, "changed"), put(&f.queue, "b")];
    let outcomes = f.backend.apply(ops.into()).await.expect("apply");
    let [OpOutcome::Updated(lease), OpOutcome::Put(put)] = &outcomes[..] else {
        panic!("an outcome for each, in order: {outcomes:?}");
    };
    let b = &f.backend;
    let deleted = b.delete(&f.queue, &message.id, &lease.receipt).await;
    deleted.expect("delete with the update's receipt");
    let deleted = b.delete(&f.queue, &put.id, &put.receipt).await;
    deleted.expect("delete with the put's receipt");
    assert_eq!(f.count().await, 0);
}

pub(super) async fn later_operations_see_earlier_ones(f: Fixture) {
    f.put("a").await;
    let message = f.receive_one().await;
    let twice = vec![delete(&f.queue, &message), delete(&f.queue, &message)];
    let refused = f
        .backend
        .apply(twice.into())
        .await
        .expect_err("deleted twice");
    assert_eq!(refused.index, 1);
    assert_lease_gone::<()>(Err(refused.error));
    match f.backend.capabilities().atomicity {
        Atomicity::Atomic => f.delete(&message).await.expect("still there"),
        Atomicity::InOrder => assert_lease_gone(f.delete(&message).await),
    }
}

pub(super) async fn a_failure_in_the_middle(harness: &dyn Harness) {
    for position in 0..4 {
        fail_at(harness, position, Fault::StaleReceipt).await;
    }
}

pub(super) async fn a_missing_queue_in_the_middle(harness: &dyn Harness) {
    for position in 0..4 {
        fail_at(harness, position, Fault::MissingQueue).await;
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    StaleReceipt,
    MissingQueue,
}

/// Applies a put, an update and a delete, and a failing operation at `position`.
async fn fail_at(harness: &dyn Harness, position: usize, fault: Fault) {
    let f = Fixture::open(harness).await;
    for body in ["deleted", "updated", "stale"] {
        f.put(body).await;
    }
    let received = f.receive(3).await;
    assert_eq!(received.len(), 3);
    let body = |wanted: &str| received.iter().find(|m| text(&m.body) == wanted);
    let deleted = body("deleted").expect("received");
    let updated = body("updated").expect("received");
    let stale = body("stale").expect("received");
    f.delete(stale).await.expect("delete");

    let mut ops = vec![
        put(&f.queue, "put"),
        update(&f.queue, updated, "changed"),
        delete(&f.queue, deleted),
    ];
    let failing = match fault {
        Fault::StaleReceipt => delete(&f.queue, stale),
        Fault::MissingQueue => put(&f.store.queue("missing"), "nowhere"),
    };
    ops.insert(position, failing);
    let refused = f.backend.apply(ops.into()).await.expect_err("one fails");
    assert_eq!(refused.index, position);
    assert_eq!(refused.error.outcome(), Outcome::NotDone);
    match fault {
        Fault::StaleReceipt => assert!(refused.error.is_lease_gone(), "{refused}"),
        Fault::MissingQueue => {
            assert_eq!(refused.error.kind(), ErrorKind::QueueNotFound);
            assert_eq!(refused.error.queue(), Some(&f.store.queue("missing")));
        }
    }

    let done = match f.backend.capabilities().atomicity {
        Atomicity::Atomic => 0,
        Atomicity::InOrder => position,
    };
    assert_eq!(refused.completed.len(), done);
    assert_prefix_done(&f, done, updated, deleted, refused).await;
}

/// Asserts that exactly the first `done` operations were carried out.
async fn assert_prefix_done(
    f: &Fixture,
    done: usize,
    updated: &ReceivedMessage,
    deleted: &ReceivedMessage,
    refused: ApplyError,
) {
    let mut expected = Vec::new();
    expected.extend((done >= 1).then_some("put"));
    expected.extend((done >= 2).then_some("changed"));
    let mut visible = f.drain().await;
    visible.sort();
    expected.sort_unstable();
    assert_eq!(visible, expected, "{refused}");
    if done < 2 {
        f.delete(updated).await.expect("its receipt is untouched");
    }
    match f.delete(deleted).await {
        deleted if done >= 3 => assert_lease_gone(deleted),
        deleted => deleted.expect("it was not deleted"),
    }
}

pub(super) async fn a_refused_argument_spoils_an_atomic_apply(f: Fixture) {
    let longest = f.backend.capabilities().max_delay;
    let late = NewMessage::new("late").with_delay(longest + Duration::from_secs(1));
    let ops = vec![
        put(&f.queue, "put"),
        Op::Put {
            queue: f.queue.clone(),
            message: late,
        },
    ];
    let refused = f
        .backend
        .apply(ops.into())
        .await
        .expect_err("the delay is too long");
    assert_eq!(refused.index, 1);
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(f.count().await, refused.completed.len());
    if f.backend.capabilities().atomicity == Atomicity::Atomic {
        assert_eq!(refused.completed[..], []);
    }
}

pub(super) async fn many_operations_apply(f: Fixture) {
    let other = f.store.queue("other");
    let created = f.backend.create_queue(&other, &Metadata::new()).await;
    created.expect("create");
    let ops = (0..200)
        .map(|n| put(if n % 2 == 0 { &f.queue } else { &other }, "one"))
        .collect();
    assert_eq!(f.backend.apply(ops).await.expect("apply").len(), 200);
    assert_eq!(f.count().await, 100);
}

pub(super) async fn an_apply_is_bounded(f: Fixture) {
    let capabilities = f.backend.capabilities();
    let (most, bytes) = (capabilities.max_apply, capabilities.max_apply_bytes);
    let too_many = vec![put(&f.queue, "one"); most + 1];
    let refused = f
        .backend
        .apply(too_many.into())
        .await
        .expect_err("too many");
    assert_eq!(refused.index, most);
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(refused.error.outcome(), Outcome::NotDone);
    assert_eq!(refused.completed[..], []);

    let body = Bytes::from(vec![b'x'; capabilities.max_body]);
    let large = |count: usize| {
        let put = Op::Put {
            queue: f.queue.clone(),
            message: NewMessage::new(body.clone()),
        };
        vec![put; count]
    };
    // The largest body is not counted.
    let fitting = bytes / body.len() + 1;
    if fitting < most {
        let refused = f.backend.apply(large(fitting + 1).into()).await;
        let refused = refused.expect_err("too large");
        assert_eq!(refused.index, fitting);
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
        assert_eq!(refused.completed[..], []);
    }
    assert_eq!(f.count().await, 0);

    if capabilities.atomicity == Atomicity::Atomic {
        let applied = f
            .backend
            .apply(vec![put(&f.queue, "one"); most].into())
            .await;
        assert_eq!(applied.expect("at the limit").len(), most);
        let applied = f.backend.apply(large(fitting.min(most)).into()).await;
        assert_eq!(applied.expect("at the limit").len(), fitting.min(most));
    }
}

fn put(queue: &QueueName, body: &'static str) -> Op {
    Op::Put {
        queue: queue.clone(),
        message: NewMessage::new(body),
    }
}

fn update(queue: &QueueName, message: &ReceivedMessage, body: &'static str) -> Op {
    Op::Renew {
        queue: queue.clone(),
        id: message.id.clone(),
        receipt: message.receipt.clone(),
        visibility: Duration::ZERO,
        body: Some(body.into()),
    }
}

fn delete(queue: &QueueName, message: &ReceivedMessage) -> Op {
    Op::Delete {
        queue: queue.clone(),
        id: message.id.clone(),
        receipt: message.receipt.clone(),
        moved: false,
    }
}

const OF: u32 = 9;

/// Opens a store with one message; returns `None` if the backend refuses to delete items.
pub(super) async fn with_message(harness: &dyn Harness) -> Option<(Fixture, ReceivedMessage)> {
    let f = Fixture::open(harness).await;
    f.put("pack").await;
    let message = f.receive_one().await;
    if f.backend.capabilities().atomicity == Atomicity::Atomic {
        return Some((f, message));
    }
    let refused = delete_items(&f, &message, &[0]).await;
    assert_refused(refused, ErrorKind::Unsupported);
    f.delete(&message).await.expect("untouched");
    None
}

fn deleting(f: &Fixture, message: &ReceivedMessage, items: &[u32]) -> Op {
    Op::DeleteItems {
        queue: f.queue.clone(),
        id: message.id.clone(),
        receipt: message.receipt.clone(),
        items: set(items),
        of: OF,
    }
}

async fn delete_items(f: &Fixture, message: &ReceivedMessage, items: &[u32]) -> Result<()> {
    let op = deleting(f, message, items);
    match f.backend.apply(vec![op].into()).await {
        Ok(outcomes) => {
            assert_eq!(outcomes[..], [OpOutcome::Deleted]);
            Ok(())
        }
        Err(failed) => Err(failed.error),
    }
}

fn set(items: &[u32]) -> ItemSet {
    items.iter().copied().collect()
}

async fn receive_again(f: &Fixture) -> ReceivedMessage {
    f.advance(f.lease).await;
    f.receive_one().await
}

pub(super) async fn deleted_items_are_told_by_later_receives(
    (f, first): (Fixture, ReceivedMessage),
) {
    assert_eq!(first.deleted_items, ItemSet::default());
    delete_items(&f, &first, &[0, 8]).await.expect("delete two");
    delete_items(&f, &first, &[3])
        .await
        .expect("the receipt is still valid");
    let second = receive_again(&f).await;
    assert_eq!(second.deleted_items, set(&[0, 3, 8]));
    assert_eq!(text(&second.body), "pack");
    f.update(&second, f.lease, Some("pack, updated"))
        .await
        .expect("update");
    f.advance(f.lease).await;
    let peeked = f.backend.peek(&f.queue, 1).await.expect("peek");
    assert_eq!(peeked[0].deleted_items, set(&[0, 3, 8]));
    if f.store.survival() == Survival::Gone {
        return;
    }
    let f = f.reopen().await;
    assert_eq!(f.receive_one().await.deleted_items, set(&[0, 3, 8]));
}

pub(super) async fn a_message_goes_with_its_last_item((f, message): (Fixture, ReceivedMessage)) {
    delete_items(&f, &message, &[0, 1, 2, 3, 4, 5, 6, 7])
        .await
        .expect("delete all but one");
    assert_eq!(f.count().await, 1);
    delete_items(&f, &message, &[8])
        .await
        .expect("delete the last");
    assert_eq!(f.count().await, 0);
    let again = delete_items(&f, &message, &[8]).await;
    assert_refused(again, ErrorKind::MessageNotFound);
    // A message that takes over the place or number of a deleted one has no deleted items.
    f.put("pack").await;
    f.receive_one().await;
    assert_eq!(receive_again(&f).await.deleted_items, ItemSet::default());
}

pub(super) async fn an_item_is_deleted_once((f, message): (Fixture, ReceivedMessage)) {
    delete_items(&f, &message, &[4]).await.expect("delete");
    for again in [&[4][..], &[3, 4], &[4, 5]] {
        let refused = delete_items(&f, &message, again).await;
        assert_refused(refused, ErrorKind::MessageNotFound);
    }
    let received_again = receive_again(&f).await;
    // Whatever the receipt: the item is deleted, so nobody else can have it.
    let refused = delete_items(&f, &message, &[4]).await;
    assert_refused(refused, ErrorKind::MessageNotFound);
    assert_eq!(received_again.deleted_items, set(&[4]));
}

pub(super) async fn a_stale_receipt_deletes_no_item((f, first): (Fixture, ReceivedMessage)) {
    let second = receive_again(&f).await;
    let refused = delete_items(&f, &first, &[1]).await;
    assert_refused(refused, ErrorKind::ReceiptMismatch);
    let third = receive_again(&f).await;
    assert_eq!(third.deleted_items, ItemSet::default());
    drop(second);
    delete_items(&f, &third, &[1]).await.expect("with its own");
}

pub(super) async fn items_are_deleted_in_one_step_with_puts(
    (f, message): (Fixture, ReceivedMessage),
) {
    let put = || Op::Put {
        queue: f.queue.clone(),
        message: NewMessage::new("follow-up"),
    };
    let done = f
        .backend
        .apply(vec![put(), deleting(&f, &message, &[1])].into());
    done.await.expect("apply");
    assert_eq!(f.count().await, 2);
    let failed = f
        .backend
        .apply(vec![put(), deleting(&f, &message, &[1])].into())
        .await;
    let failed = failed.expect_err("deleted before");
    assert_eq!((failed.index, failed.completed.len()), (1, 0));
    let missing = Op::Put {
        queue: f.store.queue("missing"),
        message: NewMessage::new("follow-up"),
    };
    for last in [&[2][..], &[0, 2, 3, 4, 5, 6, 7, 8]] {
        let ops = vec![deleting(&f, &message, last), missing.clone()];
        let failed = f
            .backend
            .apply(ops.into())
            .await
            .expect_err("no such queue");
        assert_eq!(failed.index, 1);
    }
    assert_eq!(f.count().await, 2, "nothing was put or deleted");
    assert_eq!(text(&f.receive_one().await.body), "follow-up");
    let again = receive_all_again(&f).await;
    let pack = again.iter().find(|one| one.id == message.id);
    assert_eq!(pack.expect("it is there").deleted_items, set(&[1]));
}

async fn receive_all_again(f: &Fixture) -> Vec<ReceivedMessage> {
    f.advance(f.lease).await;
    f.receive(2).await
}

pub(super) async fn items_outside_a_pack_are_refused((f, message): (Fixture, ReceivedMessage)) {
    for items in [&[][..], &[OF], &[0, OF]] {
        let refused: Error = delete_items(&f, &message, items)
            .await
            .expect_err("no such item");
        assert_refused::<()>(Err(refused), ErrorKind::InvalidInput);
    }
    delete_items(&f, &message, &[OF - 1])
        .await
        .expect("an item of it");
}

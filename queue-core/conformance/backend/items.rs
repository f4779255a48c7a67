//! Deleting items of a message that is a pack.

use super::fixture::{Fixture, assert_refused, text};
use super::harness::{Harness, Survival};
use crate::backend::{Atomicity, ItemSet, NewMessage, Op, OpOutcome, ReceivedMessage};
use crate::error::{Error, ErrorKind, Result};

const OF: u32 = 9;

/// Opens a store with one message. `None` if items cannot be deleted, which is refused then.
async fn with_message(harness: &dyn Harness) -> Option<(Fixture, ReceivedMessage)> {
    let f = Fixture::open(harness).await;
    f.put("pack").await;
    let message = f.receive_one().await;
    if f.backend.capabilities().atomicity == Atomicity::Atomic {
        return Some((f, message));
    }
    let refused = delete(&f, &message, &[0]).await;
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

async fn delete(f: &Fixture, message: &ReceivedMessage, items: &[u32]) -> Result<()> {
    let op = deleting(f, message, items);
    match f.backend.apply(vec![op]).await {
        Ok(outcomes) => {
            assert_eq!(outcomes, [OpOutcome::Deleted]);
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

pub(super) async fn deleted_items_are_told_by_later_receives(harness: &dyn Harness) {
    let Some((f, first)) = with_message(harness).await else {
        return;
    };
    assert_eq!(first.deleted_items, ItemSet::default());
    delete(&f, &first, &[0, 8]).await.expect("delete two");
    delete(&f, &first, &[3])
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

pub(super) async fn a_message_goes_with_its_last_item(harness: &dyn Harness) {
    let Some((f, message)) = with_message(harness).await else {
        return;
    };
    delete(&f, &message, &[0, 1, 2, 3, 4, 5, 6, 7])
        .await
        .expect("delete all but one");
    assert_eq!(f.count().await, 1);
    delete(&f, &message, &[8]).await.expect("delete the last");
    assert_eq!(f.count().await, 0);
    let again = delete(&f, &message, &[8]).await;
    assert_refused(again, ErrorKind::MessageNotFound);
    // A message that takes over its place or number has no deleted items.
    f.put("pack").await;
    f.receive_one().await;
    assert_eq!(receive_again(&f).await.deleted_items, ItemSet::default());
}

pub(super) async fn an_item_is_deleted_once(harness: &dyn Harness) {
    let Some((f, message)) = with_message(harness).await else {
        return;
    };
    delete(&f, &message, &[4]).await.expect("delete");
    for again in [&[4][..], &[3, 4], &[4, 5]] {
        let refused = delete(&f, &message, again).await;
        assert_refused(refused, ErrorKind::MessageNotFound);
    }
    let received_again = receive_again(&f).await;
    // Whatever the receipt: it is deleted, so nobody else can have it.
    let refused = delete(&f, &message, &[4]).await;
    assert_refused(refused, ErrorKind::MessageNotFound);
    assert_eq!(received_again.deleted_items, set(&[4]));
}

pub(super) async fn a_stale_receipt_deletes_no_item(harness: &dyn Harness) {
    let Some((f, first)) = with_message(harness).await else {
        return;
    };
    let second = receive_again(&f).await;
    let refused = delete(&f, &first, &[1]).await;
    assert_refused(refused, ErrorKind::ReceiptMismatch);
    let third = receive_again(&f).await;
    assert_eq!(third.deleted_items, ItemSet::default());
    drop(second);
    delete(&f, &third, &[1]).await.expect("with its own");
}

pub(super) async fn items_are_deleted_in_one_step_with_puts(harness: &dyn Harness) {
    let Some((f, message)) = with_message(harness).await else {
        return;
    };
    let put = || Op::Put {
        queue: f.queue.clone(),
        message: NewMessage::new("follow-up"),
    };
    let done = f.backend.apply(vec![put(), deleting(&f, &message, &[1])]);
    done.await.expect("apply");
    assert_eq!(f.count().await, 2);
    let failed = f
        .backend
        .apply(vec![put(), deleting(&f, &message, &[1])])
        .await;
    let failed = failed.expect_err("deleted before");
    assert_eq!((failed.index, failed.completed.len()), (1, 0));
    let missing = Op::Put {
        queue: f.store.queue("missing"),
        message: NewMessage::new("follow-up"),
    };
    for last in [&[2][..], &[0, 2, 3, 4, 5, 6, 7, 8]] {
        let ops = vec![deleting(&f, &message, last), missing.clone()];
        let failed = f.backend.apply(ops).await.expect_err("no such queue");
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

pub(super) async fn items_outside_a_pack_are_refused(harness: &dyn Harness) {
    let Some((f, message)) = with_message(harness).await else {
        return;
    };
    for items in [&[][..], &[OF], &[0, OF]] {
        let refused: Error = delete(&f, &message, items).await.expect_err("no such item");
        assert_refused::<()>(Err(refused), ErrorKind::InvalidInput);
    }
    delete(&f, &message, &[OF - 1])
        .await
        .expect("an item of it");
}

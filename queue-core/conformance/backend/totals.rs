//! How many messages have come and gone. A backend that does not count them must never tell a number.

use super::fixture::{Fixture, LONG, assert_refused};
use super::harness::{Harness, Survival};
use crate::backend::{Atomicity, Created, Metadata, NewMessage, Op, QueueTotals, ReceivedMessage};
use crate::error::ErrorKind;
use crate::name::QueueName;

/// Opens a store. Returns `None` if its backend does not count, after checking that it does not start to.
async fn counting(harness: &dyn Harness) -> Option<Fixture> {
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
fn assert_totals(totals: QueueTotals, put: u64, deleted: u64) {
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

pub(super) async fn puts_and_deletes_are_totalled(harness: &dyn Harness) {
    let Some(f) = counting(harness).await else {
        return;
    };
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
    f.backend.apply(ops).await.expect("apply");
    assert_totals(totals(&f).await, 4, 2);
}

pub(super) async fn totals_go_on_after_a_clear(harness: &dyn Harness) {
    let Some(f) = counting(harness).await else {
        return;
    };
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

pub(super) async fn a_moved_message_is_totalled_on_both_queues(harness: &dyn Harness) {
    let Some(f) = counting(harness).await else {
        return;
    };
    let poison = f.store.queue("poison");
    f.create(&poison).await;
    f.put("moved").await;
    let message = f.receive_one().await;
    let ops = vec![put_op(&poison), delete_op(&f.queue, &message)];
    f.backend.apply(ops).await.expect("apply");
    assert_totals(totals(&f).await, 1, 1);
    assert_totals(totals_of(&f, &poison).await, 1, 0);
}

pub(super) async fn what_is_undone_is_not_totalled(harness: &dyn Harness) {
    let Some(f) = counting(harness).await else {
        return;
    };
    f.put("stays").await;
    let message = f.receive_one().await;
    let missing = f.store.queue("missing");
    let ops = vec![
        put_op(&f.queue),
        delete_op(&f.queue, &message),
        put_op(&missing),
    ];
    let failed = f.backend.apply(ops).await;
    failed.expect_err("the queue is missing");
    match f.backend.capabilities().atomicity {
        Atomicity::Atomic => assert_totals(totals(&f).await, 1, 0),
        Atomicity::InOrder => assert_totals(totals(&f).await, 2, 1),
    }
}

pub(super) async fn expired_messages_are_totalled_once_removed(harness: &dyn Harness) {
    let Some(f) = counting(harness).await else {
        return;
    };
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

pub(super) async fn totals_are_those_of_all_clients(harness: &dyn Harness) {
    let Some(f) = counting(harness).await else {
        return;
    };
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

pub(super) async fn totals_survive_like_messages(harness: &dyn Harness) {
    let Some(mut f) = counting(harness).await else {
        return;
    };
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

//! Several operations in one call.

use std::time::Duration;

use bytes::Bytes;

use super::fixture::{Fixture, assert_lease_gone, text};
use super::harness::Harness;
use crate::backend::{ApplyError, Atomicity, Metadata, NewMessage, Op, OpOutcome, ReceivedMessage};
use crate::error::{ErrorKind, Outcome};
use crate::name::QueueName;

pub(super) async fn nothing_to_apply_does_nothing(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    assert_eq!(f.backend.apply(Vec::new()).await.expect("apply"), []);
}

pub(super) async fn operations_apply_across_queues(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let poison = f.store.queue("orders-poison");
    f.create(&poison).await;
    f.put("a").await;
    f.put("b").await;
    let received = f.receive(2).await;
    let outcomes = f.backend.apply(vec![
        put(&poison, "moved"),
        delete(&f.queue, &received[0]),
        update(&f.queue, &received[1], "changed"),
        put(&f.queue, "c"),
    ]);
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

pub(super) async fn receipts_from_an_apply_are_valid(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    f.put("a").await;
    let message = f.receive_one().await;
    let ops = vec![update(&f.queue, &message, "changed"), put(&f.queue, "b")];
    let outcomes = f.backend.apply(ops).await.expect("apply");
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

pub(super) async fn later_operations_see_earlier_ones(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    f.put("a").await;
    let message = f.receive_one().await;
    let twice = vec![delete(&f.queue, &message), delete(&f.queue, &message)];
    let refused = f.backend.apply(twice).await.expect_err("deleted twice");
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

/// Applies a put, an update and a delete, with a failing operation inserted at `position`.
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
    let refused = f.backend.apply(ops).await.expect_err("one fails");
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

/// Asserts that exactly the first `done` of the three operations were carried out.
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

pub(super) async fn a_refused_argument_spoils_an_atomic_apply(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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
        .apply(ops)
        .await
        .expect_err("the delay is too long");
    assert_eq!(refused.index, 1);
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(f.count().await, refused.completed.len() as u64);
    if f.backend.capabilities().atomicity == Atomicity::Atomic {
        assert_eq!(refused.completed, []);
    }
}

pub(super) async fn many_operations_apply(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let other = f.store.queue("other");
    let created = f.backend.create_queue(&other, &Metadata::new()).await;
    created.expect("create");
    let ops = (0..200)
        .map(|n| put(if n % 2 == 0 { &f.queue } else { &other }, "one"))
        .collect();
    assert_eq!(f.backend.apply(ops).await.expect("apply").len(), 200);
    assert_eq!(f.count().await, 100);
}

pub(super) async fn an_apply_is_bounded(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let capabilities = f.backend.capabilities();
    let (most, bytes) = (capabilities.max_apply, capabilities.max_apply_bytes);
    let too_many = vec![put(&f.queue, "one"); most + 1];
    let refused = f.backend.apply(too_many).await.expect_err("too many");
    assert_eq!(refused.index, most);
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(refused.error.outcome(), Outcome::NotDone);
    assert_eq!(refused.completed, []);

    let body = Bytes::from(vec![b'x'; capabilities.max_body]);
    let large = |count: usize| {
        let put = Op::Put {
            queue: f.queue.clone(),
            message: NewMessage::new(body.clone()),
        };
        vec![put; count]
    };
    // One body is not counted.
    let fitting = bytes / body.len() + 1;
    if fitting < most {
        let refused = f.backend.apply(large(fitting + 1)).await;
        let refused = refused.expect_err("too large");
        assert_eq!(refused.index, fitting);
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
        assert_eq!(refused.completed, []);
    }
    assert_eq!(f.count().await, 0);

    if capabilities.atomicity == Atomicity::Atomic {
        let applied = f.backend.apply(vec![put(&f.queue, "one"); most]).await;
        assert_eq!(applied.expect("at the limit").len(), most);
        let applied = f.backend.apply(large(fitting.min(most))).await;
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
    Op::Update {
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

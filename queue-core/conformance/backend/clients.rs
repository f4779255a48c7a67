//! Several clients of one store, in turn and at the same time, and clocks that are stepped back.

use std::time::Duration;

use super::fixture::{Fixture, LONG, assert_lease_gone, assert_refused, metadata, text};
use super::harness::{Harness, Stepped, Survival};
use crate::backend::{Metadata, NewMessage};
use crate::error::ErrorKind;

pub(super) async fn a_second_client_sees_the_same(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let other = f.store.second_client().await;
    assert_eq!(other.queue_uri(&f.queue), f.backend.queue_uri(&f.queue));
    f.put("one").await;
    let received = other.receive(&f.queue, 1, f.lease).await.expect("receive");
    assert_eq!(text(&received[0].body), "one");
    f.assert_nothing_visible().await;
    f.advance(f.lease * 2).await;
    let mine = f.receive_one().await;
    assert_eq!(mine.dequeue_count, 2);
    let theirs = &received[0];
    let stale = other.delete(&f.queue, &theirs.id, &theirs.receipt).await;
    assert_lease_gone(stale);
    f.delete(&mine).await.expect("delete");
    let properties = other.properties(&f.queue).await.expect("properties");
    assert_eq!(properties.approximate_count, 0);
}

pub(super) async fn a_receipt_is_good_for_every_client(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let other = f.store.second_client().await;
    f.put("one").await;
    let message = f.receive_one().await;
    let deleted = other.delete(&f.queue, &message.id, &message.receipt).await;
    deleted.expect("delete");
    assert_lease_gone(f.delete(&message).await);
}

pub(super) async fn queues_made_and_deleted_elsewhere_are_noticed(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let other = f.store.second_client().await;
    let queue = f.store.queue("fleeting");
    let missing = f.backend.put(&queue, NewMessage::new("early")).await;
    assert_refused(missing, ErrorKind::QueueNotFound);
    let created = other.create_queue(&queue, &Metadata::new()).await;
    created.expect("create");
    let put = f.backend.put(&queue, NewMessage::new("one")).await;
    put.expect("put");
    other.delete_queue(&queue).await.expect("delete");
    let put = f.backend.put(&queue, NewMessage::new("two")).await;
    assert_refused(put, ErrorKind::QueueNotFound);
    let received = f.backend.receive(&queue, 1, f.lease).await;
    assert_refused(received, ErrorKind::QueueNotFound);
    let listed = f.backend.list_queues(queue.as_str()).await;
    assert_eq!(listed.expect("list"), []);
}

pub(super) async fn a_queue_cleared_elsewhere_is_empty(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let other = f.store.second_client().await;
    f.put("one").await;
    let message = f.receive_one().await;
    f.put("two").await;
    other.clear(&f.queue).await.expect("clear");
    f.assert_nothing_visible().await;
    assert_lease_gone(f.delete(&message).await);
    f.put("three").await;
    assert_eq!(f.drain().await, ["three"]);
}

pub(super) async fn reopening_finds_what_survives(harness: &dyn Harness) {
    let mut f = Fixture::open(harness).await;
    let of_five = metadata(&[("poisonthreshold", "5")]);
    let set = f.backend.set_metadata(&f.queue, &of_five).await;
    set.expect("set metadata");
    f.put("leased").await;
    let leased = f.receive_for(1, LONG).await.pop().expect("visible");
    f.put("again").await;
    let again = f.receive_one().await;
    f.put_message(NewMessage::new("delayed").with_delay(f.lease * 2))
        .await;
    f.put("visible").await;

    f = f.reopen().await;

    if f.store.survival() == Survival::Gone {
        let missing = f.backend.properties(&f.queue).await;
        return assert_refused(missing, ErrorKind::QueueNotFound);
    }
    let properties = f.backend.properties(&f.queue).await.expect("properties");
    assert_eq!(properties.metadata, of_five);
    assert_eq!(properties.approximate_count, 4);
    assert_eq!(f.drain().await, ["visible"]);
    f.advance(f.lease).await;
    let received = f.receive_one().await;
    assert_eq!(received.id, again.id);
    assert_eq!(received.dequeue_count, 2);
    assert_lease_gone(f.delete(&again).await);
    f.delete(&leased).await.expect("the lease survived");
    f.advance(f.lease * 2).await;
    let mut bodies = f.drain().await;
    bodies.sort();
    assert_eq!(bodies, ["again", "delayed"]);
}

pub(super) async fn ids_are_not_given_again_after_reopening(harness: &dyn Harness) {
    let mut f = Fixture::open(harness).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let put = f.put("one").await;
        let deleted = f.backend.delete(&f.queue, &put.id, &put.receipt).await;
        deleted.expect("delete");
        ids.push(put.id);
        f = f.reopen().await;
        if f.store.survival() == Survival::Gone {
            return;
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

pub(super) async fn a_clock_stepped_back_does_not_prolong_leases(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    f.put("one").await;
    let first = f.receive_one().await;
    f.put_message(NewMessage::new("delayed").with_delay(f.lease))
        .await;
    if f.store.step_back(Duration::from_secs(3600)) == Stepped::OutOfReach {
        return;
    }
    f.assert_nothing_visible().await;
    f.advance(f.lease).await;
    let mut bodies = f.drain().await;
    bodies.sort();
    assert_eq!(bodies, ["delayed", "one"]);
    assert_lease_gone(f.delete(&first).await);
}

pub(super) async fn a_clock_stepped_back_while_closed_hides_nothing_for_long(
    harness: &dyn Harness,
) {
    let mut f = Fixture::open(harness).await;
    if f.store.survival() == Survival::Gone {
        return;
    }
    f.put("one").await;
    f.receive_one().await;
    if f.store.step_back(Duration::from_secs(3600)) == Stepped::OutOfReach {
        return;
    }
    f = f.reopen().await;
    f.put("two").await;
    assert_eq!(f.drain().await, ["two"], "what is put now is visible now");
    f.advance(f.lease * 2).await;
    assert_eq!(f.drain().await, ["one"]);
}

//! When messages are visible, in which order, and when they expire.

use std::time::Duration;

use bytes::Bytes;

use super::harness::{Fixture, LONG, Ordering, assert_lease_gone, assert_refused, text};
use crate::backend::{BackendExt as _, NewMessage, Places, PutBackPlace, ReceivedMessage};
use crate::error::ErrorKind;
use crate::ext::between;

pub(super) async fn what_was_put_is_received(f: Fixture) {
    let put = f.put("hello").await;
    assert_eq!(put.expires_at, None);
    assert_eq!(between(put.inserted_at, put.visible_at), Duration::ZERO);
    let message = f.receive_one().await;
    assert_eq!(message.id, put.id);
    assert_eq!(text(&message.body), "hello");
    assert_eq!(message.dequeue_count, 1);
    assert_eq!(message.inserted_at, put.inserted_at);
    assert_eq!(message.expires_at, None);
    assert!(between(put.inserted_at, message.visible_at) >= f.lease);
    assert_ne!(message.receipt, put.receipt);
}

pub(super) async fn an_empty_queue_gives_nothing(f: Fixture) {
    f.assert_nothing_visible().await;
    assert_eq!(f.backend.peek(&f.queue, 1).await.expect("peek"), []);
    f.put("one").await;
    let message = f.receive_one().await;
    f.delete(&message).await.expect("delete");
    f.assert_nothing_visible().await;
}

pub(super) async fn a_received_message_is_hidden_until_its_lease_ends(f: Fixture) {
    f.put("one").await;
    let first = f.receive_one().await;
    if !f.is_hidden(&first).await {
        return;
    }
    f.advance(f.lease / 2).await;
    if !f.is_hidden(&first).await {
        return;
    }
    f.advance(f.lease).await;
    let second = f.receive_one().await;
    assert_eq!(second.id, first.id);
    assert_eq!(second.body, first.body);
    assert_eq!(second.inserted_at, first.inserted_at);
}

pub(super) async fn a_lease_ends_on_time(f: Fixture) {
    f.put("one").await;
    let before = f.receive_one().await.visible_at;
    f.advance(f.lease).await;
    let message = f.receive_one().await;
    assert!(
        message.visible_at > before,
        "the lease ends at its end, not after it"
    );
}

pub(super) async fn a_receive_tells_the_time_of_the_storage(f: Fixture) {
    f.put("one").await;
    f.advance(f.lease).await;
    let first = f.receive_one().await;
    assert!(between(first.inserted_at, first.received_at) >= f.lease);
    assert_eq!(between(first.received_at, first.visible_at), f.lease);
    f.advance(f.lease).await;
    let second = f.receive_one().await;
    assert!(between(first.received_at, second.received_at) >= f.lease);
}

pub(super) async fn a_message_that_is_put_back_is_hidden_for_the_delay(f: Fixture) {
    f.put("later").await;
    let held = f.receive_one().await;
    let (id, receipt, delay) = (&held.id, &held.receipt, 2 * f.lease);
    let place = PutBackPlace::After(delay);
    let put_back = f.backend.put_back(&f.queue, id, receipt, place, None).await;
    let put_back = put_back.expect("put back");
    assert!(between(held.received_at, put_back.visible_at) >= delay);
    let hidden = ReceivedMessage {
        visible_at: put_back.visible_at,
        ..held.clone()
    };
    if f.is_hidden(&hidden).await {
        f.advance(delay).await;
        assert_eq!(f.receive_one().await.id, held.id);
    }
}

pub(super) async fn a_delayed_message_is_hidden_until_then(f: Fixture) {
    let delayed = NewMessage::new("later").with_delay(f.lease);
    let put = f.put_message(delayed).await;
    assert!(between(put.inserted_at, put.visible_at) >= f.lease);
    f.assert_nothing_visible().await;
    f.put("now").await;
    assert_eq!(f.drain().await, ["now"]);
    f.advance(f.lease).await;
    let message = f.receive_one().await;
    assert_eq!(text(&message.body), "later");
    assert_eq!(message.dequeue_count, 1);
}

pub(super) async fn each_receive_raises_the_dequeue_count(f: Fixture) {
    f.put("one").await;
    for expected in 1..=3 {
        let message = f.receive_one().await;
        assert_eq!(message.dequeue_count, expected);
        f.update(&message, Duration::ZERO, None)
            .await
            .expect("put back");
    }
    let peeked = f.backend.peek(&f.queue, 1).await.expect("peek");
    assert_eq!(peeked[0].dequeue_count, 3);
}

pub(super) async fn peeking_changes_nothing(f: Fixture) {
    let put = f.put("one").await;
    f.put_message(NewMessage::new("later").with_delay(LONG))
        .await;
    for _ in 0..3 {
        let peeked = f.backend.peek(&f.queue, 10).await.expect("peek");
        assert_eq!(peeked.len(), 1, "only what is visible");
        assert_eq!(peeked[0].id, put.id);
        assert_eq!(text(&peeked[0].body), "one");
        assert_eq!(peeked[0].dequeue_count, 0);
        assert_eq!(peeked[0].inserted_at, put.inserted_at);
    }
    let message = f.receive_one().await;
    assert_eq!(message.dequeue_count, 1);
    assert_eq!(f.backend.peek(&f.queue, 10).await.expect("peek"), []);
    f.delete(&message).await.expect("delete");
}

pub(super) async fn a_receive_gives_at_most_what_was_asked(f: Fixture) {
    for body in ["a", "b", "c", "d", "e"] {
        f.put(body).await;
    }
    assert_eq!(f.backend.peek(&f.queue, 2).await.expect("peek").len(), 2);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let received = f.receive_for(2, LONG).await;
        assert!(received.len() <= 2);
        ids.extend(received.into_iter().map(|message| message.id));
    }
    ids.extend(f.receive_for(2, LONG).await.into_iter().map(|m| m.id));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5, "each once");
}

pub(super) async fn messages_come_by_visibility_then_in_order(f: Fixture) {
    let step = f.lease / 4;
    f.put("held").await;
    let held = f.receive_one().await;
    f.put_message(NewMessage::new("third").with_delay(step * 2))
        .await;
    f.put_message(NewMessage::new("second").with_delay(step))
        .await;
    f.put("first a").await;
    f.put("first b").await;
    f.update(&held, step * 3, None).await.expect("update");
    f.advance(f.lease).await;
    f.put("last").await;
    let mut bodies = f.drain().await;
    let mut expected = ["first a", "first b", "second", "third", "held", "last"];
    if f.store.ordering() == Ordering::BestEffort {
        bodies.sort();
        expected.sort_unstable();
    }
    assert_eq!(bodies, expected);
}

pub(super) async fn many_come_in_the_order_of_the_puts(f: Fixture) {
    let bodies: Vec<String> = (0..100).map(|number| format!("{number:03}")).collect();
    for body in &bodies {
        f.put_message(NewMessage::new(body.clone())).await;
    }
    let mut received = f.drain().await;
    if f.store.ordering() == Ordering::BestEffort {
        received.sort();
    }
    assert_eq!(received, bodies);
}

pub(super) async fn an_update_of_zero_shows_the_message_at_once(f: Fixture) {
    f.put("one").await;
    let message = f.receive_for(1, LONG).await.pop().expect("visible");
    f.assert_nothing_visible().await;
    let updated = f.update(&message, Duration::ZERO, None).await;
    updated.expect("update");
    assert_eq!(f.receive_one().await.id, message.id);
}

pub(super) async fn what_is_handed_back_keeps_its_place(f: Fixture) {
    for body in ["a", "b", "c", "d"] {
        f.put(body).await;
    }
    let mut held = f.receive_for(2, LONG).await;
    if held.len() == 1 {
        held.extend(f.receive_for(1, LONG).await);
    }
    f.advance(f.lease).await;
    f.put("e").await;
    let [first, second] = &held[..] else {
        panic!("two are visible: {held:?}")
    };
    let (backend, queue) = (&f.backend, &f.queue);
    let hand_back = |message: &ReceivedMessage, body: Option<&'static str>| {
        let (id, receipt) = (message.id.clone(), message.receipt.clone());
        let body = body.map(Bytes::from);
        async move {
            let kept = PutBackPlace::Kept;
            backend.put_back(queue, &id, &receipt, kept, body).await
        }
    };
    hand_back(second, None).await.expect("handed back");
    hand_back(first, Some("changed"))
        .await
        .expect("handed back");
    assert_lease_gone(hand_back(first, None).await);
    let keeps = f.backend.capabilities().places == Places::Kept;
    let mut received = Vec::new();
    while received.len() < 5 {
        let more = f.receive_for(5, LONG).await;
        assert!(!more.is_empty(), "all are visible: {received:?}");
        received.extend(more);
    }
    let mut bodies: Vec<String> = received.iter().map(|one| text(&one.body)).collect();
    let again = received.iter().find(|one| one.id == first.id);
    let again = again.expect("it is visible");
    assert_eq!(
        (again.dequeue_count, again.inserted_at),
        (2, first.inserted_at)
    );
    let changed = |body: &str| match body {
        body if body == text(&first.body) => "changed".to_owned(),
        body => body.to_owned(),
    };
    let mut expected: Vec<String> = ["a", "b", "c", "d", "e"].map(changed).into();
    if !keeps || f.store.ordering() == Ordering::BestEffort {
        bodies.sort();
        expected.sort_unstable();
    }
    assert_eq!(bodies, expected);
}

pub(super) async fn an_update_prolongs_and_shortens_the_lease(f: Fixture) {
    f.put("one").await;
    let mut message = f.receive_one().await;
    let lease = f.update(&message, f.lease * 3, None).await.expect("update");
    assert!(lease.visible_at > message.visible_at);
    f.advance(f.lease + f.lease / 2).await;
    f.assert_nothing_visible().await;
    message.receipt = lease.receipt;
    f.update(&message, f.lease / 2, None).await.expect("update");
    f.advance(f.lease).await;
    assert_eq!(f.receive_one().await.dequeue_count, 2);
}

pub(super) async fn a_message_behind_many_hidden_ones_is_found(f: Fixture) {
    for _ in 0..300 {
        f.put_message(NewMessage::new("hidden").with_delay(LONG))
            .await;
    }
    f.put("one").await;
    assert_eq!(f.drain().await, ["one"]);
}

pub(super) async fn an_expired_message_is_never_seen(f: Fixture) {
    let put = f.put_living("brief", f.lease).await;
    let expires_at = put.expires_at.expect("it expires");
    assert!(between(put.inserted_at, expires_at) >= f.lease);
    f.put("lasting").await;
    f.advance(f.lease * 2).await;
    let peeked = f.backend.peek(&f.queue, 10).await.expect("peek");
    assert_eq!(peeked.len(), 1);
    assert_eq!(f.drain().await, ["lasting"]);
    assert_lease_gone(f.backend.delete(&f.queue, &put.id, &put.receipt).await);
}

pub(super) async fn a_message_lives_until_it_expires(f: Fixture) {
    let put = f.put_living("brief", f.lease * 4).await;
    f.advance(f.lease).await;
    let message = f.receive_one().await;
    assert_eq!(message.expires_at, put.expires_at);
    f.delete(&message).await.expect("delete");
}

pub(super) async fn a_leased_message_expires(f: Fixture) {
    f.put_living("brief", f.lease).await;
    let message = f.receive_for(1, LONG).await.pop().expect("visible");
    f.advance(f.lease * 2).await;
    assert_lease_gone(f.update(&message, Duration::ZERO, None).await);
    assert_lease_gone(f.delete(&message).await);
    f.assert_nothing_visible().await;
}

pub(super) async fn an_update_does_not_prolong_life(f: Fixture) {
    f.put_living("brief", f.lease * 2).await;
    let message = f.receive_one().await;
    let updated = f.update(&message, f.lease / 2, Some("changed")).await;
    updated.expect("update");
    f.advance(f.lease).await;
    let again = f.receive_one().await;
    assert_eq!(again.expires_at, message.expires_at);
    f.advance(f.lease * 2).await;
    f.assert_nothing_visible().await;
    assert_lease_gone(f.delete(&again).await);
}

pub(super) async fn an_update_beyond_the_expiry_is_refused_or_ends_there(f: Fixture) {
    f.put_living("brief", f.lease * 2).await;
    let mut message = f.receive_one().await;
    match f.update(&message, f.lease * 4, None).await {
        Ok(lease) => message.receipt = lease.receipt,
        Err(error) => assert_refused::<()>(Err(error), ErrorKind::InvalidInput),
    }
    // Refused or not, the update leaves the receipt valid.
    let updated = f.update(&message, f.lease / 2, None).await;
    message.receipt = updated.expect("update").receipt;
    f.advance(f.lease * 3).await;
    assert_lease_gone(f.delete(&message).await);
    f.assert_nothing_visible().await;
}

pub(super) async fn many_expired_hide_nothing_behind_them(f: Fixture) {
    for _ in 0..300 {
        f.put_living("brief", f.lease).await;
    }
    f.put("lasting").await;
    f.advance(f.lease * 2).await;
    assert_eq!(f.drain().await, ["lasting"]);
}

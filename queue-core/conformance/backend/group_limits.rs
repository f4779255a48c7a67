//! The limits of groups: how many messages of a group are leased at once, and whose turn is next.

use std::time::Duration;

use super::groups::{assert_are, grouping, in_group, put_all, receive_all};
use super::harness::{Fixture, Harness, LONG, assert_refused, metadata, text};
use crate::backend::{
    BackendExt as _, GROUP_LIMIT, Groups, NewMessage, Op, PutBackPlace, ReceivedMessage, TimeToLive,
};
use crate::error::{ErrorKind, Result};

/// Opens a store that keeps limits of groups; `None` if they are refused.
pub(super) async fn limiting(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    if f.backend.capabilities().groups == Groups::Supported {
        return grouping(harness).await;
    }
    assert_refused(limit(&f, "3").await, ErrorKind::Unsupported);
    None
}

async fn limit(f: &Fixture, limit: &str) -> Result<()> {
    let metadata = metadata(&[(GROUP_LIMIT, limit), ("other", "kept")]);
    f.backend.set_metadata(&f.queue, &metadata).await
}

async fn limited(f: &Fixture, to: &str) {
    limit(f, to).await.expect("the limit is set");
}

async fn put_back(f: &Fixture, message: &ReceivedMessage, delay: Duration) {
    let (id, receipt) = (&message.id, &message.receipt);
    let place = PutBackPlace::After(delay);
    let put_back = f.backend.put_back(&f.queue, id, receipt, place, None).await;
    put_back.expect("put back");
}

/// Lets time pass, so that what becomes visible from now on comes after what is visible.
async fn pause(f: &Fixture) {
    f.advance(f.lease / 8).await;
}

pub(super) async fn at_most_so_many_messages_of_a_group_are_held(f: Fixture) {
    limited(&f, "2").await;
    put_all(&f, &["a1", "a2", "a3", "a4", "b1", "-1"]).await;
    let mut held = receive_all(&f).await;
    held.sort_by(|one, other| one.body.cmp(&other.body));
    let held = assert_are(held, &["-1", "a1", "a2", "b1"]);
    f.delete(&held[2]).await.expect("delete");
    let third = assert_are(receive_all(&f).await, &["a3"]);
    pause(&f).await;
    put_back(&f, &third[0], Duration::ZERO).await;
    let third = assert_are(receive_all(&f).await, &["a4"]);
    f.delete(&third[0]).await.expect("delete");
    f.delete(&held[1]).await.expect("delete");
    assert_are(receive_all(&f).await, &["a3"]);
}

pub(super) async fn groups_take_turns(f: Fixture) {
    limited(&f, "unlimited").await;
    put_all(&f, &["a1", "a2", "a3", "a4", "b1"]).await;
    pause(&f).await;
    assert_are(receive_all(&f).await, &["a1", "b1", "a2", "a3", "a4"]);
}

pub(super) async fn a_group_at_its_limit_takes_turns(f: Fixture) {
    limited(&f, "1").await;
    put_all(&f, &["a1", "a2", "a3"]).await;
    pause(&f).await;
    let first = f.receive_one().await;
    pause(&f).await;
    put_all(&f, &["b1"]).await;
    f.delete(&first).await.expect("delete");
    pause(&f).await;
    // One message of each group, at most, comes before it.
    let next = f.receive_one().await;
    f.delete(&next).await.expect("delete");
    let mut two = vec![text(&next.body), text(&f.receive_one().await.body)];
    two.sort();
    assert_eq!(two, ["a2", "b1"]);
}

pub(super) async fn a_settlement_leaves_what_waits_in_its_place(f: Fixture) {
    limited(&f, "unlimited").await;
    put_all(&f, &["a1", "a2", "a3", "a4", "a5"]).await;
    pause(&f).await;
    let first = f.receive_for(1, LONG).await;
    pause(&f).await;
    assert_are(f.receive_for(1, LONG).await, &["a2"]);
    pause(&f).await;
    // The third waits since the receive of the second, and is still the next one.
    f.delete(&first[0]).await.expect("delete");
    pause(&f).await;
    put_all(&f, &["b1"]).await;
    pause(&f).await;
    assert_are(f.receive_for(2, LONG).await, &["a3", "b1"]);
    pause(&f).await;
    assert_are(f.receive_for(1, LONG).await, &["a4"]);
}

pub(super) async fn a_message_that_waits_lets_others_of_its_group_pass(f: Fixture) {
    limited(&f, "1").await;
    let delayed = in_group("a", "a1").with_delay(2 * f.lease);
    f.put_message(delayed).await;
    put_all(&f, &["a2", "a3"]).await;
    let second = assert_are(receive_all(&f).await, &["a2"]);
    put_back(&f, &second[0], 2 * f.lease).await;
    let third = assert_are(receive_all(&f).await, &["a3"]);
    f.advance(2 * f.lease).await;
    f.assert_nothing_visible().await;
    f.delete(&third[0]).await.expect("delete");
    let mut rest = Vec::new();
    for _ in 0..2 {
        let one = f.receive_one().await;
        f.delete(&one).await.expect("delete");
        rest.push(text(&one.body));
    }
    rest.sort();
    assert_eq!(rest, ["a1", "a2"]);
}

pub(super) async fn a_lease_that_ends_makes_room(f: Fixture) {
    limited(&f, "2").await;
    put_all(&f, &["a1", "a2", "a3"]).await;
    let short = f.receive_one().await;
    let long = assert_are(f.receive_for(2, LONG).await, &["a2"]);
    f.advance(f.lease).await;
    let again = f.receive_for(2, LONG).await;
    let again = assert_are(again, &["a1"]);
    assert!(again[0].fence > short.fence, "{again:?} after {short:?}");
    f.delete(&long[0]).await.expect("delete");
    assert_are(receive_all(&f).await, &["a3"]);
}

pub(super) async fn a_renewed_lease_keeps_its_room(f: Fixture) {
    limited(&f, "1").await;
    put_all(&f, &["a1", "a2"]).await;
    let first = f.receive_one().await;
    let (id, receipt) = (&first.id, &first.receipt);
    let renewed = f.backend.renew(&f.queue, id, receipt, LONG, None).await;
    let lease = renewed.expect("renewed");
    f.advance(f.lease).await;
    f.assert_nothing_visible().await;
    let receipt = &lease.receipt;
    let deleted = f.backend.delete(&f.queue, id, receipt).await;
    deleted.expect("delete");
    assert_are(receive_all(&f).await, &["a2"]);
}

pub(super) async fn an_expired_message_makes_room(f: Fixture) {
    limited(&f, "1").await;
    for body in ["a1", "a2"] {
        let short = TimeToLive::After(f.lease);
        let message = in_group("a", body).with_time_to_live(short);
        f.put_message(message).await;
    }
    put_all(&f, &["a3"]).await;
    assert_eq!(f.receive_for(8, LONG).await.len(), 1);
    f.advance(f.lease).await;
    assert_are(receive_all(&f).await, &["a3"]);
}

pub(super) async fn the_number_changes_at_any_time(f: Fixture) {
    limited(&f, "3").await;
    put_all(&f, &["a1", "a2", "a3", "a4", "a5", "a6"]).await;
    let held = f.receive_for(1, LONG).await;
    let second = f.receive_for(1, LONG).await;
    limited(&f, "2").await;
    f.assert_nothing_visible().await;
    limited(&f, "1").await;
    f.delete(&held[0]).await.expect("delete");
    f.assert_nothing_visible().await;
    f.delete(&second[0]).await.expect("delete");
    assert_eq!(f.receive_for(8, LONG).await.len(), 1);
    limited(&f, "3").await;
    assert_eq!(receive_all(&f).await.len(), 2);
    limited(&f, "unlimited").await;
    assert_eq!(receive_all(&f).await.len(), 1);
}

pub(super) async fn order_and_turns_do_not_change_while_there_are_groups(f: Fixture) {
    put_all(&f, &["-1"]).await;
    limited(&f, "3").await;
    put_all(&f, &["a1", "a2"]).await;
    assert_refused(limit(&f, "order").await, ErrorKind::Conflict);
    let all = receive_all(&f).await;
    for message in &all {
        f.delete(message).await.expect("delete");
    }
    limited(&f, "order").await;
    put_all(&f, &["a1", "a2"]).await;
    assert_refused(limit(&f, "unlimited").await, ErrorKind::Conflict);
    let other = metadata(&[("other", "changed")]);
    let set = f.backend.set_metadata(&f.queue, &other).await;
    set.expect("the order of groups stays");
    let first = assert_are(f.receive_for(8, LONG).await, &["a1"]);
    f.delete(&first[0]).await.expect("delete");
    assert_are(f.receive_for(8, LONG).await, &["a2"]);
}

pub(super) async fn a_queue_has_its_limit_from_its_creation(f: Fixture) {
    let other = f.store.queue("bills");
    let metadata = metadata(&[(GROUP_LIMIT, "2")]);
    let created = f.backend.create_queue(&other, &metadata).await;
    created.expect("created");
    for body in ["a1", "a2", "a3"] {
        let put = f.backend.put(&other, in_group("a", body)).await;
        put.expect("put");
    }
    f.backend.clear(&other).await.expect("clear");
    for body in ["a4", "a5", "a6"] {
        let put = f.backend.put(&other, in_group("a", body)).await;
        put.expect("put");
    }
    let mut received = Vec::new();
    for _ in 0..3 {
        let some = f.backend.receive(&other, 8, LONG).await;
        received.extend(some.expect("receive"));
    }
    assert_eq!(received.len(), 2, "{received:?}");
}

pub(super) async fn what_is_undone_leaves_the_turns_as_they_were(f: Fixture) {
    limited(&f, "2").await;
    put_all(&f, &["a1", "a2", "a3", "-1"]).await;
    let mut held = receive_all(&f).await;
    held.sort_by(|one, other| one.body.cmp(&other.body));
    let held = assert_are(held, &["-1", "a1", "a2"]);
    f.delete(&held[0]).await.expect("delete");
    let delete = |message: &ReceivedMessage| Op::Delete {
        queue: f.queue.clone(),
        id: message.id.clone(),
        receipt: message.receipt.clone(),
        moved: false,
    };
    let put_back = Op::PutBack {
        queue: f.queue.clone(),
        id: held[2].id.clone(),
        receipt: held[2].receipt.clone(),
        place: PutBackPlace::After(Duration::ZERO),
        body: None,
    };
    let refused = [delete(&held[1]), put_back, delete(&held[0])];
    let refused = f.backend.apply(refused.into_iter().collect()).await;
    assert_eq!(refused.expect_err("refused").index, 2);
    f.assert_nothing_visible().await;
    for message in &held[1..] {
        f.delete(message).await.expect("delete");
    }
    assert_are(receive_all(&f).await, &["a3"]);
}

pub(super) async fn what_is_no_limit_is_refused(f: Fixture) {
    let other = f.store.queue("bills");
    for wrong in ["0", "-1", "1.5", "many", "", "4294967296"] {
        assert_refused(limit(&f, wrong).await, ErrorKind::InvalidInput);
        let metadata = metadata(&[(GROUP_LIMIT, wrong)]);
        let created = f.backend.create_queue(&other, &metadata).await;
        assert_refused(created, ErrorKind::InvalidInput);
    }
}

pub(super) async fn a_backlog_in_turns_is_received_within_its_limits(f: Fixture) {
    const MESSAGES: usize = 300;
    limited(&f, "2").await;
    for number in 0..MESSAGES {
        let group = ["a", "b", "c"][number * number % 7 % 3];
        let message = NewMessage::new(format!("{group}{number}")).with_group(Some(group));
        f.put_message(message).await;
    }
    let mut bodies = Vec::new();
    while bodies.len() < MESSAGES {
        // All are received before the first is deleted: two of each group.
        let received = receive_all(&f).await;
        let are_allowed = match bodies.len() {
            0 => received.len() == 6,
            _ => !received.is_empty(),
        };
        let handled = bodies.len();
        assert!(are_allowed, "after {handled}: {received:?}");
        for group in ["a", "b", "c"] {
            let of = received
                .iter()
                .filter(|it| it.body.starts_with(group.as_bytes()));
            assert!(of.count() <= 2, "{received:?}");
        }
        for (at, message) in received.iter().enumerate() {
            if at % 3 == 2 {
                put_back(&f, message, Duration::ZERO).await;
            } else {
                f.delete(message).await.expect("delete");
                bodies.push(text(&message.body));
            }
        }
    }
    bodies.sort();
    bodies.dedup();
    assert_eq!((bodies.len(), f.count().await), (MESSAGES, 0));
}

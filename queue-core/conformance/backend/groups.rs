//! The messages of a group: in the order of their puts, one at a time.

use std::time::Duration;

use bytes::Bytes;

use super::harness::{Fixture, Harness, LONG, assert_refused, text};
use crate::backend::{
    BackendExt as _, Groups, MAX_GROUP, MessageState, NewMessage, Op, PutBackPlace,
    ReceivedMessage, TimeToLive,
};
use crate::error::ErrorKind;
use crate::ext::between;

/// Opens a store that keeps the order of groups; `None` if puts with a group are refused.
pub(super) async fn grouping(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    if f.backend.capabilities().groups == Groups::Supported {
        return Some(f);
    }
    let put = f.backend.put(&f.queue, in_group("a", "a1")).await;
    assert_refused(put, ErrorKind::Unsupported);
    None
}

pub(super) fn in_group(group: &str, body: &'static str) -> NewMessage {
    NewMessage::new(body).with_group(Some(group))
}

/// Puts messages, each in the group that its first letter names, or in none if that is `-`.
pub(super) async fn put_all(f: &Fixture, bodies: &[&'static str]) {
    for body in bodies {
        let group = Some(&body[..1]).filter(|group| *group != "-");
        let message = NewMessage::new(*body).with_group(group);
        f.put_message(message).await;
    }
}

/// Receives all that is visible, for a long lease.
pub(super) async fn receive_all(f: &Fixture) -> Vec<ReceivedMessage> {
    let mut received = Vec::new();
    loop {
        let some = f.receive_for(8, LONG).await;
        if some.is_empty() {
            return received;
        }
        received.extend(some);
    }
}

/// Asserts that these messages are received, in this order, and returns them.
#[track_caller]
pub(super) fn assert_are(
    received: Vec<ReceivedMessage>,
    expected: &[&str],
) -> Vec<ReceivedMessage> {
    let bodies: Vec<_> = received.iter().map(|message| text(&message.body)).collect();
    assert_eq!(bodies, expected);
    received
}

pub(super) async fn one_message_of_a_group_comes_at_a_time_in_order(f: Fixture) {
    put_all(&f, &["a1", "a2", "b1", "-1", "a3", "b2"]).await;
    let first = assert_are(receive_all(&f).await, &["a1", "b1", "-1"]);
    assert_eq!(f.count().await, 6);
    f.delete(&first[0]).await.expect("delete");
    let second = assert_are(receive_all(&f).await, &["a2"]);
    f.delete(&first[2]).await.expect("delete");
    f.assert_nothing_visible().await;
    f.delete(&first[1]).await.expect("delete");
    f.delete(&second[0]).await.expect("delete");
    let third = assert_are(receive_all(&f).await, &["a3", "b2"]);
    for message in &third {
        f.delete(message).await.expect("delete");
    }
    put_all(&f, &["a4"]).await;
    assert_are(receive_all(&f).await, &["a4"]);
}

pub(super) async fn the_next_has_the_place_of_its_put(f: Fixture) {
    put_all(&f, &["a1", "a2", "-1", "a3"]).await;
    let first = f.receive_one().await;
    f.delete(&first).await.expect("delete");
    let second = assert_are(vec![f.receive_one().await], &["a2"]);
    f.delete(&second[0]).await.expect("delete");
    assert_are(receive_all(&f).await, &["-1", "a3"]);
}

pub(super) async fn a_retry_keeps_its_place_and_delays_its_group_only(f: Fixture) {
    put_all(&f, &["a1", "a2", "b1"]).await;
    let first = f.receive_one().await;
    let (id, receipt) = (&first.id, &first.receipt);
    let place = PutBackPlace::After(2 * f.lease);
    let put_back = f.backend.put_back(&f.queue, id, receipt, place, None).await;
    put_back.expect("put back");
    assert_are(receive_all(&f).await, &["b1"]);
    f.advance(2 * f.lease).await;
    let again = assert_are(receive_all(&f).await, &["a1"]);
    f.delete(&again[0]).await.expect("delete");
    assert_are(receive_all(&f).await, &["a2"]);
}

pub(super) async fn a_lease_that_ends_passes_the_group_on_with_a_higher_fence(f: Fixture) {
    put_all(&f, &["a1", "a2"]).await;
    let mut fences = Vec::new();
    for _ in 0..3 {
        let first = f.receive_one().await;
        assert_eq!(text(&first.body), "a1");
        fences.push(first.fence.expect("it has a group"));
        f.advance(f.lease).await;
    }
    let first = f.receive_one().await;
    fences.push(first.fence.expect("it has a group"));
    f.delete(&first).await.expect("delete");
    let second = f.receive_one().await;
    assert_eq!(text(&second.body), "a2");
    fences.push(second.fence.expect("it has a group"));
    f.delete(&second).await.expect("delete");
    put_all(&f, &["-1"]).await;
    assert_eq!(f.receive_one().await.fence, None);
    put_all(&f, &["a3"]).await;
    fences.push(f.receive_one().await.fence.expect("it has a group"));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(super) async fn an_expired_message_passes_the_group_on(f: Fixture) {
    let short = TimeToLive::After(f.lease / 2);
    for (body, lifetime) in [
        ("a1", short),
        ("a2", short),
        ("a3", TimeToLive::Never),
        ("a4", TimeToLive::Never),
    ] {
        f.put_message(in_group("a", body).with_time_to_live(lifetime))
            .await;
    }
    let first = f.receive_one().await;
    f.delete(&first).await.expect("delete");
    f.advance(f.lease).await;
    assert_are(receive_all(&f).await, &["a3"]);
}

pub(super) async fn a_message_that_expires_while_it_is_hidden_passes_the_group_on(f: Fixture) {
    let living = |body| in_group("a", body).with_time_to_live(TimeToLive::After(2 * f.lease));
    for how in ["leased", "put back"] {
        f.put_message(living("a1")).await;
        f.put_message(in_group("a", "a2")).await;
        let first = f.receive_for(1, LONG).await;
        if how == "put back" {
            let (id, receipt) = (&first[0].id, &first[0].receipt);
            let place = PutBackPlace::After(LONG);
            let put_back = f.backend.put_back(&f.queue, id, receipt, place, None);
            put_back.await.expect("put back");
        }
        f.advance(2 * f.lease).await;
        let second = assert_are(receive_all(&f).await, &["a2"]);
        f.delete(&second[0]).await.expect("delete");
    }
}

pub(super) async fn a_receipt_of_a_message_behind_stays_valid_when_it_is_the_first(f: Fixture) {
    put_all(&f, &["a1"]).await;
    let [second, third] = [
        f.put_message(in_group("a", "a2")).await,
        f.put_message(in_group("a", "a3")).await,
    ];
    let first = f.receive_one().await;
    f.delete(&first).await.expect("delete");
    let (id, receipt) = (&second.id, &second.receipt);
    let body = Some(Bytes::from("a2'"));
    let at_once = PutBackPlace::After(Duration::ZERO);
    let changed = f.backend.put_back(&f.queue, id, receipt, at_once, body);
    changed.await.expect("changed");
    let second = assert_are(receive_all(&f).await, &["a2'"]);
    f.delete(&second[0]).await.expect("delete");
    f.backend
        .delete(&f.queue, &third.id, &third.receipt)
        .await
        .expect("delete");
    assert_eq!(f.count().await, 0);
}

pub(super) async fn many_expired_messages_of_a_group_hide_nothing_behind_them(f: Fixture) {
    const EXPIRED: usize = 500;
    for _ in 0..EXPIRED {
        let message = in_group("a", "over").with_time_to_live(TimeToLive::After(f.lease / 2));
        f.put_message(message).await;
    }
    put_all(&f, &["a1", "b1"]).await;
    f.advance(f.lease).await;
    let mut received = receive_all(&f).await;
    received.sort_by(|one, other| one.body.cmp(&other.body));
    assert_are(received, &["a1", "b1"]);
}

pub(super) async fn a_long_backlog_of_one_group_hides_no_other(f: Fixture) {
    for number in 0..1_000 {
        f.put_message(NewMessage::new(format!("a{number}")).with_group(Some("a")))
            .await;
    }
    let first = f.receive_for(8, LONG).await;
    assert_eq!(first.len(), 1);
    put_all(&f, &["b1"]).await;
    assert_are(f.receive_for(8, LONG).await, &["b1"]);
}

pub(super) async fn the_delay_of_a_message_behind_counts_from_its_put(f: Fixture) {
    put_all(&f, &["a1"]).await;
    let delayed = in_group("a", "a2").with_delay(2 * f.lease);
    f.put_message(delayed).await;
    put_all(&f, &["a3"]).await;
    let first = f.receive_for(1, 4 * f.lease).await;
    f.advance(f.lease).await;
    f.delete(&first[0]).await.expect("delete");
    f.assert_nothing_visible().await;
    f.advance(f.lease).await;
    assert_are(receive_all(&f).await, &["a2"]);
}

pub(super) async fn what_is_undone_leaves_the_group_as_it_was(f: Fixture) {
    put_all(&f, &["a1", "a2", "-1"]).await;
    let received = assert_are(receive_all(&f).await, &["a1", "-1"]);
    f.delete(&received[1]).await.expect("delete");
    let delete = |message: &ReceivedMessage| Op::Delete {
        queue: f.queue.clone(),
        id: message.id.clone(),
        receipt: message.receipt.clone(),
        moved: false,
    };
    let put = |body| Op::Put {
        queue: f.queue.clone(),
        message: in_group("a", body),
    };
    let refused = [put("a3"), delete(&received[0]), delete(&received[1])];
    let refused = f.backend.apply(refused.into_iter().collect()).await;
    assert_eq!(refused.expect_err("refused").index, 2);
    f.assert_nothing_visible().await;
    let with_next = [put("a4"), delete(&received[0])].into_iter().collect();
    f.backend.apply(with_next).await.expect("applied");
    let second = assert_are(receive_all(&f).await, &["a2"]);
    f.delete(&second[0]).await.expect("delete");
    assert_are(receive_all(&f).await, &["a4"]);
}

pub(super) async fn an_update_leaves_the_others_behind(f: Fixture) {
    put_all(&f, &["a1", "a2"]).await;
    let first = f.receive_one().await;
    let (id, receipt) = (&first.id, &first.receipt);
    let lease = f
        .backend
        .renew(&f.queue, id, receipt, LONG, Some(Bytes::from("a1'")));
    let lease = lease.await.expect("renewed");
    f.advance(f.lease).await;
    f.assert_nothing_visible().await;
    let kept = PutBackPlace::Kept;
    let put_back = f.backend.put_back(&f.queue, id, &lease.receipt, kept, None);
    put_back.await.expect("put back");
    let again = assert_are(receive_all(&f).await, &["a1'"]);
    f.delete(&again[0]).await.expect("delete");
    assert_are(receive_all(&f).await, &["a2"]);
}

pub(super) async fn messages_behind_are_shown_and_can_be_removed(f: Fixture) {
    put_all(&f, &["a1", "a2"]).await;
    let delay = 4 * f.lease;
    f.put_message(in_group("a", "a3").with_delay(delay)).await;
    let peeked = f.backend.peek(&f.queue, 8).await.expect("peek");
    assert_eq!(peeked.len(), 1);
    let page = f.backend.browse(&f.queue, None, 8).await.expect("browse");
    let states: Vec<_> = page
        .messages
        .iter()
        .map(|one| (text(&one.body), one.state))
        .collect();
    let (visible, behind) = (MessageState::Visible, MessageState::Behind);
    let expected = [("a1", visible), ("a2", behind), ("a3", behind)];
    assert_eq!(
        states,
        expected.map(|(body, state)| (body.to_owned(), state))
    );
    let [first, second, third] = &page.messages[..] else {
        unreachable!("three were compared")
    };
    assert_eq!(second.visible_at, second.inserted_at);
    assert_eq!(between(third.inserted_at, third.visible_at), delay);
    // The second becomes the first in between.
    for removed in [first, second] {
        let removed = f.backend.delete(&f.queue, &removed.id, &removed.receipt);
        removed.await.expect("delete");
    }
    f.advance(delay).await;
    assert_are(receive_all(&f).await, &["a3"]);
}

pub(super) async fn a_cleared_queue_has_no_groups(f: Fixture) {
    put_all(&f, &["a1", "a2"]).await;
    f.receive_one().await;
    f.backend.clear(&f.queue).await.expect("clear");
    put_all(&f, &["a3", "a4"]).await;
    assert_are(receive_all(&f).await, &["a3"]);
    f.backend.delete_queue(&f.queue).await.expect("delete");
    f.create(&f.queue).await;
    put_all(&f, &["a5", "a6"]).await;
    assert_are(receive_all(&f).await, &["a5"]);
}

pub(super) async fn groups_of_two_queues_are_two(f: Fixture) {
    let other = f.store.queue("bills");
    f.create(&other).await;
    put_all(&f, &["a1"]).await;
    let put = f.backend.put(&other, in_group("a", "bill")).await;
    put.expect("put");
    f.receive_one().await;
    let received = f.backend.receive(&other, 1, f.lease).await;
    assert_eq!(received.expect("receive").len(), 1);
}

pub(super) async fn groups_survive_like_messages(f: Fixture) {
    put_all(&f, &["a1", "a2", "a3"]).await;
    let first = f.receive_for(1, LONG).await;
    let f = f.reopen().await;
    if !f
        .backend
        .list_queues("")
        .await
        .expect("list")
        .contains(&f.queue)
    {
        return;
    }
    f.assert_nothing_visible().await;
    f.delete(&first[0]).await.expect("delete");
    let other = f.store.second_client().await;
    let second = other.receive(&f.queue, 8, LONG).await.expect("receive");
    let second = assert_are(second, &["a2"]);
    assert!(
        second[0].fence > first[0].fence,
        "{second:?} after {first:?}"
    );
    other.put(&f.queue, in_group("a", "a4")).await.expect("put");
    f.delete(&second[0]).await.expect("delete");
    assert_are(receive_all(&f).await, &["a3"]);
}

pub(super) async fn the_text_of_a_group_is_checked(f: Fixture) {
    let long = "g".repeat(MAX_GROUP + 1);
    for wrong in ["", "line\nfeed", &long] {
        let put = f.backend.put(&f.queue, in_group(wrong, "x")).await;
        assert_refused(put, ErrorKind::InvalidInput);
    }
    for right in [&long[1..], "a group", "Zoë/7", "\""] {
        f.put_message(in_group(right, "x")).await;
        f.put_message(in_group(right, "y")).await;
    }
    assert_are(receive_all(&f).await, &["x"; 4]);
}

pub(super) async fn many_groups_and_long_backlogs_keep_their_order(f: Fixture) {
    const GROUPS: [&str; 4] = ["a", "b", "c", "d"];
    const MESSAGES: usize = 400;
    for number in 0..MESSAGES {
        let group = GROUPS[number * number % 7 % GROUPS.len()];
        let message = NewMessage::new(format!("{group}{number}")).with_group(Some(group));
        f.put_message(message).await;
    }
    let (mut last, mut handled) = ([None; GROUPS.len()], 0);
    while handled < MESSAGES {
        // All are received before the first is deleted: one of each group.
        let received = f.receive_for(8, LONG).await;
        assert!(
            (1..=GROUPS.len()).contains(&received.len()),
            "after {handled} messages, {received:?} are received"
        );
        for message in received {
            let body = text(&message.body);
            let of = GROUPS.iter().position(|group| body.starts_with(group));
            let number: usize = body[1..].parse().expect("a number");
            let last = &mut last[of.expect("a group")];
            assert!(
                last.is_none_or(|last| last < number),
                "{body} after {last:?}"
            );
            *last = Some(number);
            f.delete(&message).await.expect("delete");
            handled += 1;
        }
    }
    assert_eq!(f.count().await, 0);
}

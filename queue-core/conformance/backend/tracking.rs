//! Tracked messages: found by their ids, whatever happens to them.

use std::time::Duration;

use super::harness::{Fixture, Harness, LONG, assert_refused, text};
use crate::backend::{
    BackendExt as _, Groups, MessageHolder, MessageState, NewMessage, Op, PutBackPlace, TimeToLive,
    Tracking,
};
use crate::envelope::{ClientId, MessageId};
use crate::error::ErrorKind;
use crate::name::QueueName;

fn id(text: &str) -> MessageId {
    MessageId::new(text).expect("an id")
}

fn tracked(body: &'static str, of: &str) -> NewMessage {
    NewMessage::new(body).with_tracked(Some(id(of)))
}

/// Opens a store that finds tracked messages; `None` if they are refused.
pub(super) async fn tracking(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    if f.backend.capabilities().tracking == Tracking::Supported {
        return Some(f);
    }
    let put = f.backend.put(&f.queue, tracked("one", "1")).await;
    assert_refused(put, ErrorKind::Unsupported);
    let located = f.backend.locate(&id("1"), 8).await;
    assert_refused(located, ErrorKind::Unsupported);
    None
}

/// The queues, bodies and states of the messages that are found.
async fn located(f: &Fixture, of: &str) -> Vec<(QueueName, String, MessageState)> {
    let located = f.backend.locate(&id(of), 8).await.expect("located");
    let mut located: Vec<_> = located
        .into_iter()
        .map(|one| (one.queue, text(&one.message.body), one.message.state))
        .collect();
    located.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    located
}

async fn assert_is(f: &Fixture, of: &str, body: &str, state: MessageState) {
    let expected = vec![(f.queue.clone(), body.to_owned(), state)];
    assert_eq!(located(f, of).await, expected);
}

pub(super) async fn a_tracked_message_is_found_in_any_state(f: Fixture) {
    for number in 0..20 {
        f.put_message(NewMessage::new(format!("other {number}")).with_delay(LONG))
            .await;
    }
    f.put_message(tracked("one", "1").with_delay(LONG)).await;
    f.put_message(tracked("two", "2")).await;
    assert_is(&f, "1", "one", MessageState::Delayed).await;
    assert_is(&f, "2", "two", MessageState::Visible).await;
    let two = f.receive_for(1, LONG).await.remove(0);
    assert_is(&f, "2", "two", MessageState::Hidden).await;
    let (id, receipt) = (&two.id, &two.receipt);
    let renewed = f
        .backend
        .renew(&f.queue, id, receipt, LONG, Some("two'".into()))
        .await;
    let receipt = renewed.expect("renewed").receipt;
    assert_is(&f, "2", "two'", MessageState::Hidden).await;
    let put_back = async |receipt, after| {
        let place = PutBackPlace::After(after);
        let put_back = f.backend.put_back(&f.queue, id, receipt, place, None).await;
        put_back.expect("put back").receipt
    };
    let receipt = put_back(&receipt, LONG).await;
    assert_is(&f, "2", "two'", MessageState::Hidden).await;
    put_back(&receipt, f.lease).await;
    f.advance(f.lease).await;
    assert_is(&f, "2", "two'", MessageState::Visible).await;
    assert!(located(&f, "3").await.is_empty());
}

pub(super) async fn a_tracked_message_tells_who_holds_it_and_since_when(f: Fixture) {
    let client = |name| ClientId::new(name).expect("an id");
    let holder = async || {
        let located = f.backend.locate(&id("1"), 8).await.expect("located");
        located.into_iter().next().expect("one message").holder
    };
    f.backend.introduce(&client("workers/1"));
    f.backend.introduce(&client("workers/1"));
    f.put_message(tracked("one", "1")).await;
    assert_eq!(holder().await, None);

    let one = f.receive_for(1, LONG).await.remove(0);
    let held = MessageHolder::new(one.received_at, Some(client("workers/1")));
    assert_eq!(holder().await, Some(held.clone()));
    let renewed = f.backend.renew(&f.queue, &one.id, &one.receipt, LONG, None);
    let receipt = renewed.await.expect("renewed").receipt;
    assert_eq!(holder().await, Some(held));
    let place = PutBackPlace::After(f.lease);
    let put_back = f.backend.put_back(&f.queue, &one.id, &receipt, place, None);
    put_back.await.expect("put back");
    assert_eq!(holder().await, None);

    f.advance(f.lease).await;
    f.backend.introduce(&client("workers/2"));
    let again = f.receive_for(1, LONG).await.remove(0);
    let either = MessageHolder::new(again.received_at, None);
    assert_eq!(holder().await, Some(either));
}

pub(super) async fn what_is_located_can_be_deleted_and_is_gone_then(f: Fixture) {
    f.put_message(tracked("one", "1")).await;
    for _ in 0..2 {
        // Another receive makes the receipts of before invalid.
        let received = f.receive_one().await;
        let (id, receipt) = (&received.id, &received.receipt);
        let place = PutBackPlace::After(Duration::ZERO);
        let put_back = f.backend.put_back(&f.queue, id, receipt, place, None).await;
        put_back.expect("put back");
    }
    let one = f
        .backend
        .locate(&id("1"), 8)
        .await
        .expect("located")
        .remove(0);
    let (id, receipt) = (&one.message.id, &one.message.receipt);
    let deleted = f.backend.delete(&one.queue, id, receipt).await;
    deleted.expect("deleted");
    assert!(located(&f, "1").await.is_empty());
    assert_eq!(f.count().await, 0);
}

pub(super) async fn a_message_that_is_gone_is_not_found(f: Fixture) {
    f.put_message(tracked("one", "1")).await;
    let one = f.receive_for(1, LONG).await;
    f.delete(&one[0]).await.expect("deleted");
    assert!(located(&f, "1").await.is_empty());
    let short = TimeToLive::After(f.lease / 2);
    f.put_message(tracked("two", "2").with_time_to_live(short))
        .await;
    f.advance(f.lease).await;
    assert!(located(&f, "2").await.is_empty());
    f.put_message(tracked("three", "3")).await;
    f.backend.clear(&f.queue).await.expect("cleared");
    assert!(located(&f, "3").await.is_empty());
    f.put_message(tracked("four", "4")).await;
    f.backend.delete_queue(&f.queue).await.expect("deleted");
    assert!(located(&f, "4").await.is_empty());
}

pub(super) async fn a_message_is_followed_to_another_queue(f: Fixture) {
    let poison = f.store.queue("poison");
    f.create(&poison).await;
    f.put_message(tracked("one", "1")).await;
    let one = f.receive_one().await;
    let put = Op::Put {
        queue: poison.clone(),
        message: NewMessage::moved("one").with_tracked(Some(id("1"))),
    };
    let delete = Op::Delete {
        queue: f.queue.clone(),
        id: one.id,
        receipt: one.receipt,
        moved: true,
    };
    f.backend
        .apply([put, delete].into_iter().collect())
        .await
        .expect("moved");
    let expected = vec![(poison, "one".to_owned(), MessageState::Visible)];
    assert_eq!(located(&f, "1").await, expected);
}

pub(super) async fn all_copies_are_found_up_to_the_maximum(f: Fixture) {
    let other = f.store.queue("copies");
    f.create(&other).await;
    for queue in [&f.queue, &f.queue, &other] {
        f.backend
            .put(queue, tracked("one", "1"))
            .await
            .expect("put");
    }
    f.put_message(tracked("untold", "11")).await;
    f.put_message(NewMessage::new("untracked")).await;
    assert_eq!(located(&f, "1").await.len(), 3);
    let two = f.backend.locate(&id("1"), 2).await.expect("located");
    assert_eq!(two.len(), 2);
}

pub(super) async fn what_was_not_put_is_not_found(f: Fixture) {
    let put = Op::Put {
        queue: f.queue.clone(),
        message: tracked("one", "1"),
    };
    let missing = Op::Put {
        queue: f.store.queue("missing"),
        message: NewMessage::new("one"),
    };
    let refused = f.backend.apply([put, missing].into_iter().collect()).await;
    let is_undone = refused.expect_err("refused").completed.is_empty();
    assert_eq!(located(&f, "1").await.len(), usize::from(!is_undone));
}

pub(super) async fn a_tracked_message_behind_others_of_its_group_is_found(f: Fixture) {
    if f.backend.capabilities().groups == Groups::Unsupported {
        return;
    }
    for (body, of) in [("one", "1"), ("two", "2")] {
        f.put_message(tracked(body, of).with_group(Some("a"))).await;
    }
    assert_is(&f, "1", "one", MessageState::Visible).await;
    assert_is(&f, "2", "two", MessageState::Behind).await;
    f.put_message(tracked("three", "3").with_group(Some("b")).with_delay(LONG))
        .await;
    assert_is(&f, "3", "three", MessageState::Delayed).await;
    let one = f.receive_one().await;
    f.delete(&one).await.expect("deleted");
    f.receive_for(1, LONG).await;
    assert_is(&f, "2", "two", MessageState::Hidden).await;
}

pub(super) async fn tracked_messages_are_found_by_all_clients(f: Fixture) {
    f.put_message(tracked("one", "1")).await;
    let f = f.reopen().await;
    let queues = f.backend.list_queues("").await.expect("listed");
    if !queues.contains(&f.queue) {
        return;
    }
    assert_is(&f, "1", "one", MessageState::Visible).await;
    let other = f.store.second_client().await;
    let put = other.put(&f.queue, tracked("two", "2")).await;
    put.expect("put");
    assert_is(&f, "2", "two", MessageState::Visible).await;
}

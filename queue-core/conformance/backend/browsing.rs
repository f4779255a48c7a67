//! Messages in any state, page by page or by the ids of their events. A backend that cannot browse must say so.

use std::cmp::Reverse;
use std::time::Duration;

use bytes::Bytes;

use super::harness::{Fixture, Harness, LONG, Ordering, assert_refused, text};
use crate::backend::{
    BackendExt as _, BrowsedMessage, Browsing, MessageState, NewMessage, PageMark, TimeToLive,
};
use crate::envelope::{ClientId, Envelope, MessageId, RequestId};
use crate::error::ErrorKind;
use crate::wire;
use crate::wire::encoding::to_base64;

/// Opens a store; returns `None` if its backend cannot browse, after checking that a browse is refused.
pub(super) async fn browsable(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    if f.backend.capabilities().browsing == Browsing::Supported {
        return Some(f);
    }
    f.put("one").await;
    let browsed = f.backend.browse(&f.queue, None, 1).await;
    assert_refused(browsed, ErrorKind::Unsupported);
    None
}

/// Browses all pages of this size.
async fn browse(f: &Fixture, size: usize) -> Vec<BrowsedMessage> {
    let (mut messages, mut from) = (Vec::new(), None);
    loop {
        let page = f.backend.browse(&f.queue, from.as_ref(), size).await;
        let page = page.expect("browse");
        assert!(page.messages.len() <= size);
        assert!(page.next.is_none() || !page.messages.is_empty());
        messages.extend(page.messages);
        from = page.next;
        if from.is_none() {
            return messages;
        }
    }
}

pub(super) async fn every_message_is_on_one_page_in_order(f: Fixture) {
    assert_eq!(browse(&f, 1).await, []);
    f.put("held").await;
    let held = f.receive_one().await;
    f.update(&held, 3 * f.lease, None).await.expect("update");
    let delayed = NewMessage::new("delayed").with_delay(2 * f.lease);
    f.put_message(delayed).await;
    for body in ["a", "b", "c"] {
        f.put(body).await;
    }
    for size in 1..=6 {
        let browsed = browse(&f, size).await;
        let bodies: Vec<_> = browsed.iter().map(|one| text(&one.body)).collect();
        assert_eq!(
            f.in_order(bodies),
            ["a", "b", "c", "delayed", "held"],
            "pages of {size}"
        );
    }
}

pub(super) async fn browsing_tells_the_state_and_changes_nothing(f: Fixture) {
    f.put("held").await;
    let held = f.receive_one().await;
    let put = f.put("visible").await;
    f.put_message(NewMessage::new("delayed").with_delay(LONG))
        .await;
    for _ in 0..2 {
        let mut browsed = browse(&f, 10).await;
        if f.store.ordering() == Ordering::BestEffort {
            browsed.sort_by_key(|one| Reverse(text(&one.body)));
        }
        let states: Vec<_> = browsed
            .iter()
            .map(|one| (text(&one.body), one.state, one.dequeue_count))
            .collect();
        let expected = [
            ("visible".to_owned(), MessageState::Visible, 0),
            ("held".to_owned(), MessageState::Hidden, 1),
            ("delayed".to_owned(), MessageState::Delayed, 0),
        ];
        assert_eq!(states, expected);
        assert_eq!((&browsed[0].id, &browsed[1].id), (&put.id, &held.id));
        assert_eq!(browsed[0].inserted_at, put.inserted_at);
        assert_eq!(browsed[1].visible_at, held.visible_at);
    }
    assert_eq!(f.drain().await, ["visible"]);
    f.delete(&held).await.expect("its receipt is still valid");
}

pub(super) async fn a_browsed_receipt_deletes_until_the_message_is_touched(f: Fixture) {
    for body in ["visible", "received", "held"] {
        f.put(body).await;
    }
    f.put_message(NewMessage::new("delayed").with_delay(LONG))
        .await;
    let browsed = browse(&f, 10).await;
    let find = |body: &str| {
        let found = browsed.iter().find(|one| text(&one.body) == body);
        found.expect("it was browsed")
    };
    let delete =
        async |one: &BrowsedMessage| f.backend.delete(&f.queue, &one.id, &one.receipt).await;
    delete(find("visible")).await.expect("deleted");
    delete(find("delayed")).await.expect("cancelled");
    let received = f.receive(2).await;
    assert_eq!(received.len(), 2);
    assert_refused(delete(find("received")).await, ErrorKind::ReceiptMismatch);

    // A consumer holds the messages now, whose lease ends when they are deleted.
    for one in browse(&f, 10).await {
        delete(&one).await.expect("deleted");
    }
    for message in &received {
        let settled = f.delete(message).await;
        assert_refused(settled, ErrorKind::MessageNotFound);
    }
    assert_eq!(f.count().await, 0);
}

pub(super) async fn expired_messages_are_not_browsed(f: Fixture) {
    f.put_living("short", f.lease).await;
    f.put("long").await;
    assert_eq!(browse(&f, 10).await.len(), 2);
    f.advance(f.lease + Duration::from_millis(1)).await;
    let left = browse(&f, 1).await;
    let bodies: Vec<_> = left.iter().map(|one| text(&one.body)).collect();
    assert_eq!(bodies, ["long"]);
}

pub(super) async fn arguments_of_a_browse(f: Fixture) {
    f.put("one").await;
    let most = f.backend.capabilities().max_receive;
    for max in [0, most + 1] {
        let browsed = f.backend.browse(&f.queue, None, max).await;
        assert_refused(browsed, ErrorKind::InvalidInput);
    }
    let page = f.backend.browse(&f.queue, None, most).await;
    assert_eq!(page.expect("browse").messages.len(), 1);
    let mark = PageMark::new("no mark");
    let browsed = f.backend.browse(&f.queue, Some(&mark), 1).await;
    assert_refused(browsed, ErrorKind::InvalidInput);
    let missing = f.store.queue("missing");
    let browsed = f.backend.browse(&missing, None, 1).await;
    assert_refused(browsed, ErrorKind::QueueNotFound);
}

/// Opens a store; returns `None` if its backend cannot browse, after checking that a search is refused.
pub(super) async fn searchable(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    if f.backend.capabilities().browsing == Browsing::Supported {
        return Some(f);
    }
    let found = f.backend.find(&f.queue, &id("order-7"), 1).await;
    assert_refused(found, ErrorKind::Unsupported);
    None
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).expect("an id")
}

/// Returns the body of an event with this id and data.
fn event(id: &MessageId, data: &str) -> Bytes {
    let client = ClientId::new("shop").expect("an id");
    let envelope = Envelope::new(id.clone(), client, RequestId::random(), "order");
    wire::encode(&envelope, data.as_bytes()).into()
}

async fn find(f: &Fixture, id: &MessageId) -> Vec<BrowsedMessage> {
    let most = f.backend.capabilities().max_receive;
    let found = f.backend.find(&f.queue, id, most).await;
    found.expect("find")
}

pub(super) async fn a_message_is_found_in_any_state(f: Fixture) {
    let [held, visible, delayed] = ["held", "visible", "delayed"].map(id);
    f.put_message(NewMessage::new(event(&held, "1"))).await;
    let received = f.receive_for(1, LONG).await.pop().expect("visible");
    let put = NewMessage::new(event(&visible, "2"));
    let put = f.put_message(put).await;
    let later = NewMessage::new(event(&delayed, "3")).with_delay(LONG);
    f.put_message(later).await;
    f.put("visible").await;
    for (id, state, data, count) in [
        (&held, MessageState::Hidden, "1", 1),
        (&visible, MessageState::Visible, "2", 0),
        (&delayed, MessageState::Delayed, "3", 0),
    ] {
        let found = find(&f, id).await;
        assert_eq!(found.len(), 1, "{id}");
        let one = &found[0];
        assert_eq!((one.state, one.dequeue_count), (state, count), "{id}");
        let body = wire::Body::read(&one.body, usize::MAX);
        let wire::Body::Event(event) = &body else {
            panic!("no event: {body:?}");
        };
        assert_eq!(event.payload.as_bytes(), data.as_bytes());
    }
    assert_eq!(find(&f, &visible).await[0].id, put.id);
    assert_eq!(find(&f, &held).await[0].visible_at, received.visible_at);
    f.delete(&received)
        .await
        .expect("its receipt is still valid");
    assert_eq!(find(&f, &held).await, []);
}

pub(super) async fn all_copies_and_nothing_else_are_found(f: Fixture) {
    let wanted = id("order-7");
    let copies = [
        event(&wanted, "1"),
        event(&wanted, "2"),
        event(&wanted, "1"),
    ];
    for body in &copies {
        f.put_message(NewMessage::new(body.clone())).await;
    }
    // The wanted id within another id, in the data, and as another member.
    for other in ["order-70", "an-order-7", "Order-7"] {
        f.put_message(NewMessage::new(event(&id(other), "1"))).await;
    }
    for data in [r#""order-7""#, r#"{"id":"order-7"}"#] {
        let body = event(&id("other"), data);
        f.put_message(NewMessage::new(body)).await;
    }
    f.put("order-7").await;
    assert_eq!(find(&f, &wanted).await.len(), 3);
    let found = f.backend.find(&f.queue, &wanted, 2).await;
    assert_eq!(found.expect("find").len(), 2);
    assert_eq!(find(&f, &id("order-8")).await, []);
}

pub(super) async fn an_id_is_found_however_it_is_written(f: Fixture) {
    let escaped = event(&id("order-7"), "1");
    let escaped = String::from_utf8(escaped.to_vec()).expect("text");
    let escaped = escaped.replace("order-7", r"\u006frder-7");
    f.put_message(NewMessage::new(escaped)).await;
    let base64 = to_base64(&event(&id("order-8"), "1"));
    f.put_message(NewMessage::new(base64)).await;
    for special in [r#"order "9" \"#, "Bestellung für Łukasz"] {
        let body = event(&id(special), r#""order""#);
        f.put_message(NewMessage::new(body)).await;
        assert_eq!(find(&f, &id(special)).await.len(), 1, "{special}");
    }
    for wanted in ["order-7", "order-8"] {
        assert_eq!(find(&f, &id(wanted)).await.len(), 1, "{wanted}");
    }
}

pub(super) async fn a_message_behind_many_others_is_found(f: Fixture) {
    let wanted = id("the-last");
    for number in 0..600 {
        let body = event(&id(&format!("order-{number}")), "1");
        f.put_message(NewMessage::new(body)).await;
    }
    f.put_message(NewMessage::new(event(&wanted, "1"))).await;
    assert_eq!(find(&f, &wanted).await.len(), 1);
    assert_eq!(find(&f, &id("order-299")).await.len(), 1);
}

pub(super) async fn a_found_receipt_is_good_until_the_message_is_touched(f: Fixture) {
    let wanted = id("order-7");
    f.put_message(NewMessage::new(event(&wanted, "1"))).await;
    let found = find(&f, &wanted).await.pop().expect("found");
    f.receive_one().await;
    let deleted = f.backend.delete(&f.queue, &found.id, &found.receipt).await;
    assert_refused(deleted, ErrorKind::ReceiptMismatch);
    let found = find(&f, &wanted).await.pop().expect("found");
    let deleted = f.backend.delete(&f.queue, &found.id, &found.receipt).await;
    deleted.expect("deleted");
    assert_eq!(f.count().await, 0);
}

pub(super) async fn expired_messages_are_not_found(f: Fixture) {
    let wanted = id("order-7");
    let brief = NewMessage::new(event(&wanted, "1"));
    let brief = brief.with_time_to_live(TimeToLive::After(f.lease));
    f.put_message(brief).await;
    assert_eq!(find(&f, &wanted).await.len(), 1);
    f.advance(f.lease + Duration::from_millis(1)).await;
    assert_eq!(find(&f, &wanted).await, []);
}

pub(super) async fn arguments_of_a_find(f: Fixture) {
    let (wanted, most) = (id("order-7"), f.backend.capabilities().max_receive);
    for max in [0, most + 1] {
        let found = f.backend.find(&f.queue, &wanted, max).await;
        assert_refused(found, ErrorKind::InvalidInput);
    }
    let missing = f.store.queue("missing");
    let found = f.backend.find(&missing, &wanted, 1).await;
    assert_refused(found, ErrorKind::QueueNotFound);
}

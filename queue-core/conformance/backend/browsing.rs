//! Messages in any state, page by page. A backend that cannot browse must say so.

use std::cmp::Reverse;
use std::time::Duration;

use super::fixture::{Fixture, LONG, assert_refused, text};
use super::harness::{Harness, Ordering};
use crate::backend::{BrowsedMessage, Browsing, MessageState, NewMessage, PageMark};
use crate::error::ErrorKind;

/// Opens a store. Returns `None` if its backend says that it cannot browse, after checking that a browse is refused.
async fn browsable(harness: &dyn Harness) -> Option<Fixture> {
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
async fn browse(f: &Fixture, size: u32) -> Vec<BrowsedMessage> {
    let (mut messages, mut from) = (Vec::new(), None);
    loop {
        let page = f.backend.browse(&f.queue, from.as_ref(), size).await;
        let page = page.expect("browse");
        assert!(page.messages.len() <= size as usize);
        assert!(page.next.is_none() || !page.messages.is_empty());
        messages.extend(page.messages);
        from = page.next;
        if from.is_none() {
            return messages;
        }
    }
}

pub(super) async fn every_message_is_on_one_page_in_order(harness: &dyn Harness) {
    let Some(f) = browsable(harness).await else {
        return;
    };
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

pub(super) async fn browsing_tells_the_state_and_changes_nothing(harness: &dyn Harness) {
    let Some(f) = browsable(harness).await else {
        return;
    };
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

pub(super) async fn a_browsed_receipt_deletes_until_the_message_is_touched(harness: &dyn Harness) {
    let Some(f) = browsable(harness).await else {
        return;
    };
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

    // A consumer holds them now. Its lease ends when they are deleted.
    for one in browse(&f, 10).await {
        delete(&one).await.expect("deleted");
    }
    for message in &received {
        let settled = f.delete(message).await;
        assert_refused(settled, ErrorKind::MessageNotFound);
    }
    assert_eq!(f.count().await, 0);
}

pub(super) async fn expired_messages_are_not_browsed(harness: &dyn Harness) {
    let Some(f) = browsable(harness).await else {
        return;
    };
    f.put_living("short", f.lease).await;
    f.put("long").await;
    assert_eq!(browse(&f, 10).await.len(), 2);
    f.advance(f.lease + Duration::from_millis(1)).await;
    let left = browse(&f, 1).await;
    let bodies: Vec<_> = left.iter().map(|one| text(&one.body)).collect();
    assert_eq!(bodies, ["long"]);
}

pub(super) async fn arguments_of_a_browse(harness: &dyn Harness) {
    let Some(f) = browsable(harness).await else {
        return;
    };
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

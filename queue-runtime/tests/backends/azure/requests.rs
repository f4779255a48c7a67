//! The requests that are sent, and valid replies.

use std::time::Duration;

use queue_core::backend::{Backend, BackendExt as _, NewMessage, PopReceipt, StorageId};
use queue_runtime::ErrorKind;

use crate::azure::responder::{ACCOUNT, KEY, Reply, Responder, answer, queue, with};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn an_update_sends_its_receipt_and_returns_a_new_one() {
    let headers = "x-ms-popreceipt: new+receipt==\r\n\
                   x-ms-time-next-visible: Thu, 01 Jan 2026 00:00:30 GMT\r\n";
    let responder = Responder::always(Reply::Send(answer("204 No Content", headers, "")));
    let lease = with(&responder.with_key(), PATIENCE, async |backend| {
        let (id, receipt) = (StorageId::new("a-1"), PopReceipt::new("old+receipt=="));
        let visibility = Duration::from_millis(1_500);
        backend
            .renew(&queue(), &id, &receipt, visibility, None)
            .await
    });
    let lease = lease.expect("updated");
    assert_eq!(lease.receipt.reveal(), "new+receipt==");
    assert_eq!(lease.visible_at.to_string(), "2026-01-01T00:00:30Z");
    let requests = responder.requests();
    assert_eq!(requests.len(), 1);
    let request = requests[0].to_lowercase();
    let line = "put /acct/orders/messages/a-1?popreceipt=old%2breceipt%3d%3d&visibilitytimeout=2 ";
    assert!(request.starts_with(line), "{request}");
    for header in [
        "\nx-ms-version: 2021-12-02\r\n",
        "\nx-ms-date: ",
        "\nauthorization: sharedkey acct:",
        "\ncontent-length: 0\r\n",
    ] {
        assert_eq!(request.matches(header).count(), 1, "{header} in {request}");
    }
}

#[test]
fn a_message_without_a_time_to_live_is_put_without_an_end() {
    let responder = Responder::always(Reply::Send(answer("403 Forbidden", "", "")));
    let put = with(&responder.with_key(), PATIENCE, async |backend| {
        backend.put(&queue(), NewMessage::new("a body")).await
    });
    put.expect_err("refused");
    let request = responder.requests()[0].to_lowercase();
    assert!(request.contains("messagettl=-1"), "{request}");
}

#[test]
fn a_signature_is_appended_to_the_url_unchanged() {
    let page = "<EnumerationResults><Queues /><NextMarker /></EnumerationResults>";
    let responder = Responder::always(Reply::Send(answer("200 OK", "", page)));
    let url = responder.with_signature("sv=2021-12-02&sig=a%2Fb%3D");
    let listed = with(&url, PATIENCE, async |backend| {
        backend.list_queues("a&b").await
    });
    assert_eq!(listed.expect("listed"), []);
    let request = &responder.requests()[0];
    let line = "GET /acct?comp=list&prefix=a%26b&sv=2021-12-02&sig=a%2Fb%3D HTTP/1.1";
    assert!(request.starts_with(line), "{request}");
    assert!(!request.to_lowercase().contains("authorization"));
}

#[test]
fn a_list_whose_markers_repeat_fails() {
    // Each page leads to the next, and the last one to the second.
    for pages in [1, 2, 3] {
        let responder = Responder::by(move |request| {
            let page = request.first.split("marker=p").nth(1);
            let page = page.map_or(0, |rest| rest[..1].parse::<u32>().expect("a number"));
            let next = page % pages + 1;
            let page = format!(
                "<EnumerationResults><Queues><Queue><Name>orders</Name></Queue></Queues>\
                 <NextMarker>p{next}</NextMarker></EnumerationResults>"
            );
            Reply::Send(answer("200 OK", "", &page))
        });
        let listed = with(&responder.with_key(), PATIENCE, async |backend| {
            backend.list_queues("").await
        });
        assert_eq!(listed.expect_err("refused").kind(), ErrorKind::Corrupt);
        assert_eq!(responder.requests().len(), pages as usize + 1);
    }
}

/// A reply with a message for each pair of a date and a dequeue count.
fn messages(given: &[(&str, &str)]) -> Reply {
    let message = |(number, (date, count)): (usize, &(&str, &str))| {
        format!(
            "<QueueMessage><MessageId>m{number}</MessageId><InsertionTime>{date}</InsertionTime>\
             <ExpirationTime>{date}</ExpirationTime><PopReceipt>r</PopReceipt>\
             <TimeNextVisible>{date}</TimeNextVisible><DequeueCount>{count}</DequeueCount>\
             <MessageText>text</MessageText></QueueMessage>"
        )
    };
    let messages: String = given.iter().enumerate().map(message).collect();
    let list = format!("<QueueMessagesList>{messages}</QueueMessagesList>");
    Reply::Send(answer("200 OK", "", &list))
}

const DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

#[test]
fn the_readable_neighbours_of_an_unreadable_message_are_delivered() {
    let reply = messages(&[
        (DATE, "1"),
        ("soon", "1"),
        (DATE, "-1"),
        (DATE, "4294967295"),
    ]);
    let responder = Responder::always(reply);
    with(&responder.with_key(), PATIENCE, async |backend| {
        let received = backend.receive(&queue(), 32, PATIENCE).await;
        let received = received.expect("two are readable");
        let ids: Vec<_> = received.iter().map(|message| message.id.as_str()).collect();
        assert_eq!(ids, ["m0", "m3"]);
        let peeked = backend.peek(&queue(), 32).await.expect("two are readable");
        assert_eq!(peeked.len(), 2);
    });
}

#[test]
fn messages_of_which_none_is_readable_are_not_an_empty_queue() {
    let responder = Responder::always(messages(&[("soon", "1"), (DATE, "many")]));
    with(&responder.with_key(), PATIENCE, async |backend| {
        let received = backend.receive(&queue(), 32, PATIENCE).await;
        assert_eq!(received.expect_err("none").kind(), ErrorKind::Corrupt);
        let peeked = backend.peek(&queue(), 32).await;
        assert_eq!(peeked.expect_err("none").kind(), ErrorKind::Corrupt);
    });
}

#[test]
fn invalid_ids_and_bodies_are_not_sent() {
    let responder = Responder::always(Reply::Send(answer("204 No Content", "", "")));
    with(&responder.with_key(), PATIENCE, async |backend| {
        for id in ["", "..", "a/b", "a?b", "a%2Fb", "a\nb"] {
            let (id, receipt) = (StorageId::new(id), PopReceipt::new("r"));
            let error = backend.delete(&queue(), &id, &receipt).await;
            let kind = error.expect_err("no such id").kind();
            assert_eq!(kind, ErrorKind::MessageNotFound, "{id}");
        }
        for body in [&b"\xff"[..], b"\0", b"\x01", b"a\rb"] {
            let body = NewMessage::new(body);
            let error = backend.put(&queue(), body).await.expect_err("not text");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("Base64"), "{error}");
        }
    });
    assert_eq!(responder.requests().len(), 0);
}

#[test]
fn a_queue_uri_contains_no_signature() {
    let responder = Responder::always(Reply::Send(String::new()));
    for url in [responder.with_key(), responder.with_signature("sig=x")] {
        let uri = with(&url, PATIENCE, async |backend| backend.queue_uri(&queue()));
        assert!(uri.ends_with(&format!("/{ACCOUNT}/orders")), "{uri}");
        assert!(!uri.contains(KEY) && !uri.contains('?'), "{uri}");
    }
}

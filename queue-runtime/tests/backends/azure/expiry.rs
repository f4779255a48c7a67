//! Messages with a time to live, on a service whose clock is minutes from this machine's.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use queue_core::backend::Backend as _;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::receive::Settled;
use queue_runtime::{Delivery, QueueService};
use queue_tests::orders::ShopOrder;

use crate::azure::responder::{Reply, Responder, answer, builder, queue, with};

const PATIENCE: Duration = Duration::from_secs(30);

/// The replies of a service whose clock differs by `skew`: a message that was put a minute
/// ago, is leased for 30 s, and expires in five minutes.
fn with_order(skew: SignedDuration) -> Responder {
    let now = Timestamp::now() + skew;
    let date = |seconds: i64| {
        let date = now + SignedDuration::from_secs(seconds);
        date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    };
    let (inserted, expires, visible) = (date(-60), date(300), date(30));
    let event = r#"{"specversion":"1.0","id":"1","source":"/shop","type":"shop.order","data":{"number":7}}"#;
    let list = format!(
        "<QueueMessagesList><QueueMessage><MessageId>a-1</MessageId>\
         <InsertionTime>{inserted}</InsertionTime><ExpirationTime>{expires}</ExpirationTime>\
         <PopReceipt>r</PopReceipt><TimeNextVisible>{visible}</TimeNextVisible>\
         <DequeueCount>1</DequeueCount><MessageText>{event}</MessageText>\
         </QueueMessage></QueueMessagesList>"
    );
    let lease = format!("x-ms-popreceipt: r\r\nx-ms-time-next-visible: {visible}\r\n");
    let count = "x-ms-approximate-messages-count: 1\r\n";
    Responder::always(Reply::ByMethod(vec![
        ("GET", answer("200 OK", count, &list)),
        ("POST", answer("201 Created", "", &list)),
        ("PUT", answer("204 No Content", &lease, "")),
        ("DELETE", answer("204 No Content", "", "")),
    ]))
}

fn skews() -> impl Iterator<Item = SignedDuration> {
    [-10, 0, 10].into_iter().map(SignedDuration::from_mins)
}

#[test]
fn a_receive_tells_the_time_of_the_service() {
    for skew in skews() {
        let responder = with_order(skew);
        let received = with(&responder.with_key(), PATIENCE, async |backend| {
            // In whole seconds, rounded up: 30.
            let visibility = Duration::from_millis(29_001);
            backend.receive(&queue(), 1, visibility).await
        });
        let received = &received.expect("received")[0];
        let inserted_at = received.inserted_at;
        let since = received.received_at.duration_since(inserted_at);
        assert_eq!(since, SignedDuration::from_mins(1));
        let expires_at = received.expires_at.expect("it expires");
        let left = expires_at.duration_since(received.received_at);
        assert_eq!(left, SignedDuration::from_mins(5));
    }
}

async fn settle(
    responder: &Responder,
    retry: impl AsyncFnOnce(Delivery<ShopOrder>) -> Settled,
) -> (Settled, Vec<String>) {
    let opened = builder(&responder.with_key()).deadline(PATIENCE).open();
    let backend = opened.await.expect("opens");
    let service = QueueService::with_backend(Arc::new(backend))
        .connect()
        .await;
    let service = service.expect("connects");
    let delivery = service.accept::<ShopOrder>().await.expect("no error");
    let settled = retry(delivery.expect("a message")).await;
    let methods = responder.requests().into_iter();
    let method = |request: String| request.split(' ').next().map(str::to_owned);
    (settled, methods.filter_map(method).collect())
}

#[tokio::test]
async fn whether_a_retry_outlives_its_message_is_judged_by_the_clock_of_the_service() {
    for skew in skews() {
        let minute = Duration::from_secs(60);
        let (settled, methods) = settle(&with_order(skew), async |delivery| {
            let settled = delivery.retry_after(minute, "busy").await;
            settled.expect("settled")
        })
        .await;
        let retried = matches!(settled, Settled::Retried { after, .. } if after == minute);
        assert!(retried, "{skew:?}: {settled:?}");
        assert_eq!(methods.last().map(String::as_str), Some("PUT"), "{skew:?}");

        let (settled, methods) = settle(&with_order(skew), async |delivery| {
            let settled = delivery.retry_after(5 * minute, "busy").await;
            settled.expect("settled")
        })
        .await;
        let expiring = Settled::Poisoned(PoisonReason::Expiring);
        assert_eq!(settled, expiring, "{skew:?}");
        assert_eq!(
            methods.last().map(String::as_str),
            Some("DELETE"),
            "{skew:?}"
        );
    }
}

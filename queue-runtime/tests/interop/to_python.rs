//! What is put here, the other program receives, reads as an event and deletes.

use std::time::Duration;

use queue_runtime::encoder::MessageEncoding;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::receive::Settled;
use queue_runtime::{Disposition, Message, QueueService};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::peer::ask;
use crate::server::{ACCOUNT, SERVER, runtime};
use crate::service;

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "shop.invoice", version = 2, upgrade_from = InvoiceV1, queue = "invoices")]
struct Invoice {
    #[message(key)]
    order: u64,
    text: String,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "shop.invoice", queue = "invoices")]
struct InvoiceV1 {
    order: u64,
}

impl From<InvoiceV1> for Invoice {
    fn from(old: InvoiceV1) -> Self {
        let text = String::new();
        Self {
            order: old.order,
            text,
        }
    }
}

/// White space, markup, a control character and one beyond the basic plane.
const TEXT: &str = "Straße\r\n<&>\u{1} 🦀";

#[test]
fn a_submitted_event_is_read_and_deleted() {
    let queue = "read-invoices";
    runtime().block_on(async { submit(&service().await, queue).await });
    let mut taken = Taken::from(queue);
    taken.is_the_invoice_of(queue);
    assert_eq!(taken.attributes, Map::new(), "more than was expected");
    assert_eq!(messages(queue), 0);
    runtime().block_on(async {
        let service = service().await;
        let queue = service.queue_named::<Invoice>(queue).expect("a name");
        assert!(queue.accept().await.expect("accept").is_none());
    });
}

/// Its attempt fails, so that it is rewritten; then it becomes poison.
#[test]
fn an_event_written_as_text_is_read_without_base64_wherever_it_goes() {
    let queue = "plain-invoices";
    let poison = "plain-invoices-poison";
    runtime().block_on(async {
        let builder = QueueService::builder(&SERVER.connection_string(ACCOUNT));
        let builder = builder.message_encoding(MessageEncoding::Text);
        let plain = builder.connect().await.expect("connect");
        submit(&plain, queue).await;
        submit(&plain, "plain-copies").await;
        let failed = Disposition::retry_after(Duration::ZERO, "not yet");
        let settled = settle_one(&plain, queue, failed).await;
        assert!(matches!(settled, Settled::Retried { .. }), "{settled:?}");
        let settled = settle_one(&plain, queue, Disposition::reject("no such customer")).await;
        assert_eq!(settled, Settled::Poisoned(PoisonReason::Rejected));
        submit(&plain, queue).await;
    });
    Taken::written("plain-copies", false).is_the_invoice_of("plain-copies");
    Taken::written(poison, false).is_poison_of(queue, "rejected", 2);
    runtime().block_on(async {
        // What is read does not depend on how it is written.
        let service = service().await;
        let settled = settle_one(&service, queue, Disposition::complete()).await;
        assert_eq!(settled, Settled::Completed);
    });
}

#[test]
fn a_poison_queue_is_read_in_the_same_way() {
    let queue = "broken-invoices";
    runtime().block_on(async {
        let service = service().await;
        submit(&service, queue).await;
        let settled = settle_one(&service, queue, Disposition::reject("no such customer")).await;
        assert_eq!(settled, Settled::Poisoned(PoisonReason::Rejected));
    });
    assert_eq!(messages(queue), 0);
    let mut taken = Taken::from("broken-invoices-poison");
    taken.is_the_invoice_of(queue);
    taken.is_poison_of(queue, "rejected", 1);
    assert_eq!(taken.take("poisonerror"), "no such customer");
    assert_eq!(taken.attributes, Map::new(), "more than was expected");
    assert_eq!(messages("broken-invoices-poison"), 0);
}

#[test]
fn what_was_no_event_is_on_the_poison_queue_byte_for_byte() {
    let queue = "torn-invoices";
    ask(&json!({ "do": "create", "queue": queue }));
    ask(&json!({ "do": "put", "queue": queue, "text": "{\"order\": 7,  ü" }));
    runtime().block_on(async {
        let service = service().await;
        let typed = service.queue_named::<Invoice>(queue).expect("a name");
        assert!(typed.accept().await.expect("accept").is_none());
    });
    let mut taken = Taken::from("torn-invoices-poison");
    assert_eq!(taken.take("type"), queue_runtime::wire::RAW_KIND);
    taken.is_poison_of(queue, "undecodable", 1);
    assert_eq!(taken.take("poisonraw"), true);
    assert_eq!(
        taken.data,
        json!({ "bytes": "{\"order\": 7,  ü".as_bytes() })
    );
}

async fn submit(service: &QueueService, queue: &str) {
    let queue = service.queue_named::<Invoice>(queue).expect("a name");
    let text = TEXT.to_owned();
    let submitted = queue
        .submit(Invoice { order: 7, text })
        .id("invoice-7")
        .client_id("till 1/4711")
        .request_id("order-7");
    submitted.await.expect("submit");
}

async fn settle_one(service: &QueueService, queue: &str, disposition: Disposition) -> Settled {
    let queue = service.queue_named::<Invoice>(queue).expect("a name");
    let delivery = queue.accept().await.expect("accept").expect("submitted");
    delivery.settle(disposition).await.expect("settle")
}

fn messages(queue: &str) -> u64 {
    let counted = ask(&json!({ "do": "count", "queue": queue }));
    counted["messages"].as_u64().expect("a number")
}

/// An event as the `cloudevents` package sees it, less what was looked at.
struct Taken {
    attributes: Map<String, Value>,
    data: Value,
}

impl Taken {
    fn from(queue: &str) -> Self {
        Self::written(queue, true)
    }

    fn written(queue: &str, base64: bool) -> Self {
        let mut taken = ask(&json!({ "do": "take_event", "queue": queue, "base64": base64 }));
        let attributes = match taken["attributes"].take() {
            Value::Object(attributes) => attributes,
            other => panic!("no event on `{queue}`: {other}"),
        };
        let data = taken["data"].take();
        Self { attributes, data }
    }

    fn take(&mut self, attribute: &str) -> Value {
        let taken = self.attributes.remove(attribute);
        taken.unwrap_or_else(|| panic!("no `{attribute}` beside {:?}", self.attributes))
    }

    fn is_the_invoice_of(&mut self, queue: &str) {
        let endpoint = SERVER.queue_endpoint(ACCOUNT);
        for (attribute, value) in [
            ("specversion", json!("1.0")),
            ("id", json!("invoice-7")),
            ("source", json!("till%201%2F4711")),
            ("type", json!("shop.invoice")),
            ("subject", json!("[\"shop.invoice\",\"order-7\",7]")),
            ("datacontenttype", json!("application/json")),
            ("dataversion", json!(2)),
            ("queueuri", json!(format!("{endpoint}/{queue}"))),
            ("requestid", json!("order-7")),
        ] {
            assert_eq!(self.take(attribute), value, "{attribute}");
        }
        self.is_time("time");
        assert_eq!(self.data, json!({ "order": 7, "text": TEXT }));
    }

    fn is_poison_of(&mut self, queue: &str, reason: &str, attempts: usize) {
        assert_eq!(self.take("poisonreason"), reason);
        assert_eq!(self.take("poisonqueue"), queue);
        assert_eq!(self.take("poisonattempts"), attempts);
        assert_ne!(self.take("poisonid"), "");
        self.is_time("poisonfirst");
        self.is_time("poisonlast");
    }

    fn is_time(&mut self, attribute: &str) {
        let time = self.take(attribute);
        let time = time.as_str().map(str::parse::<jiff::Timestamp>);
        assert!(matches!(time, Some(Ok(_))), "{attribute}: {time:?}");
    }
}

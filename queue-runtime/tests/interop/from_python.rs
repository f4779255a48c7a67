//! What the other program puts is accepted here.

use queue_runtime::{Delivery, Message, QueueService};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::peer::ask;
use crate::server::runtime;
use crate::service;

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "shop.order", queue = "bare-orders", wire = "bare")]
struct PythonOrder {
    number: u32,
    note: String,
}

/// What Event Grid tells of a new blob, under a kind of our own.
#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(
    kind = "pictures.uploaded",
    alias = "Microsoft.Storage.BlobCreated",
    queue = "uploads"
)]
struct Uploaded {
    url: String,
    #[serde(rename = "contentLength")]
    content_length: u64,
}

/// What Event Grid tells of a deleted blob, under its producer's kind.
#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "Microsoft.Storage.BlobDeleted", queue = "removals")]
struct Removed {
    url: String,
}

const ACCOUNT: &str = "/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/pictures\
                       /providers/Microsoft.Storage/storageAccounts/pictures";

#[test]
fn a_base64_body_is_read() {
    accept_order("base64-orders", true);
}

#[test]
fn a_body_that_is_not_encoded_is_read() {
    accept_order("plain-orders", false);
}

fn accept_order(queue: &str, base64: bool) {
    let order = PythonOrder {
        number: 7,
        note: "Grüße <&> 🦀".to_owned(),
    };
    let text = json!({ "number": order.number, "note": order.note }).to_string();
    ask(&json!({ "do": "create", "queue": queue }));
    ask(&json!({ "do": "put", "queue": queue, "base64": base64, "text": text }));
    runtime().block_on(async {
        let service = service().await;
        let delivery = accepted::<PythonOrder>(&service, queue).await;
        assert_eq!(**delivery, order);
        delivery.complete().await.expect("complete");
    });
    assert_eq!(
        ask(&json!({ "do": "count", "queue": queue })),
        json!({ "messages": 0 })
    );
}

/// As Event Grid writes it: a time in units of 100 ns, members that the type does not know.
fn blob_created() -> Value {
    json!({
        "source": ACCOUNT,
        "subject": "/blobServices/default/containers/new/blobs/sunset.png",
        "type": "Microsoft.Storage.BlobCreated",
        "time": "2026-03-14T09:26:53.5897932Z",
        "id": "831e1650-001e-001b-66ab-eeb76e069631",
        "data": {
            "api": "PutBlockList",
            "clientRequestId": "6d79dbfb-0e37-4fc4-981f-442c9ca65760",
            "requestId": "831e1650-001e-001b-66ab-eeb76e000000",
            "eTag": "\"0x8D4BCC2E4835CD0\"",
            "contentType": "image/png",
            "contentLength": 524_288,
            "blobType": "BlockBlob",
            "url": "https://pictures.blob.core.windows.net/new/sunset.png",
            "sequencer": "00000000000004420000000000028963",
            "storageDiagnostics": { "batchId": "b68529f3-68cd-4744-baa4-3c0498ec19f0" }
        },
        "specversion": "1.0"
    })
}

#[test]
fn an_event_grid_event_is_accepted_under_an_alias() {
    for (queue, base64) in [("uploads-base64", true), ("uploads-plain", false)] {
        let text = blob_created().to_string();
        ask(&json!({ "do": "create", "queue": queue }));
        ask(&json!({ "do": "put", "queue": queue, "base64": base64, "text": text }));
        runtime().block_on(async {
            let service = service().await;
            let delivery = accepted::<Uploaded>(&service, queue).await;
            let url = "https://pictures.blob.core.windows.net/new/sunset.png";
            assert_eq!(delivery.url, url);
            assert_eq!(delivery.content_length, 524_288);
            let envelope = delivery.envelope();
            assert_eq!(envelope.id.as_str(), "831e1650-001e-001b-66ab-eeb76e069631");
            assert_eq!(envelope.client_id.as_str(), ACCOUNT);
            let subject = "/blobServices/default/containers/new/blobs/sunset.png";
            assert_eq!(envelope.subject.as_deref(), Some(subject));
            delivery.complete().await.expect("complete");
        });
    }
}

#[test]
fn an_event_of_the_cloudevents_package_is_accepted_under_its_kind() {
    let queue = "removals";
    let attributes = json!({
        "type": "Microsoft.Storage.BlobDeleted",
        "source": ACCOUNT,
        "id": "4c2359fe-001e-00ba-0e04-585868000000",
        "requestid": "order-7",
    });
    let data = json!({ "url": "https://pictures.blob.core.windows.net/new/dusk.png" });
    ask(&json!({ "do": "create", "queue": queue }));
    ask(&json!({
        "do": "put_event", "queue": queue, "base64": true, "attributes": attributes, "data": data
    }));
    runtime().block_on(async {
        let service = service().await;
        let delivery = accepted::<Removed>(&service, queue).await;
        assert_eq!(delivery.url, data["url"]);
        let envelope = delivery.envelope();
        assert_eq!(envelope.id.as_str(), attributes["id"]);
        assert_eq!(envelope.request_id.as_str(), "order-7");
        delivery.complete().await.expect("complete");
    });
}

async fn accepted<M: Message>(service: &QueueService, queue: &str) -> Delivery<M> {
    let queue = service.queue_named::<M>(queue).expect("a name");
    queue.accept().await.expect("accept").expect("it was put")
}

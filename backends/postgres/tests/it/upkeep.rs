//! The removal of what nobody needs any more.

use std::time::{Duration, Instant};

use queue_core::QueueName;
use queue_core::backend::{
    Attachment, AttachmentPart, Backend as _, BackendExt as _, NewMessage, QueueTotals,
};

use crate::server::{GUARD, Schema, block_on};

static ORDERS: QueueName = QueueName::from_static("orders");
static BILLS: QueueName = QueueName::from_static("bills");

#[test]
fn messages_of_queues_that_were_cleared_or_deleted_are_removed() {
    block_on(async {
        let schema = Schema::new();
        let backend = schema.open().await;
        for queue in [&ORDERS, &BILLS] {
            backend.ensure_queue(queue).await.expect("created");
            for _ in 0..20 {
                backend
                    .put(queue, NewMessage::new("one"))
                    .await
                    .expect("put");
            }
        }
        backend.clear(&ORDERS).await.expect("cleared");
        backend.delete_queue(&BILLS).await.expect("deleted");
        let kept = backend.put(&ORDERS, NewMessage::new("kept")).await;
        let kept = kept.expect("put").id.to_string();
        // As if that were long ago.
        schema.execute("UPDATE dropped SET at = 0").await;

        let left = format!(
            "SELECT (SELECT array_agg(seq) FROM messages) = ARRAY[{kept}::bigint] AND NOT EXISTS (SELECT FROM dropped)"
        );
        after_upkeep(&schema, &left).await;
    });
}

#[test]
fn data_that_no_message_has_any_more_is_removed() {
    block_on(async {
        let schema = Schema::new();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        let put = async |attachment| {
            let mut message = NewMessage::new("one");
            message.attachment = Some(attachment);
            backend.put(&ORDERS, message).await.expect("put")
        };
        let data = |byte: u8| Attachment::New(vec![byte; 1_500_000].into());
        let deleted = put(data(1)).await;
        let copied = put(data(2)).await;
        let copy = put(Attachment::Of {
            queue: ORDERS.clone(),
            id: copied.id.clone(),
        });
        let copy = copy.await;
        for gone in [deleted, copied] {
            let gone = backend.delete(&ORDERS, &gone.id, &gone.receipt);
            gone.await.expect("deleted");
        }

        let left = "SELECT count(*) = 2 AND NOT EXISTS (SELECT FROM left_behind) FROM attachments";
        after_upkeep(&schema, left).await;
        let part = backend.attachment(&ORDERS, &copy.id, None, 1_499_999);
        let part = part.await.expect("read");
        assert_eq!(part, AttachmentPart::Data(vec![2].into()));
    });
}

#[test]
fn many_changes_are_added_up() {
    block_on(async {
        let schema = Schema::new();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        for _ in 0..70 {
            let put = backend.put(&ORDERS, NewMessage::new("one")).await;
            let put = put.expect("put");
            let deleted = backend.delete(&ORDERS, &put.id, &put.receipt);
            deleted.await.expect("deleted");
        }
        after_upkeep(&schema, "SELECT count(*) = 1 FROM totals").await;
        let properties = backend.properties(&ORDERS).await.expect("read");
        assert_eq!(properties.totals, Some(QueueTotals::new(70, 70)));
    });
}

/// Waits until the upkeep has had this effect. A backend looks for what to do when it is opened, and then once a minute; what
/// transactions of other tests may still see is left.
async fn after_upkeep(schema: &Schema, is_so: &str) {
    let client = schema.connect().await;
    let started = Instant::now();
    while started.elapsed() < GUARD {
        let _opened = schema.open().await;
        for _ in 0..100 {
            let row = client.query_one(is_so, &[]).await.expect("read");
            if row.get::<_, Option<bool>>(0) == Some(true) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    panic!("not so: {is_so}");
}

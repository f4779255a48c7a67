//! The removal of what nobody needs any more.

use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::{Backend as _, BackendExt as _, NewMessage};

use crate::server::{Schema, block_on};

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

        // A backend looks for what to remove when it is opened, and then once a minute.
        let _other = schema.open().await;
        let client = schema.connect().await;
        let left = "SELECT (SELECT string_agg(seq::text, ',') FROM messages), (SELECT count(*) FROM dropped)";
        loop {
            let row = client.query_one(left, &[]).await.expect("read");
            if row.get::<_, &str>(0) == kept && row.get::<_, i64>(1) == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

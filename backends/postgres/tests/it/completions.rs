//! Completions with follow-ups of many callers at once.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend as _, BackendExt as _, NewMessage, Op, PopReceipt};
use queue_core::{ErrorKind, QueueName};
use tokio::task::JoinSet;

use crate::server::{Schema, block_on};

const ORDERS: QueueName = QueueName::from_static("orders");
const RECEIPTS: QueueName = QueueName::from_static("receipts");
const MISSING: QueueName = QueueName::from_static("missing");
const MESSAGES: usize = 60;

/// Completes all messages at once, the first ones with a stale receipt, and others with a follow-up to a queue that is
/// missing. Asserts that each of the others is completed with its follow-up, and these are as they were.
async fn complete_all(stale: usize, missing: usize) {
    let schema = Schema::new();
    let backend = Arc::new(schema.open().await);
    for queue in [&ORDERS, &RECEIPTS] {
        backend.ensure_queue(queue).await.expect("created");
    }
    let puts = (0..MESSAGES).map(|_| Op::Put {
        queue: ORDERS,
        message: NewMessage::new("order"),
    });
    backend.apply(puts.collect()).await.expect("put");
    let lease = Duration::from_secs(60);
    let received = backend.receive(&ORDERS, MESSAGES, lease).await;
    let mut completions = JoinSet::new();
    for (at, order) in received.expect("received").into_iter().enumerate() {
        let is_missing = (stale..stale + missing).contains(&at);
        let receipt = if at < stale {
            PopReceipt::new("stale")
        } else {
            order.receipt
        };
        let put = |queue| Op::Put {
            queue,
            message: NewMessage::new("receipt"),
        };
        let last = if is_missing { MISSING } else { RECEIPTS };
        let delete = Op::Delete {
            queue: ORDERS,
            id: order.id,
            receipt,
            moved: false,
        };
        let ops = [put(RECEIPTS), put(last), delete].into_iter().collect();
        let backend = Arc::clone(&backend);
        completions.spawn(async move { (at, backend.apply(ops).await) });
    }
    for (at, done) in completions.join_all().await {
        let done = done.map(|outcomes| outcomes.len());
        let done = done.map_err(|failed| (failed.index, failed.error.kind()));
        let expected = match at {
            at if at < stale => Err((2, ErrorKind::ReceiptMismatch)),
            at if at < stale + missing => Err((1, ErrorKind::QueueNotFound)),
            _ => Ok(3),
        };
        assert_eq!(done, expected, "{at}");
    }
    for (queue, count) in [
        (&ORDERS, stale + missing),
        (&RECEIPTS, 2 * (MESSAGES - stale - missing)),
    ] {
        let properties = backend.properties(queue).await.expect("read");
        assert_eq!(properties.approximate_count, count, "{queue}");
        let page = backend.browse(queue, None, 256).await.expect("read");
        assert_eq!(page.messages.len(), count, "{queue}");
    }
}

#[test]
fn completions_at_once_are_each_done_or_refused_as_if_alone() {
    block_on(async {
        complete_all(0, 0).await;
        complete_all(7, 0).await;
        complete_all(0, 3).await;
        complete_all(7, 3).await;
    });
}

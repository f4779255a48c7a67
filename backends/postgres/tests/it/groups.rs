//! Settlements that make the next message of a group visible.

use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::{Backend as _, BackendExt as _, NewMessage, Op, ReceivedMessage};
use queue_postgres::PostgresBackend;

use crate::server::{Schema, block_on};

const ORDERS: QueueName = QueueName::from_static("orders");
const LEASE: Duration = Duration::from_secs(60);

async fn put(backend: &PostgresBackend, body: &'static str, group: Option<&str>) {
    let message = NewMessage::new(body).with_group(group);
    backend.put(&ORDERS, message).await.expect("put");
}

async fn receive(backend: &PostgresBackend, max: usize) -> Vec<ReceivedMessage> {
    backend
        .receive(&ORDERS, max, LEASE)
        .await
        .expect("received")
}

async fn delete(backend: &PostgresBackend, message: &ReceivedMessage) {
    let deleted = backend.delete(&ORDERS, &message.id, &message.receipt).await;
    deleted.expect("deleted");
}

fn bodies(messages: &[ReceivedMessage]) -> Vec<&[u8]> {
    messages.iter().map(|message| &message.body[..]).collect()
}

/// A queue with the messages `a`, `b` and `c` of a group, of which the first is received.
async fn with_a_group(schema: &Schema) -> (PostgresBackend, ReceivedMessage) {
    let backend = schema.open().await;
    backend.ensure_queue(&ORDERS).await.expect("created");
    for body in ["a", "b", "c"] {
        put(&backend, body, Some("group")).await;
    }
    let mut first = receive(&backend, 32).await;
    assert_eq!(bodies(&first), [b"a"]);
    let first = first.remove(0);
    (backend, first)
}

#[test]
fn the_next_one_is_received_at_once_although_later_messages_were() {
    block_on(async {
        let schema = Schema::new();
        let (backend, mut of_group) = with_a_group(&schema).await;
        for next in ["b", "c"] {
            put(&backend, "later", None).await;
            assert_eq!(bodies(&receive(&backend, 1).await), [b"later"]);
            put(&backend, "still later", None).await;
            delete(&backend, &of_group).await;
            let received = receive(&backend, 32).await;
            assert_eq!(bodies(&received), [next.as_bytes(), b"still later"]);
            of_group = received.into_iter().next().expect("it was received");
        }
    });
}

#[test]
fn none_is_left_behind_by_deletions_in_any_order() {
    block_on(async {
        for reversed in [false, true] {
            let schema = Schema::new();
            let (backend, first) = with_a_group(&schema).await;
            let other = schema.open().await;
            let page = backend.browse(&ORDERS, None, 32).await.expect("read");
            let behind = page.messages.iter().find(|message| message.body == "b");
            let behind = behind.expect("it lies behind");
            let delete_behind = async || {
                let deleted = other.delete(&ORDERS, &behind.id, &behind.receipt).await;
                deleted.expect("deleted");
            };
            if reversed {
                delete(&backend, &first).await;
                delete_behind().await;
            } else {
                delete_behind().await;
                delete(&backend, &first).await;
            }
            assert_eq!(bodies(&receive(&backend, 32).await), [b"c"]);
        }
    });
}

#[test]
fn several_of_a_group_are_deleted_in_one_step() {
    block_on(async {
        let schema = Schema::new();
        let (backend, first) = with_a_group(&schema).await;
        let page = backend.browse(&ORDERS, None, 32).await.expect("read");
        let behind = page.messages.iter().find(|message| message.body == "b");
        let behind = behind.expect("it lies behind");
        let of = |id: &_, receipt: &_| Op::Delete {
            queue: ORDERS,
            id: Clone::clone(id),
            receipt: Clone::clone(receipt),
            moved: false,
        };
        let both = [
            of(&first.id, &first.receipt),
            of(&behind.id, &behind.receipt),
        ];
        backend
            .apply(both.into_iter().collect())
            .await
            .expect("deleted");
        assert_eq!(bodies(&receive(&backend, 32).await), [b"c"]);
    });
}

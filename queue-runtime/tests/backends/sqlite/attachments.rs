//! Attachments in a SQLite file: what is left of them when their messages are gone, or were never put.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use queue_core::backend::{
    Attachment, Backend, BackendExt as _, NewMessage, Op, PopReceipt, PutIf, StorageId, Swap,
    TimeToLive,
};
use queue_core::idempotency::WorkKey;
use queue_runtime::backend::{AttachmentPart, SqliteBackend};
use queue_runtime::sqlite;
use queue_tests::HOUR;
use rusqlite::Connection;

use crate::sqlite::damaged_file::count;
use crate::sqlite::place::{LEASE, PATIENCE, Place};
use crate::threads;

/// Three parts.
const SIZE: usize = 5 * 512 * 1024;

fn large() -> NewMessage {
    let mut message = NewMessage::new("its data is attached");
    let data = (0..SIZE).map(|at| (at ^ (at >> 8)) as u8);
    message.attachment = Some(Attachment::New(data.collect()));
    message
}

fn left(path: &Path) -> (i64, i64) {
    let messages = count(path, "queue_attached");
    let rows = count(path, "queue_attachments") + count(path, "queue_attachment_parts");
    (messages, rows)
}

/// Waits until nothing is left, while the process is active.
async fn all_gone(place: &Place, backend: &SqliteBackend) {
    let started = Instant::now();
    while left(&place.file()) != (0, 0) {
        assert!(started.elapsed() < PATIENCE, "{:?}", left(&place.file()));
        place.clock.advance(Duration::from_secs(1));
        backend
            .receive(&place.queue, 1, LEASE)
            .await
            .expect("receive");
        std::thread::sleep(Duration::from_millis(5));
    }
}

async fn read(backend: &SqliteBackend, place: &Place) -> Bytes {
    let message = backend
        .receive(&place.queue, 1, LEASE)
        .await
        .expect("receive")
        .remove(0);
    let mut data = Vec::new();
    loop {
        let part = backend
            .attachment(&place.queue, &message.id, None, data.len() as u64)
            .await;
        match part.expect("read") {
            AttachmentPart::Data(part) if part.is_empty() => return data.into(),
            AttachmentPart::Data(part) => data.extend_from_slice(&part),
            other => panic!("{other:?}"),
        }
    }
}

fn assert_whole(data: &Bytes) {
    let Some(Attachment::New(expected)) = large().attachment else {
        unreachable!("it has one")
    };
    assert!(
        *data == expected,
        "another attachment of {} bytes",
        data.len()
    );
}

#[test]
fn nothing_is_left_of_a_message_that_is_gone() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open_unsynced(&place.file()).await;
        let [orders, others] = &place.queues;
        for queue in [orders, others] {
            backend.ensure_queue(queue).await.expect("created");
        }
        let put = async |queue, message| backend.put(queue, message).await.expect("put");
        let deleted = put(orders, large()).await;
        backend
            .delete(orders, &deleted.id, &deleted.receipt)
            .await
            .expect("deleted");
        all_gone(&place, &backend).await;

        put(orders, large().with_time_to_live(TimeToLive::After(LEASE))).await;
        assert_eq!(left(&place.file()), (1, 4));
        place.clock.advance(LEASE);
        all_gone(&place, &backend).await;

        put(others, large()).await;
        backend.clear(others).await.expect("cleared");
        all_gone(&place, &backend).await;

        put(others, large()).await;
        backend.delete_queue(others).await.expect("deleted");
        all_gone(&place, &backend).await;
        backend.close().await;
    });
}

/// Gives up a put of a large message once its first part is stored.
async fn given_up() -> (Place, SqliteBackend) {
    let place = Place::new();
    let backend = place.open_unsynced(&place.file()).await;
    backend.ensure_queue(&place.queue).await.expect("created");
    {
        let mut put = pin!(backend.put(&place.queue, large()));
        let mut polling = Context::from_waker(Waker::noop());
        while count(&place.file(), "queue_attachment_parts") == 0 {
            if put.as_mut().poll(&mut polling).is_ready() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let after = backend.put(&place.queue, NewMessage::new("small")).await;
    after.expect("put, and all before it");
    (place, backend)
}

#[test]
fn what_was_staged_by_a_put_that_was_given_up_stays_for_an_hour() {
    threads::block_on(async {
        // One that is polled by a thread that stands still meanwhile may have got to its end.
        let (place, backend) = loop {
            let (place, backend) = given_up().await;
            if left(&place.file()).0 == 0 {
                break (place, backend);
            }
            backend.close().await;
        };
        place.clock.advance(HOUR - Duration::from_secs(60));
        // A sweep for what has expired looks for it, too.
        for _ in 0..3 {
            place.clock.advance(Duration::from_secs(1));
            backend
                .put(&place.queue, NewMessage::new("small"))
                .await
                .expect("put");
        }
        assert!(left(&place.file()).1 > 1);
        place.clock.advance(Duration::from_secs(60));
        all_gone(&place, &backend).await;
        backend.close().await;
    });
}

#[test]
fn nothing_stays_of_a_put_that_is_refused() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open_unsynced(&place.file()).await;
        backend.ensure_queue(&place.queue).await.expect("created");
        let swap = Swap::new(WorkKey::new("film", "7"), "taken", HOUR);
        let record = backend.put_if(&place.queue, None, &swap).await;
        record.expect("recorded");
        let again = backend.put_if(&place.queue, Some(large()), &swap).await;
        assert!(matches!(again, Ok(PutIf::Differs(_))), "{again:?}");

        let gone = Op::Delete {
            queue: place.queue.clone(),
            id: StorageId::new("no id"),
            receipt: PopReceipt::new("no receipt"),
            moved: false,
        };
        let put = Op::Put {
            queue: place.queue.clone(),
            message: large(),
        };
        backend
            .apply(vec![put, gone].into())
            .await
            .expect_err("no such message");
        assert_eq!(count(&place.file(), "queue_messages"), 0);
        all_gone(&place, &backend).await;
        backend.close().await;
    });
}

#[test]
fn nothing_is_staged_for_a_queue_that_is_missing() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open_unsynced(&place.file()).await;
        let put = backend.put(&place.queue, large()).await;
        put.expect_err("there is no such queue");
        assert_eq!(left(&place.file()), (0, 0));
        backend.close().await;
    });
}

#[test]
fn a_salvaged_message_has_its_attachment() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open_unsynced(&place.file()).await;
        backend.ensure_queue(&place.queue).await.expect("created");
        backend.put(&place.queue, large()).await.expect("put");
        let gone = backend.put(&place.queue, large()).await.expect("put");
        backend
            .delete(&place.queue, &gone.id, &gone.receipt)
            .await
            .expect("deleted");
        backend.close().await;
        let new = place.path("new.db");
        assert_eq!(
            sqlite::salvage(place.file(), &new)
                .expect("salvaged")
                .messages,
            1
        );
        assert_eq!(left(&new), (1, 4));
        let backend = place.open_unsynced(&new).await;
        assert_whole(&read(&backend, &place).await);
        backend.close().await;
    });
}

#[test]
fn a_file_of_the_version_before_attachments_gets_them() {
    const VERSION_1: &str = include_str!("../../../../backends/sqlite/src/rows/version_1.sql");

    threads::block_on(async {
        let place = Place::new();
        let connection = Connection::open(place.file()).expect("open");
        connection.execute_batch(VERSION_1).expect("tables");
        let mark = "CREATE VIEW queue_layout (version) AS SELECT 1";
        connection.execute_batch(mark).expect("version");
        drop(connection);
        let backend = place.open_unsynced(&place.file()).await;
        backend.ensure_queue(&place.queue).await.expect("created");
        backend.put(&place.queue, large()).await.expect("put");
        assert_whole(&read(&backend, &place).await);
        backend.close().await;
    });
}

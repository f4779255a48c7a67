//! Damage stays local: what one damaged page held is marked or left to a salvage, and everything else is delivered.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{
    Backend, BackendExt as _, NewMessage, Op, PutBackPlace, ReceivedMessage, TimeToLive,
};
use queue_core::envelope::PoisonReason;
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, Outcome, QueueName};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::sqlite;
use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

use crate::sqlite::damaged_file::{
    PAGE, ROWS_OF_A_PAGE, bodies, body_of, drain, neighbours, pages, rows_of_leaves,
};
use crate::sqlite::place::{LEASE, Place};
use crate::threads;

#[test]
fn a_damaged_page_of_bodies_marks_only_their_messages() {
    const MESSAGES: usize = 60;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 100, TimeToLive::Never).await;
        for page in pages(&whole, "queue_messages", "leaf") {
            let backend = place.open_unsynced(&place.damaged(&whole, page)).await;
            let mut damaged = 0;
            for queue in &place.queues {
                let messages = drain(&backend, queue).await;
                assert_eq!(messages.len(), MESSAGES, "page {page}: none is missing");
                let intact = bodies(&messages);
                let marked = messages.len() - intact.len();
                let all: HashSet<_> = (0..MESSAGES).map(|n| body_of(queue, n, 100)).collect();
                assert!(intact.is_subset(&all), "page {page}: {intact:?}");
                damaged += marked;
            }
            assert!((1..=40).contains(&damaged), "page {page}: {damaged}");
            backend.close().await;
            // What was completed does not come back.
            let new = place.path(&format!("new-{page}.db"));
            let salvaged = sqlite::salvage(place.path(&format!("damaged-{page}.db")), new);
            assert_eq!(salvaged.expect("salvage").messages, 0, "page {page}");
        }
    });
}

#[test]
fn a_damaged_overflow_page_marks_one_message() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(3, 20_000, TimeToLive::Never).await;
        for page in pages(&whole, "queue_messages", "overflow") {
            let backend = place.open_unsynced(&place.damaged(&whole, page)).await;
            let mut intact = 0;
            for queue in &place.queues {
                let messages = drain(&backend, queue).await;
                assert_eq!(messages.len(), 3);
                intact += bodies(&messages).len();
            }
            assert_eq!(intact, 5, "page {page}");
            backend.close().await;
        }
    });
}

/// The messages that are received at once.
const BATCH: usize = 32;

/// Receives and deletes what can be. Returns the bodies of the messages that were deleted, and whether anything failed,
/// which must say what to do.
async fn drain_readable(backend: &SqliteBackend, queue: &QueueName) -> (HashSet<String>, bool) {
    let (mut deleted, mut failed) = (HashSet::new(), false);
    let mut check = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
        assert!(error.to_string().contains("example salvage"), "{error}");
        failed = true;
    };
    loop {
        let received = match backend.receive(queue, BATCH, LEASE).await {
            Ok(received) if received.is_empty() => break,
            Ok(received) => received,
            Err(error) => {
                check(&error);
                break;
            }
        };
        let all = bodies(&received);
        assert_eq!(all.len(), received.len(), "each once, none marked");
        let delete = |message: &ReceivedMessage| Op::Delete {
            queue: queue.clone(),
            id: message.id.clone(),
            receipt: message.receipt.clone(),
            moved: false,
        };
        match backend.apply(received.iter().map(delete).collect()).await {
            Ok(_) => deleted.extend(all),
            Err(error) => check(&error.error),
        }
    }
    (deleted, failed)
}

/// Returns how many messages of a queue are delivered at least, whose rows have these numbers: all but a batch unless a
/// damaged leaf is near the queue's rows, and otherwise those before the first damaged leaf, except for some beside it.
/// SQLite also reads the leaves beside one that becomes too full or too empty. None if a damaged leaf is near the queue's
/// last, where the leases are entered.
fn delivered_at_least(rows: &[usize], damaged: &[usize], of_queue: Range<usize>) -> usize {
    // Inner pages hold a row for each leaf.
    let near = rows.len() + ROWS_OF_A_PAGE;
    let spans = damaged.iter().map(|&leaf| {
        let first: usize = rows[..leaf].iter().sum();
        first..first + rows.len() + rows[leaf]
    });
    let least = |span: Range<usize>| {
        if span.end + near <= of_queue.start || span.start >= of_queue.end + near {
            of_queue.len() - BATCH
        } else if span.end + near >= of_queue.end {
            0
        } else {
            span.start.saturating_sub(near + of_queue.start)
        }
    };
    spans.map(least).min().expect("a damaged leaf")
}

/// What the service cannot read any more is in the file, for a salvage.
#[test]
fn a_damaged_page_of_the_schedule_is_reported_and_loses_no_message() {
    const MESSAGES: usize = 1500;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 1, TimeToLive::Never).await;
        let leaves = pages(&whole, "queue_schedule", "leaf");
        assert!(leaves.len() > 10, "{leaves:?}");
        let rows = rows_of_leaves(&whole, "queue_schedule");
        // The first and the last ones, those where the queues meet, some others, and some pairs.
        let (last, middle) = (leaves.len() - 1, leaves.len() / 2);
        let single = [
            0,
            1,
            3,
            middle - 1,
            middle,
            middle + 1,
            last - 3,
            last - 1,
            last,
        ];
        let mut chosen: Vec<Vec<usize>> = single.map(|leaf| vec![leaf]).into();
        chosen.extend(neighbours(leaves.len()).map(Vec::from));
        for (n, chosen) in chosen.into_iter().enumerate() {
            let damaged: Vec<usize> = chosen.iter().map(|&leaf| leaves[leaf]).collect();
            let path = place.damaged_at(&whole, &damaged);
            let backend = place.open_unsynced(&path).await;
            let (mut drained, mut failures) = (Vec::new(), 0);
            for queue in &place.queues {
                let (deleted, failed) = drain_readable(&backend, queue).await;
                failures += usize::from(failed);
                drained.push(deleted);
            }
            assert!(failures > 0, "leaves {chosen:?}: nobody is told");
            for (queue, deleted) in drained.iter().enumerate() {
                let of_queue = queue * MESSAGES..(queue + 1) * MESSAGES;
                let least = delivered_at_least(&rows, &chosen, of_queue);
                let delivered = deleted.len();
                assert!(
                    delivered >= least,
                    "leaves {chosen:?}, queue {queue}: {delivered} of {least}, rows {rows:?}"
                );
            }
            backend.close().await;

            let new = place.path(&format!("new-{n}.db"));
            let salvaged = sqlite::salvage(&path, &new).expect("salvage");
            assert_eq!(salvaged.lost, 0, "leaves {chosen:?}");
            place.clock.advance(LEASE);
            let backend = place.open_unsynced(&new).await;
            for (queue, deleted) in place.queues.iter().zip(drained) {
                let rest = bodies(&drain(&backend, queue).await);
                assert!(rest.is_disjoint(&deleted), "leaves {chosen:?}");
                let all: HashSet<_> = (0..MESSAGES).map(|n| body_of(queue, n, 1)).collect();
                assert_eq!(&rest | &deleted, all, "leaves {chosen:?}");
            }
            backend.close().await;
        }
    });
}

#[test]
fn where_no_body_can_be_appended_messages_are_still_received() {
    const MESSAGES: usize = 60;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 100, TimeToLive::Never).await;
        let leaves = pages(&whole, "queue_messages", "leaf");
        let path = place.damaged(&whole, leaves[leaves.len() - 1]);
        let backend = place.open_unsynced(&path).await;
        let put = backend.put(&place.queue, NewMessage::new("new"));
        let refused = put.await.expect_err("the page is damaged");
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        for queue in &place.queues {
            assert_eq!(drain(&backend, queue).await.len(), MESSAGES);
        }
        backend.close().await;
    });
}

/// The next message would have the number of another one, under which it would never be received.
#[test]
fn no_message_is_put_after_one_whose_number_is_damaged() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.fill(3, 3000, TimeToLive::Never).await;
        let last = *pages(&path, "queue_messages", "leaf")
            .last()
            .expect("a page");
        let mut bytes = fs::read(&path).expect("read");
        // The page's only row, which has the number zero then.
        bytes[(last - 1) * PAGE + 100..last * PAGE].fill(0);
        fs::write(&path, bytes).expect("written");

        let backend = place.open_unsynced(&path).await;
        let put = backend.put(&place.queue, NewMessage::new("new")).await;
        assert_eq!(put.expect_err("refused").kind(), ErrorKind::Corrupt);
        let received = backend.receive(&place.queue, 32, LEASE).await;
        let received = received.expect("received");
        assert!(received.iter().all(|message| message.body != "new"));
        assert_eq!(received.len(), 3);
        backend.close().await;
    });
}

#[test]
fn a_damaged_page_is_reported_as_corrupt() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        for _ in 0..200 {
            let put = backend.put(&place.queue, NewMessage::new("x".repeat(500)));
            put.await.expect("put");
        }
        backend.close().await;
        let mut bytes = fs::read(place.file()).expect("read");
        let end = bytes.len();
        bytes[4096 * 2..end].fill(0xaa);
        fs::write(place.file(), &bytes).expect("write");
        match place.try_open(&place.file()).await {
            Err(refused) => assert_eq!(refused.kind(), ErrorKind::Corrupt),
            Ok(backend) => {
                let received = backend.receive(&place.queue, 10, LEASE).await;
                assert_eq!(received.expect_err("damaged").kind(), ErrorKind::Corrupt);
            }
        }
    });
}

#[test]
fn an_altered_body_is_marked_as_damaged() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        for amount in ["amount: 100", "amount: 200", "amount: 300"] {
            let put = backend.put(&place.queue, NewMessage::new(amount)).await;
            put.expect("put");
        }
        backend.close().await;
        let mut bytes = fs::read(place.file()).expect("read");
        let found = bytes.windows(11).position(|part| part == b"amount: 200");
        bytes[found.expect("the file holds it") + 8] = b'9';
        fs::write(place.file(), &bytes).expect("write");

        let backend = place.orders().await;
        let peeked = backend.peek(&place.queue, 10).await.expect("peek");
        let damaged: Vec<bool> = peeked.iter().map(|m| m.damage.is_some()).collect();
        assert_eq!(damaged, [false, true, false]);
        let received = backend.receive(&place.queue, 10, LEASE).await;
        let received = received.expect("receive");
        let damaged: Vec<bool> = received.iter().map(|m| m.damage.is_some()).collect();
        assert_eq!(damaged, [false, true, false]);
        let (id, receipt) = (&received[1].id, &received[1].receipt);
        let rewritten = Some("amount: 250".into());
        let lease = backend.put_back(
            &place.queue,
            id,
            receipt,
            PutBackPlace::After(Duration::ZERO),
            rewritten,
        );
        lease.await.expect("update");
        let received = backend.receive(&place.queue, 10, LEASE).await;
        let received = received.expect("receive");
        assert_eq!(
            (&*received[0].body, &received[0].damage),
            (&b"amount: 250"[..], &None)
        );
        let (id, receipt) = (&received[0].id, &received[0].receipt);
        let deleted = backend.delete(&place.queue, id, receipt).await;
        deleted.expect("delete");
    });
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct Transfer {
    amount: u32,
}

#[tokio::test]
async fn an_altered_message_is_poison_and_not_decoded() {
    let place = Place::new();
    let path = place.path("queue.db");
    let backend = SqliteBackend::builder(&path, Arc::new(SystemClock::new()));
    let backend = Arc::new(backend.open().await.expect("open"));
    let service = QueueService::with_backend(backend.clone()).connect();
    let service = service.await.expect("connect");
    let transfers = [100, 200, 300].map(|amount| Transfer { amount });
    service.submit_all(transfers).await.expect("submit");
    // A service that is dropped closes the file in the background; then the messages may still be in the log.
    backend.close().await;
    let mut bytes = fs::read(&path).expect("read");
    let payload = br#""amount":200"#;
    let found = bytes
        .windows(payload.len())
        .position(|part| part == payload);
    bytes[found.expect("the file holds it") + 9] = b'9';
    fs::write(&path, bytes).expect("write");

    let url = format!("sqlite:{}", path.display());
    let service = QueueService::connect(&url).await.expect("connect");
    let mut amounts = Vec::new();
    while let Some(transfer) = service.accept::<Transfer>().await.expect("accept") {
        amounts.push(transfer.amount);
        transfer.complete().await.expect("complete");
    }
    assert_eq!(amounts, [100, 300]);
    let poison = service.any_queue("transfer-poison").expect("a name");
    let peeked = poison.peek(10).await.expect("peek");
    let [peeked] = &peeked[..] else {
        panic!("one message is poison: {peeked:?}");
    };
    let Body::Event(event) = &peeked.body else {
        panic!("it has a record: {peeked:?}");
    };
    let record = event.envelope.poison.as_ref().expect("a record");
    assert_eq!(record.reason, PoisonReason::Damaged);
    assert!(record.raw, "what is left of it is kept as it is");
}

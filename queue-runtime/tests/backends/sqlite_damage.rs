//! Damage stays local: what one damaged page held is lost or marked, and everything else is delivered.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, Metadata, NewMessage, Op, ReceivedMessage, TimeToLive};
use queue_core::envelope::PoisonReason;
use queue_core::wire::Body;
use queue_core::{ErrorKind, ManualClock, QueueName};
use queue_runtime::backend::{SqliteBackend, Synchronous, sqlite};
use queue_runtime::{Message, QueueService};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::threads;

const LEASE: Duration = Duration::from_secs(30);

/// The size of a page of the database.
const PAGE: usize = 4096;

/// More rows than a page of the schedule holds.
const ROWS_OF_A_PAGE: usize = 250;

struct Place {
    directory: TempDir,
    clock: ManualClock,
    queues: [QueueName; 2],
}

impl Place {
    fn new() -> Self {
        Self {
            directory: TempDir::new().expect("a directory"),
            clock: ManualClock::new(),
            queues: ["orders", "others"].map(|name| name.parse().expect("a name")),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn open(&self, path: &Path) -> SqliteBackend {
        let builder = SqliteBackend::builder(path, Arc::new(self.clock.clone()));
        // Durability is not tested here.
        let opened = builder.synchronous(Synchronous::Normal).open().await;
        opened.expect("open")
    }

    /// Creates a file with messages in both queues by turns. Their bodies are the queue and a number.
    async fn fill(&self, messages: usize, body: usize, time_to_live: TimeToLive) -> PathBuf {
        let path = self.path("whole.db");
        let backend = self.open(&path).await;
        for queue in &self.queues {
            let created = backend.create_queue(queue, &Metadata::new()).await;
            created.expect("create");
        }
        for chunk in (0..messages).collect::<Vec<_>>().chunks(500) {
            let put = |(n, queue): (&usize, &QueueName)| Op::Put {
                queue: queue.clone(),
                message: NewMessage {
                    time_to_live,
                    ..NewMessage::new(body_of(queue, *n, body))
                },
            };
            let both = |n| self.queues.iter().map(move |queue| (n, queue));
            let ops = chunk.iter().flat_map(both).map(put).collect();
            backend.apply(ops).await.expect("apply");
            self.clock.advance(Duration::from_millis(1));
        }
        backend.close().await;
        path
    }

    /// Copies the file and overwrites a page of the copy.
    fn damaged(&self, whole: &Path, page: usize) -> PathBuf {
        self.damaged_at(whole, &[page])
    }

    /// Copies the file and overwrites pages of the copy. It is named after the first.
    fn damaged_at(&self, whole: &Path, pages: &[usize]) -> PathBuf {
        let path = self.path(&format!("damaged-{}.db", pages[0]));
        let mut bytes = fs::read(whole).expect("read");
        for page in pages {
            bytes[(page - 1) * PAGE..page * PAGE].fill(0xaa);
        }
        fs::write(&path, bytes).expect("write");
        path
    }
}

fn body_of(queue: &QueueName, n: usize, length: usize) -> String {
    format!("{queue} {n} {}", "x".repeat(length))
}

/// Returns the numbers of a table's pages of this type.
fn pages(path: &Path, table: &str, kind: &str) -> Vec<usize> {
    let connection = Connection::open(path).expect("open");
    let select = "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = ?2 ORDER BY path";
    let mut statement = connection.prepare(select).expect("prepare");
    let pages = statement.query_map([table, kind], |row| row.get::<_, i64>(0));
    let pages = pages.and_then(Iterator::collect).expect("pages");
    let pages: Vec<i64> = pages;
    pages.into_iter().map(|page| page as usize).collect()
}

/// Receives and deletes all messages of a queue.
async fn drain(backend: &SqliteBackend, queue: &QueueName) -> Vec<ReceivedMessage> {
    let mut drained = Vec::new();
    loop {
        let received = backend.receive(queue, 100, LEASE).await.expect("receive");
        if received.is_empty() {
            break;
        }
        drained.extend(received);
    }
    for several in drained.chunks(100) {
        let delete = |message: &ReceivedMessage| Op::Delete {
            queue: queue.clone(),
            id: message.id.clone(),
            receipt: message.receipt.clone(),
        };
        let deletes = several.iter().map(delete).collect();
        backend.apply(deletes).await.expect("delete");
    }
    let properties = backend.properties(queue).await.expect("properties");
    assert_eq!(properties.approximate_count, 0);
    drained
}

fn bodies(messages: &[ReceivedMessage]) -> HashSet<String> {
    let intact = messages.iter().filter(|message| message.damage.is_none());
    let text = |message: &ReceivedMessage| String::from_utf8(message.body.to_vec()).expect("text");
    intact.map(text).collect()
}

#[test]
fn a_damaged_page_of_bodies_marks_only_their_messages() {
    const MESSAGES: usize = 60;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 100, TimeToLive::Never).await;
        for page in pages(&whole, "messages", "leaf") {
            let backend = place.open(&place.damaged(&whole, page)).await;
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
        for page in pages(&whole, "messages", "overflow") {
            let backend = place.open(&place.damaged(&whole, page)).await;
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

#[test]
fn a_damaged_page_of_the_schedule_costs_only_what_it_held() {
    const MESSAGES: usize = 1500;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 1, TimeToLive::Never).await;
        let leaves = pages(&whole, "schedule", "leaf");
        assert!(leaves.len() > 10, "{leaves:?}");
        // The first and the last ones, those where the queues meet, and some others.
        let (last, middle) = (leaves.len() - 1, leaves.len() / 2);
        let chosen = [
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
        for page in chosen.map(|n| leaves[n]) {
            let path = place.damaged(&whole, page);
            let backend = place.open(&path).await;
            let mut lost = 0;
            for queue in &place.queues {
                let messages = drain(&backend, queue).await;
                assert_eq!(
                    bodies(&messages).len(),
                    messages.len(),
                    "each once, none marked"
                );
                lost += MESSAGES - messages.len();
                // The queue goes on as usual.
                for _ in 0..3 {
                    let put = backend.put(queue, NewMessage::new("new")).await;
                    put.expect("put");
                }
                assert_eq!(drain(&backend, queue).await.len(), 3);
            }
            assert!((1..=ROWS_OF_A_PAGE).contains(&lost), "page {page}: {lost}");
            let connection = Connection::open(&path).expect("open");
            let recorded = "SELECT sum(messages) FROM damage WHERE what = 'schedule'";
            let recorded = connection.query_row(recorded, [], |row| row.get::<_, i64>(0));
            assert_eq!(recorded, Ok(lost as i64), "page {page}");
            backend.close().await;
        }
    });
}

/// Pairs of leaves, by number, of which the second one is the third after the first one.
fn neighbours(leaves: usize) -> [[usize; 2]; 3] {
    [0, 1, leaves / 2 + 1].map(|leaf| [leaf, leaf + 3])
}

/// The same, and pairs with the last leaf.
fn pairs(leaves: usize) -> Vec<[usize; 2]> {
    let with_last = [0, 1, leaves / 2 + 2].map(|leaf| [leaf, leaves - 1]);
    [with_last, neighbours(leaves)].concat()
}

#[test]
fn two_damaged_pages_of_the_schedule_cost_only_what_they_held() {
    const MESSAGES: usize = 1500;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 1, TimeToLive::Never).await;
        let leaves = pages(&whole, "schedule", "leaf");
        for [one, other] in neighbours(leaves.len()) {
            let path = place.damaged_at(&whole, &[leaves[one], leaves[other]]);
            let backend = place.open(&path).await;
            let mut lost = 0;
            for queue in &place.queues {
                lost += MESSAGES - drain(&backend, queue).await.len();
            }
            let expected = 2..=2 * ROWS_OF_A_PAGE;
            assert!(expected.contains(&lost), "leaves {one}, {other}: {lost}");
            backend.close().await;
        }
    });
}

#[test]
fn salvage_copies_what_is_between_and_beside_damaged_pages() {
    const MESSAGES: usize = 1500;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 100, TimeToLive::Never).await;
        let leaves = pages(&whole, "messages", "leaf");
        for [one, other] in pairs(leaves.len()) {
            let path = place.damaged_at(&whole, &[leaves[one], leaves[other]]);
            let new = place.path(&format!("new-{one}-{other}.db"));
            let salvaged = sqlite::salvage(path, &new).expect("salvage");
            assert_eq!(salvaged.messages + salvaged.lost, 2 * MESSAGES as u64);
            let lost = salvaged.lost;
            assert!((2..=80).contains(&lost), "leaves {one}, {other}: {lost}");
        }

        let leaves = pages(&whole, "schedule", "leaf");
        assert!(leaves.len() > 4, "{leaves:?}");
        for [one, other] in pairs(leaves.len()) {
            let path = place.damaged_at(&whole, &[leaves[one], leaves[other]]);
            let new = place.path(&format!("new-schedule-{one}-{other}.db"));
            let salvaged = sqlite::salvage(path, &new).expect("salvage");
            assert_eq!(salvaged.messages, 2 * MESSAGES as u64);
            let unknown = salvaged.rescheduled as usize;
            let expected = 2..=2 * ROWS_OF_A_PAGE;
            assert!(
                expected.contains(&unknown),
                "leaves {one}, {other}: {unknown}"
            );
        }
    });
}

#[test]
fn salvage_goes_on_after_an_altered_id() {
    const MESSAGES: usize = 60;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 100, TimeToLive::Never).await;
        let page = pages(&whole, "messages", "leaf")[1];
        let mut bytes = fs::read(&whole).expect("read");
        // The second row of the page becomes the first one once more.
        let rows = (page - 1) * PAGE + 8;
        bytes.copy_within(rows..rows + 2, rows + 2);
        let path = place.path("altered.db");
        fs::write(&path, bytes).expect("write");
        let salvaged = sqlite::salvage(path, place.path("new.db")).expect("salvage");
        assert_eq!(salvaged.messages, 2 * MESSAGES as u64 - 1);
        assert_eq!((salvaged.lost, salvaged.rescheduled), (1, 0));
    });
}

#[test]
fn a_failed_salvage_leaves_no_file_and_names_the_damaged_one() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1, 1, TimeToLive::Never).await;
        let path = place.path("dropped.db");
        fs::copy(&whole, &path).expect("copy");
        let connection = Connection::open(&path).expect("open");
        connection.execute_batch("DROP TABLE queues").expect("drop");
        drop(connection);
        let new = place.path("new.db");
        let refused = sqlite::salvage(&path, &new).expect_err("a table is missing");
        assert!(!new.exists());
        assert!(refused.to_string().contains("dropped.db"), "{refused}");
    });
}

#[test]
fn damage_in_the_way_of_the_sweep_fails_nothing_else() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1000, 1, TimeToLive::After(LEASE)).await;
        let leaves = pages(&whole, "schedule", "leaf");
        for page in [leaves[1], leaves[leaves.len() / 2]] {
            let backend = place.open(&place.damaged(&whole, page)).await;
            place.clock.advance(LEASE * 2);
            for queue in &place.queues {
                for _ in 0..20 {
                    let put = backend.put(queue, NewMessage::new("new")).await;
                    put.expect("put");
                    place.clock.advance(Duration::from_secs(1));
                }
                assert_eq!(drain(&backend, queue).await.len(), 20);
            }
            backend.close().await;
        }
    });
}

/// Puts messages one by one, each of which also gives time to a step of the purge.
async fn drive(backend: &SqliteBackend, place: &Place) {
    for _ in 0..30 {
        let put = backend.put(&place.queues[0], NewMessage::new("new"));
        put.await.expect("put");
        place.clock.advance(Duration::from_millis(200));
    }
}

fn count(path: &Path, rows: &str) -> i64 {
    let connection = Connection::open(path).expect("open");
    let count = format!("SELECT count(*) FROM {rows}");
    let counted = connection.query_row(&count, [], |row| row.get(0));
    counted.expect("count")
}

#[test]
fn expired_messages_with_damaged_bodies_are_removed() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1000, 1, TimeToLive::After(LEASE)).await;
        let page = pages(&whole, "messages", "leaf")[1];
        let path = place.damaged(&whole, page);
        let backend = place.open(&path).await;
        place.clock.advance(LEASE * 2);
        drive(&backend, &place).await;
        backend.close().await;
        assert_eq!(count(&path, "schedule WHERE expires_at IS NOT NULL"), 0);
        // Only the bodies that cannot be removed stay behind.
        let discarded = count(&path, "discarded");
        assert!((1..600).contains(&discarded), "{discarded}");
    });
}

#[test]
fn a_deleted_queue_with_damage_does_not_keep_the_others() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1000, 1, TimeToLive::Never).await;
        let page = pages(&whole, "schedule", "leaf")[1];
        let path = place.damaged(&whole, page);
        let backend = place.open(&path).await;
        for queue in &place.queues {
            backend.clear(queue).await.expect("clear");
        }
        drive(&backend, &place).await;
        backend.close().await;
        assert_eq!(count(&path, "schedule WHERE queue = 2"), 0);
        assert_eq!(count(&path, "dropped"), 1);
    });
}

#[test]
fn removal_goes_on_after_a_temporary_failure() {
    threads::block_on(async {
        let place = Place::new();
        for dropped in [false, true] {
            let path = place.fill(1000, 1, TimeToLive::After(LEASE)).await;
            let backend = place.open(&path).await;
            let change = |sql: &str| {
                let connection = Connection::open(&path).expect("open");
                connection.execute_batch(sql).expect("change");
            };
            change(
                "CREATE TRIGGER full BEFORE DELETE ON messages \
                 BEGIN SELECT RAISE(ABORT, 'as on a full disk'); END",
            );
            if dropped {
                backend.clear(&place.queues[1]).await.expect("clear");
            } else {
                place.clock.advance(LEASE * 2);
            }
            drive(&backend, &place).await;
            assert_eq!(count(&path, "schedule WHERE queue = 2"), 1000);
            change("DROP TRIGGER full");
            drive(&backend, &place).await;
            assert_eq!(count(&path, "schedule WHERE queue = 2"), 0);
            backend.close().await;
            fs::remove_file(&path).expect("remove");
        }
    });
}

#[test]
fn a_queue_is_moved_beside_damage_once_by_all_processes_together() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(60, 100, TimeToLive::Never).await;
        let leaves = pages(&whole, "messages", "leaf");
        let path = place.damaged(&whole, leaves[leaves.len() - 1]);
        for _ in 0..3 {
            let backend = place.open(&path).await;
            let put = backend.put(&place.queues[0], NewMessage::new("new"));
            let refused = put.await.expect_err("the page is damaged");
            assert_eq!(refused.kind(), ErrorKind::Corrupt);
            backend.close().await;
        }
        assert_eq!(count(&path, "moved"), 1);
    });
}

#[test]
fn deeper_damage_fails_and_what_is_readable_is_salvaged() {
    const MESSAGES: usize = 1500;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 1, TimeToLive::Never).await;
        let root = pages(&whole, "schedule", "internal")[0];
        let path = place.damaged(&whole, root);
        let backend = place.open(&path).await;
        let received = backend.receive(&place.queues[0], 1, LEASE).await;
        let refused = received.expect_err("damaged");
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        assert!(refused.to_string().contains("salvage"), "{refused}");
        backend.close().await;

        let before = fs::read(&path).expect("read");
        let salvaged = sqlite::salvage(&path, place.path("new.db")).expect("salvage");
        assert_eq!(fs::read(&path).expect("read"), before);
        assert_eq!(salvaged.messages, 2 * MESSAGES as u64);
        assert_eq!(salvaged.rescheduled, 2 * MESSAGES as u64);
        let backend = place.open(&place.path("new.db")).await;
        for queue in &place.queues {
            let all = (0..MESSAGES).map(|n| body_of(queue, n, 1)).collect();
            assert_eq!(bodies(&drain(&backend, queue).await), all);
        }
        sqlite::salvage(&path, place.path("new.db")).expect_err("it exists");
    });
}

#[test]
fn salvage_copies_what_is_readable() {
    const MESSAGES: usize = 300;

    threads::block_on(async {
        let place = Place::new();
        let whole = place
            .fill(MESSAGES, 100, TimeToLive::After(LEASE * 10))
            .await;
        let backend = place.open(&whole).await;
        let leased = backend.receive(&place.queues[0], 1, LEASE).await;
        let leased = leased.expect("receive").pop().expect("a message");
        let metadata = backend.metadata(&place.queues[0]).await.expect("metadata");
        backend.clear(&place.queues[1]).await.expect("clear");
        backend.close().await;
        let bodies_of_pages = pages(&whole, "messages", "leaf");
        for page in [bodies_of_pages[1], bodies_of_pages[3]] {
            let new = place.path(&format!("new-{page}.db"));
            let path = place.damaged(&whole, page);
            let salvaged = sqlite::salvage(path, &new).expect("salvage");
            assert_eq!((salvaged.queues, salvaged.rescheduled), (2, 0));
            assert_eq!(salvaged.messages + salvaged.lost, MESSAGES as u64);
            assert!((1..=40).contains(&salvaged.lost), "{salvaged:?}");
            let backend = place.open(&new).await;
            let copied = backend.metadata(&place.queues[0]).await.expect("metadata");
            assert_eq!(copied, metadata);
            // Leases are kept, and receipts with them.
            let (id, receipt) = (&leased.id, &leased.receipt);
            if backend.delete(&place.queues[0], id, receipt).await.is_ok() {
                let rest = drain(&backend, &place.queues[0]).await;
                assert_eq!(rest.len() as u64, salvaged.messages - 1);
                assert_eq!(bodies(&rest).len(), rest.len());
            }
            assert!(drain(&backend, &place.queues[1]).await.is_empty());
            backend.close().await;
        }
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
    let url = format!("sqlite:{}", path.display());
    let service = QueueService::connect(&url).await.expect("connect");
    let transfers = [100, 200, 300].map(|amount| Transfer { amount });
    service.submit_all(transfers).await.expect("submit");
    drop(service);
    // The service closes the file in the background.
    place.open(&path).await.close().await;
    let mut bytes = fs::read(&path).expect("read");
    let payload = br#""amount":200"#;
    let found = bytes
        .windows(payload.len())
        .position(|part| part == payload);
    bytes[found.expect("the file holds it") + 9] = b'9';
    fs::write(&path, bytes).expect("write");

    let service = QueueService::connect(&url).await.expect("connect");
    let mut amounts = Vec::new();
    while let Some(transfer) = service.accept::<Transfer>().await.expect("accept") {
        amounts.push(transfer.amount);
        transfer.complete().await.expect("complete");
    }
    assert_eq!(amounts, [100, 300]);
    let poison = service.queue_at("transfer-poison").expect("a name");
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

#[tokio::test]
async fn more_messages_than_one_operation_takes_are_submitted_in_several() {
    let place = Place::new();
    let url = format!("sqlite:{}", place.path("queue.db").display());
    let service = QueueService::connect(&url).await.expect("connect");
    let transfers = (0..2500).map(|amount| Transfer { amount });
    let submitted = service.submit_all(transfers).await.expect("submit");
    let ids: HashSet<_> = submitted.iter().map(|submitted| &submitted.id).collect();
    assert_eq!((submitted.len(), ids.len()), (2500, 2500));
    let queue = service.queue::<Transfer>().any();
    let properties = queue.properties().await.expect("properties");
    assert_eq!(properties.approximate_count, 2500);
}

//! Checking a file: what is wrong with it is told, and what is right is not.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use queue_core::ErrorKind;
use queue_core::backend::{
    Attachment, Backend, BackendExt as _, ItemSet, Metadata, NewMessage, Op, Swap, TimeToLive,
};
use queue_core::idempotency::{ClaimOutcome, Owner, ResultStore, WorkKey};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::sqlite::{CheckReport, FileCheck, ProblemKind, SqliteBuilder};
use queue_tests::DAY;
use rusqlite::Connection;

use crate::sqlite::damaged_file::{PAGE, count, drain, pages};
use crate::sqlite::inconsistent_file::PLANTED;
use crate::sqlite::place::{LEASE, Place};
use crate::threads;

/// Two parts.
const LARGE: usize = 3 * 512 * 1024;

fn check(path: &Path) -> CheckReport {
    FileCheck::new(path).run().expect("checked")
}

fn kinds(report: &CheckReport) -> Vec<ProblemKind> {
    report.problems.iter().map(|problem| problem.kind).collect()
}

/// Puts something of everything into the file.
async fn fill(place: &Place, backend: &SqliteBackend) {
    for queue in &place.queues {
        let created = backend.create_queue(queue, &Metadata::new()).await;
        created.expect("created");
        let mut attached = NewMessage::new("attached");
        attached.attachment = Some(Attachment::New(Bytes::from(vec![b'x'; LARGE])));
        let expiring = NewMessage {
            time_to_live: TimeToLive::After(DAY),
            ..NewMessage::new("expiring")
        };
        let messages = [
            attached,
            expiring,
            NewMessage::new("delayed").with_delay(7 * DAY),
            NewMessage::new("x".repeat(20_000)),
            NewMessage::new("a pack"),
            NewMessage::new("plain"),
        ];
        for message in messages {
            backend.put(queue, message).await.expect("put");
        }
    }
    let received = backend.receive(&place.queue, 32, LEASE).await;
    for message in received.expect("received") {
        if message.body == "a pack" {
            let delete = Op::DeleteItems {
                queue: place.queue.clone(),
                id: message.id,
                receipt: message.receipt,
                items: ItemSet::from_iter([1]),
                of: 3,
            };
            backend.apply(vec![delete].into()).await.expect("deleted");
        }
    }
    let store = backend.results();
    for key in ["done", "begun"] {
        let key = WorkKey::from(key);
        let begun = store.begin(&key, Owner::random(), LEASE).await;
        let Ok(ClaimOutcome::Fresh(claim)) = begun else {
            panic!("nobody has begun it: {begun:?}");
        };
        if key.key() == "done" {
            let finished = store.finish(&key, claim, "result".into(), DAY).await;
            assert!(finished.is_ok(), "{finished:?}");
        }
    }
    let swap = Swap::new(WorkKey::new("schedule ticks", "hourly"), "tick", DAY);
    let swapped = backend.put_if(&place.queue, None, &swap).await;
    swapped.expect("swapped");
}

/// A file with something of everything, which no program uses.
async fn whole(place: &Place) -> PathBuf {
    let path = place.file();
    let backend = place.open_unsynced(&path).await;
    fill(place, &backend).await;
    backend.close().await;
    path
}

#[test]
fn nothing_is_wrong_with_a_file_that_is_in_use() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open_unsynced(&place.file()).await;
        fill(&place, &backend).await;
        let report = check(&place.file());
        assert!(report.is_sound(), "{report:?}");
        let found = (report.queues, report.messages, report.attachments);
        assert_eq!((found, report.results), ((2, 12, 2), 3));

        // Deleted and cleared queues, whose messages are removed later; a message and its attachment that go.
        backend.clear(&place.queues[1]).await.expect("cleared");
        let dropped = "dropped".parse().expect("a name");
        let created = backend.create_queue(&dropped, &Metadata::new()).await;
        created.expect("created");
        let puts = (0..1000).map(|_| Op::Put {
            queue: dropped.clone(),
            message: NewMessage::new("dropped"),
        });
        backend.apply(puts.collect()).await.expect("put");
        backend.delete_queue(&dropped).await.expect("deleted");
        for _ in 0..20 {
            let report = check(&place.file());
            assert!(report.is_sound(), "{report:?}");
            let put = backend.put(&place.queue, NewMessage::new("more")).await;
            put.expect("nobody waits for the check");
            place.clock.advance(LEASE);
            let received = backend.receive(&place.queue, 1, LEASE).await;
            for message in received.expect("received") {
                let (id, receipt) = (&message.id, &message.receipt);
                let deleted = backend.delete(&place.queue, id, receipt).await;
                deleted.expect("deleted");
            }
        }
        backend.close().await;
        assert!(check(&place.file()).is_sound());
        assert!(
            FileCheck::new(place.file())
                .quick()
                .run()
                .expect("checked")
                .is_sound()
        );
    });
}

#[test]
fn the_file_is_not_changed_and_its_rows_are_counted() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.path("whole.db");
        let backend = place.open_unsynced(&path).await;
        let created = backend.create_queue(&place.queue, &Metadata::new()).await;
        created.expect("created");
        for _ in 0..10 {
            let puts = (0..1000).map(|n| Op::Put {
                queue: place.queue.clone(),
                message: NewMessage::new(format!("order {n}")),
            });
            backend.apply(puts.collect()).await.expect("put");
        }
        backend.close().await;
        let before = fs::read(&path).expect("read");
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let check = FileCheck::new(&path).progress(move |done| {
            tell.lock().expect("no panic").push((done.rows, done.of));
        });
        assert!(check.run().expect("checked").is_sound());
        assert_eq!(fs::read(&path).expect("read"), before);
        let told = told.lock().expect("no panic");
        assert!(told.len() > 3, "{told:?}");
        assert!(told.is_sorted(), "{told:?}");
        // Each message, its place, the queue and its count.
        assert_eq!(told.last(), Some(&(20_002, 20_002)));
        let estimates = told.iter().all(|(rows, of)| rows <= of && *of >= 20_000);
        assert!(estimates, "{told:?}");
    });
}

#[test]
fn each_inconsistency_is_found_and_nothing_else() {
    threads::block_on(async {
        let place = Place::new();
        let path = whole(&place).await;
        assert_eq!(kinds(&check(&path)), []);
        for (n, planted) in PLANTED.iter().enumerate() {
            let altered = place.path(&format!("altered-{n}.db"));
            fs::copy(&path, &altered).expect("copied");
            let connection = Connection::open(&altered).expect("open");
            connection.execute_batch(planted.sql).expect("altered");
            drop(connection);
            let report = check(&altered);
            assert_eq!(
                kinds(&report),
                [planted.kind],
                "{}: {report:?}",
                planted.sql
            );
            let problem = &report.problems[0];
            assert_eq!(report.count(planted.kind), planted.count, "{problem:?}");
            let example = &problem.examples[0];
            assert!(
                example.contains(planted.example),
                "{}: {example}",
                planted.sql
            );
            assert!(problem.examples.len() <= 5, "{problem}");
            assert!(problem.to_string().contains(example), "{problem}");
        }
    });
}

#[test]
fn a_quick_check_reads_no_bodies() {
    threads::block_on(async {
        let place = Place::new();
        let path = whole(&place).await;
        let connection = Connection::open(&path).expect("open");
        let alter = "UPDATE queue_messages SET body = CAST('altered' AS BLOB) WHERE seq = 2; \
            UPDATE queue_counts SET messages = 7 WHERE queue = 1";
        connection.execute_batch(alter).expect("altered");
        drop(connection);
        let quick = FileCheck::new(&path).quick().run().expect("checked");
        assert_eq!(kinds(&quick), [ProblemKind::Count]);
        assert_eq!(
            kinds(&check(&path)),
            [ProblemKind::Body, ProblemKind::Count]
        );
    });
}

#[test]
fn a_damaged_page_is_told_wherever_it_is() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.fill(300, 100, TimeToLive::Never).await;
        let backend = place.open_unsynced(&path).await;
        fill(&place, &backend).await;
        backend.close().await;
        let whole = fs::read(&path).expect("read");
        let last = whole.len() / PAGE;
        assert!(last > 50, "{last}");
        // Of an attachment, most pages are alike.
        let step = |page: usize| if page < 120 { 1 } else { 37 };
        let mut page = 1;
        while page <= last {
            let damaged = place.damaged(&path, page);
            for check in [FileCheck::new(&damaged), FileCheck::new(&damaged).quick()] {
                let report = check.run().expect("a report");
                assert!(!report.is_sound(), "page {page}");
                let told = |kind| report.count(kind) > 0;
                let is_told = told(ProblemKind::Page) || told(ProblemKind::Attachment);
                assert!(is_told, "page {page}: {report:?}");
            }
            fs::remove_file(damaged).expect("removed");
            page += step(page);
        }
        let sound = check(&path);
        assert!(sound.is_sound(), "{sound:?}");
    });
}

#[test]
fn what_is_read_around_a_damaged_page_is_compared() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.fill(1000, 100, TimeToLive::Never).await;
        let leaves = pages(&path, "queue_messages", "leaf");
        let damaged = place.damaged(&path, leaves[leaves.len() / 2]);
        let report = check(&damaged);
        assert_eq!(kinds(&report), [ProblemKind::Page, ProblemKind::Unreadable]);
        let read = report.messages;
        assert!((1900..2000).contains(&read), "{read} of 2000");

        // What is completed around the damage stays where it is, and is in no schedule any more.
        let backend = place.open_unsynced(&damaged).await;
        for queue in &place.queues {
            assert_eq!(drain(&backend, queue).await.len(), 1000);
        }
        backend.close().await;
        assert!(count(&damaged, "queue_discarded") > 0);
        let report = check(&damaged);
        assert_eq!(kinds(&report), [ProblemKind::Page, ProblemKind::Unreadable]);
    });
}

#[test]
fn what_is_no_file_of_queues_is_refused() {
    threads::block_on(async {
        let place = Place::new();
        let refused = |path: &Path| {
            let refused = FileCheck::new(path).run().expect_err("refused");
            let text = refused.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            refused.kind()
        };
        assert_eq!(refused(&place.path("missing.db")), ErrorKind::Storage);
        let empty = place.path("empty.db");
        fs::write(&empty, "").expect("written");
        assert_eq!(refused(&empty), ErrorKind::InvalidInput);
        let foreign = place.path("foreign.db");
        let connection = Connection::open(&foreign).expect("open");
        connection
            .execute_batch("CREATE TABLE mine (id INTEGER)")
            .expect("created");
        assert_eq!(refused(&foreign), ErrorKind::Unsupported);
        let newer = whole(&place).await;
        let connection = Connection::open(&newer).expect("open");
        let mark = "DROP VIEW queue_layout; CREATE VIEW queue_layout (version) AS SELECT 9999";
        connection.execute_batch(mark).expect("marked");
        assert_eq!(refused(&newer), ErrorKind::Unsupported);
        assert_eq!(count(&newer, "queue_messages"), 12, "it is as it was");

        let text = place.path("text.db");
        fs::write(&text, "no database, but a text".repeat(1000)).expect("written");
        let report = check(&text);
        assert_eq!(
            kinds(&report),
            [ProblemKind::Page],
            "it may be a damaged one"
        );
    });
}

/// SQLite cannot check an index with a collation that only the application's connections have.
#[test]
fn the_queues_in_an_applications_database_are_checked() {
    threads::block_on(async {
        let place = Place::new();
        let connection = place.connection();
        let create = "CREATE TABLE mine (name TEXT COLLATE nocase UNIQUE); INSERT INTO mine VALUES ('a'), ('b'); \
            PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'nocase', 'of_its_own')";
        connection.execute_batch(create).expect("created");
        drop(connection);
        let url = format!("sqlite:{}?adopt", place.file().display());
        let builder = SqliteBuilder::from_url(&url, Arc::new(place.clock.clone()));
        let builder = builder.expect("a URL");
        let path = builder.path().to_owned();
        let backend = builder.open().await.expect("adopted");
        fill(&place, &backend).await;
        backend.close().await;
        assert_eq!(kinds(&check(&path)), []);
        let alter = "UPDATE queue_counts SET messages = 7 WHERE queue = 1";
        place.connection().execute_batch(alter).expect("altered");
        assert_eq!(kinds(&check(&path)), [ProblemKind::Count]);
    });
}

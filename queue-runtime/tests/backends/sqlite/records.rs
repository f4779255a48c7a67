//! Listing what is recorded in a SQLite file: beside damage, and beside those who write.

use queue_core::backend::{BackendExt as _, Swap};
use queue_core::idempotency::{
    ClaimOutcome, Forgotten, Owner, RecordState, Recorded, ResultStore, WorkKey,
};
use queue_core::{ErrorKind, QueueName};
use queue_runtime::backend::SqliteBackend;
use queue_tests::DAY;
use rusqlite::TransactionBehavior;

use crate::sqlite::damaged_file::pages;
use crate::sqlite::place::{LEASE, Place};
use crate::threads;

/// Records this value under each key, by a swap.
async fn record(backend: &SqliteBackend, keys: &[WorkKey], value: &[u8]) {
    const NO_QUEUE: QueueName = QueueName::from_static("none");

    for key in keys {
        let swap = Swap::new(key.clone(), value.to_vec(), DAY);
        let recorded = backend.put_if(&NO_QUEUE, None, &swap).await;
        recorded.expect("recorded");
    }
}

fn keys<const N: usize>(keys: [&str; N]) -> [WorkKey; N] {
    keys.map(|key| WorkKey::new("charge", key))
}

async fn list(store: &dyn ResultStore) -> Vec<Recorded> {
    let (mut records, mut from) = (Vec::new(), None);
    loop {
        let page = store.list(None, from.as_ref(), 7).await.expect("a page");
        records.extend(page.records);
        from = page.next;
        if from.is_none() {
            return records;
        }
    }
}

fn problem(recorded: &Recorded) -> Option<&str> {
    match &recorded.state {
        RecordState::Damaged { problem } => Some(problem),
        _ => None,
    }
}

#[test]
fn damaged_records_are_told_and_do_not_hide_the_others() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let all = keys(["a", "altered", "b", "no-text", "z"]);
        record(&backend, &all, b"value").await;
        backend.close().await;
        let altered = place.connection().execute_batch(
            "UPDATE queue_results SET result = CAST('other' AS BLOB) WHERE key = CAST('altered' AS BLOB); \
             UPDATE queue_results SET key = x'6eff' WHERE key = CAST('no-text' AS BLOB)",
        );
        altered.expect("altered");

        let backend = place.orders().await;
        let store = backend.results();
        let records = list(&store).await;
        let damaged: Vec<_> = records.iter().map(problem).collect();
        let altered = Some("its value does not match its checksum");
        let no_text = Some("its scope or key is not text");
        assert_eq!(damaged, [None, altered, None, no_text, None]);
        let alone = store.find(&all[1]).await.expect("looked up");
        let alone = alone.expect("it is there");
        assert_eq!((problem(&alone), &alone.value), (altered, &None));
        let begun = store.begin(&all[1], Owner::random(), LEASE).await;
        assert_eq!(begun.expect_err("damaged").kind(), ErrorKind::Corrupt);

        let forgotten = store.forget(&all[1]).await.expect("forgotten");
        assert_eq!(forgotten, Forgotten::Removed);
        let begun = store.begin(&all[1], Owner::random(), LEASE).await;
        let begun = begun.expect("nothing is recorded any more");
        assert!(matches!(begun, ClaimOutcome::Fresh(_)), "{begun:?}");
    });
}

#[test]
fn a_damaged_page_of_records_does_not_hide_the_others() {
    const RECORDS: usize = 300;

    threads::block_on(async {
        let place = Place::new();
        let path = place.path("whole.db");
        let backend = place.open_unsynced(&path).await;
        let all: Vec<_> = (0..RECORDS)
            .map(|n| WorkKey::new("charge", format!("{n:04}")))
            .collect();
        record(&backend, &all, &[b'x'; 100]).await;
        backend.close().await;
        let leaves = pages(&path, "queue_results", "leaf");
        assert!(leaves.len() > 4, "{leaves:?}");
        for leaf in [leaves[1], leaves[leaves.len() / 2]] {
            let backend = place.open_unsynced(&place.damaged(&path, leaf)).await;
            let store = backend.results();
            let records = list(&store).await;
            let listed: Vec<_> = records.iter().map(|record| record.key.clone()).collect();
            assert_eq!(listed, all, "page {leaf}");
            let damaged: Vec<_> = records.iter().filter_map(problem).collect();
            assert!((5..=60).contains(&damaged.len()), "{}", damaged.len());
            for problem in damaged {
                assert_eq!(problem, "the page that holds it is damaged");
            }
            let damaged = records.iter().find(|record| problem(record).is_some());
            let key = &damaged.expect("some are").key;
            let alone = store.find(key).await.expect("looked up");
            assert!(problem(&alone.expect("it is there")).is_some());
            backend.close().await;
        }
        let index = pages(&path, "sqlite_autoindex_queue_results_1", "leaf");
        let backend = place.open_unsynced(&place.damaged(&path, index[1])).await;
        let refused = backend.results().list(None, None, 1000).await;
        let refused = refused.expect_err("the order of the keys is not known");
        assert_eq!(refused.kind(), ErrorKind::Storage);
        backend.close().await;
    });
}

#[test]
fn a_listing_neither_waits_for_the_writer_nor_reads_more_than_a_part_of_the_values() {
    const MIB: usize = 1024 * 1024;

    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let store = backend.results();
        let large = keys(["a", "b", "c", "d", "e"]);
        record(&backend, &large, &vec![b'x'; MIB / 2]).await;
        let mut other = place.connection();
        let lock = other
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .expect("locked");
        let busy = store.begin(&"one".into(), Owner::random(), LEASE).await;
        assert_eq!(busy.expect_err("locked").kind(), ErrorKind::Timeout);
        // Two of them are 1 MiB.
        let page = store.list(None, None, 1000).await.expect("read");
        assert_eq!(page.records.len(), 2);
        assert!(page.next.is_some());
        assert_eq!(list(&store).await.len(), large.len());
        assert!(store.find(&large[0]).await.expect("read").is_some());
        drop(lock);
        backend.close().await;
        let closed = store.list(None, None, 1000).await;
        assert_eq!(closed.expect_err("closed").kind(), ErrorKind::Closed);
    });
}

/// It would look as if the transaction had not been committed.
#[test]
fn the_record_of_a_commit_is_not_forgotten() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let commit = WorkKey::new("transaction", "00");
        record(&backend, std::slice::from_ref(&commit), b"").await;
        let store = backend.results();
        let refused = store.forget(&commit).await.expect_err("it must stay");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert_eq!(list(&store).await.len(), 1);
        backend.close().await;
    });
}

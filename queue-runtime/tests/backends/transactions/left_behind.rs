//! What the function of one message leaves on its connection, and the messages after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queue_runtime::sqlite::rusqlite::types::Value;
use queue_runtime::sqlite::rusqlite::{Connection, Transaction};
use queue_runtime::{ListenerEventKind, Received, in_transaction};

use crate::transactions::bank::{Bank, Deposit, GUARD};
use crate::transactions::deposits::{deposit, drain, next};

/// Statements of a function. Those after `ROLLBACK` are refused within a transaction.
const LEAVES: &[&str] = &[
    "PRAGMA query_only = 1",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA defer_foreign_keys = 1",
    "PRAGMA ignore_check_constraints = 1",
    "PRAGMA recursive_triggers = 1",
    "PRAGMA busy_timeout = 0",
    "PRAGMA max_page_count = 1",
    "PRAGMA case_sensitive_like = 1",
    "PRAGMA cache_size = 1",
    "PRAGMA writable_schema = 1",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA trusted_schema = 0",
    "PRAGMA read_uncommitted = 1",
    "PRAGMA secure_delete = 1",
    "ROLLBACK; PRAGMA query_only = 1",
    "ROLLBACK; PRAGMA locking_mode = EXCLUSIVE; SELECT count(*) FROM account",
    "ROLLBACK; PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; ROLLBACK",
    "ROLLBACK; PRAGMA foreign_keys = 0",
    "ROLLBACK; PRAGMA synchronous = OFF",
    "ROLLBACK; PRAGMA temp_store = MEMORY",
    "ROLLBACK; PRAGMA journal_mode = DELETE",
    "ROLLBACK; ATTACH ':memory:' AS other; CREATE TABLE other.account (balance)",
    "ROLLBACK; ATTACH ':memory:' AS other; BEGIN; CREATE TABLE other.mine (x)",
    "ROLLBACK; CREATE TEMP TABLE account (balance)",
    "ROLLBACK; CREATE TEMP TABLE queue_results (id)",
    "CREATE TEMP TABLE account AS SELECT 5 AS balance",
    "CREATE TEMP TRIGGER no BEFORE UPDATE ON account BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    "ROLLBACK; CREATE TEMP TRIGGER no BEFORE UPDATE ON account BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    "SAVEPOINT open",
    "ROLLBACK; BEGIN EXCLUSIVE",
];

/// What of its connection a function sees.
fn seen(connection: &Connection) -> Vec<String> {
    const SETTINGS: &[&str] = &[
        "query_only",
        "locking_mode",
        "defer_foreign_keys",
        "ignore_check_constraints",
        "recursive_triggers",
        "busy_timeout",
        "max_page_count",
        "cache_size",
        "writable_schema",
        "wal_autocheckpoint",
        "trusted_schema",
        "read_uncommitted",
        "secure_delete",
        "foreign_keys",
        "synchronous",
        "temp_store",
        "journal_mode",
    ];
    let pragmas = SETTINGS.iter().map(|name| {
        let value = connection.pragma_query_value(None, name, |row| row.get::<_, Value>(0));
        format!("{name} = {:?}", value.expect(name))
    });
    let counts = [
        "SELECT count(*) FROM pragma_database_list WHERE name != 'temp'",
        "SELECT count(*) FROM temp.sqlite_schema",
        "SELECT 'a' LIKE 'A'",
    ];
    let counts = counts.iter().map(|count| {
        let value: i64 = connection
            .query_row(count, [], |row| row.get(0))
            .expect(count);
        format!("{count}: {value}")
    });
    pragmas.chain(counts).collect()
}

#[tokio::test]
async fn nothing_that_a_function_leaves_on_its_connection_reaches_another_message() {
    let bank = Bank::in_real_time().await;
    let fresh = queue_runtime::sqlite::connect(bank.service.backend()).expect("opened");
    let mut fresh = seen(&fresh);
    fresh.sort_unstable();
    for (leaves, leaves_number) in LEAVES.iter().zip(0..) {
        bank.submit(2 * leaves_number).await;
        bank.submit(2 * leaves_number + 1).await;
        let expected = fresh.clone();
        let handler = in_transaction(move |tx: &Transaction<'_>, message: &Received<Deposit>| {
            if message.number % 2 == 1 || message.attempt() > 1 {
                let mut found = seen(tx);
                found.sort_unstable();
                assert_eq!(found, expected, "{leaves}");
            }
            let done = deposit(tx, message);
            if message.number.is_multiple_of(2) && message.attempt() == 1 {
                // What is refused leaves nothing.
                let _ = tx.execute_batch(leaves);
            }
            done
        });
        let listener = bank.service.listener(handler).max_in_flight(1);
        let mut events = listener.events();
        let report = drain(listener.poison_threshold(2)).await;
        assert_eq!(report.info.completed, 2, "{leaves}");
        let is_innocent = |kind: &ListenerEventKind| {
            matches!(kind, ListenerEventKind::Completed { attempt: 1, .. })
        };
        next(&mut events, is_innocent).await;
        // Nor does it keep others from the file.
        bank.submit(1_000_000).await;
        let other = bank.service.accept::<Deposit>().await.expect("no error");
        other
            .expect("just submitted")
            .complete()
            .await
            .expect("completed");
    }
    let moved = 2 * LEAVES.len();
    bank.assert(10 * moved as i64, 0, moved).await;
}

/// A file that refuses to be written says nothing about the message.
#[tokio::test]
async fn a_connection_that_cannot_write_counts_no_attempt() {
    let bank = Bank::in_real_time().await;
    let refuses = Arc::new(AtomicBool::new(true));
    let refused = Arc::clone(&refuses);
    let handler = in_transaction(deposit).on_connect(move |connection| {
        connection.pragma_update(None, "query_only", refused.load(Ordering::Relaxed))
    });
    let listener = bank.service.listener(handler).poison_threshold(1);
    let mut events = listener.events();
    let listener = listener.start().expect("it starts");
    bank.submit(1).await;
    let is_postponed = |kind: &_| matches!(kind, ListenerEventKind::Postponed { .. });
    next(&mut events, is_postponed).await;
    refuses.store(false, Ordering::Relaxed);
    let is_completed = |kind: &_| matches!(kind, ListenerEventKind::Completed { attempt: 1, .. });
    next(&mut events, is_completed).await;
    bank.assert(10, 0, 1).await;
    listener.shutdown(GUARD).await;
}

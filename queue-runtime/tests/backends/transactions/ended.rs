//! Functions whose transaction ends before they return, and which go on.

use queue_runtime::sqlite::rusqlite::{Connection, Transaction};
use queue_runtime::{
    Disposition, ListenerEventKind, Message, QueueService, Received, in_transaction, prepare,
};
use serde::{Deserialize, Serialize};

use crate::transactions::bank::{Bank, Deposit, begin, notice};
use crate::transactions::deposits::{deposit, drain, next};

/// What the functions run into.
const TABLES: &str = "
    CREATE TABLE entries (number INTEGER PRIMARY KEY);
    INSERT INTO entries VALUES (1);
    CREATE TABLE known (number INTEGER PRIMARY KEY);
    CREATE TABLE owed (number INTEGER REFERENCES known DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE guarded (number INTEGER);
    CREATE TABLE large (data BLOB);
    CREATE TRIGGER guard BEFORE INSERT ON guarded BEGIN SELECT RAISE(ROLLBACK, 'no'); END;";

/// Statements that end a transaction, one by one: an error of one keeps nobody from the next.
const ENDS: &[&[&str]] = &[
    &["INSERT INTO guarded VALUES (1)"],
    &["INSERT OR ROLLBACK INTO entries VALUES (1)"],
    &["ROLLBACK"],
    // Both are refused: rows are committed with their message, or not at all.
    &["COMMIT"],
    &["END"],
    // Within a savepoint of the function's.
    &["SAVEPOINT inner", "INSERT INTO guarded VALUES (1)"],
    &["SAVEPOINT inner", "ROLLBACK"],
    // A commit that a foreign key refuses leaves the transaction open.
    &["INSERT INTO owed VALUES (7)", "COMMIT", "ROLLBACK"],
    // No page is left.
    &[
        "PRAGMA max_page_count = 1",
        "INSERT INTO entries SELECT value FROM json_each('[2, 3]')",
        FILL,
    ],
];

const FILL: &str = "INSERT INTO large VALUES (zeroblob(10000000))";

/// What a function goes on with.
const GOES_ON: &[&[&str]] = &[
    &[],
    &["BEGIN"],
    &["BEGIN IMMEDIATE", "INSERT INTO entries VALUES (10)"],
    &["BEGIN EXCLUSIVE"],
    &["SAVEPOINT mine", "INSERT INTO entries VALUES (10)"],
    &["BEGIN", "SAVEPOINT mine", "RELEASE mine"],
    &[
        "BEGIN",
        "INSERT INTO entries VALUES (10)",
        "COMMIT",
        "BEGIN",
    ],
];

fn run(connection: &Connection, statements: &[&str]) {
    for statement in statements {
        // The function notices no error.
        let _ = connection.execute_batch(statement);
    }
}

async fn bank_with_tables() -> Bank {
    let bank = Bank::in_real_time().await;
    bank.connection.execute_batch(TABLES).expect("created");
    bank
}

/// Asserts that only the first attempt, whose transaction was ended, has failed, and has left nothing.
async fn assert_handled_once(
    bank: &Bank,
    listener: queue_runtime::ListenerBuilder<Deposit>,
    case: &str,
) {
    let report = drain(listener).await;
    let found = (report.info.completed, report.info.retried);
    assert_eq!(found, (1, 1), "{case}");
    let entries = "SELECT group_concat(number) FROM entries";
    let found = bank.connection.query_row(entries, [], |row| row.get(0));
    assert_eq!(found, Ok("1".to_owned()), "{case}");
    let clear = "DELETE FROM account; INSERT INTO account VALUES (0)";
    bank.assert(10, 0, 1).await;
    bank.connection.execute_batch(clear).expect("as before");
    let notices = bank.service.any_queue("notices").expect("a name");
    notices.clear().await.expect("cleared");
}

#[tokio::test]
async fn what_is_not_in_the_transaction_that_was_begun_is_not_completed() {
    let bank = bank_with_tables().await;
    for ends in ENDS {
        for goes_on in GOES_ON {
            bank.submit(1).await;
            let ended = move |tx: &Transaction<'_>, message: &Received<Deposit>| {
                let done = deposit(tx, message);
                if message.attempt() == 1 {
                    run(tx, ends);
                    run(tx, goes_on);
                }
                done
            };
            let foreign_keys =
                |connection: &Connection| connection.pragma_update(None, "foreign_keys", true);
            let listener = bank
                .service
                .listener(in_transaction(ended).on_connect(foreign_keys));
            assert_handled_once(&bank, listener, &format!("{ends:?}, {goes_on:?}")).await;
        }
    }
}

/// A function that undoes a part of its work completes its message with the rest.
#[tokio::test]
async fn a_savepoint_that_is_rolled_back_does_not_end_the_transaction() {
    let bank = bank_with_tables().await;
    bank.submit(1).await;
    let handler = in_transaction(|tx, message: &Received<Deposit>| {
        let undone = [
            "SAVEPOINT outer",
            "INSERT INTO entries VALUES (2)",
            "ROLLBACK TO outer",
        ];
        run(tx, &undone);
        deposit(tx, message)
    });
    let report = drain(bank.service.listener(handler)).await;
    assert_eq!((report.info.completed, report.info.retried), (1, 0));
    bank.assert(10, 0, 1).await;
}

/// The same rule holds for prepared transactions, in shards, and for a message that the function submits after its transaction.
#[tokio::test]
async fn a_prepared_transaction_that_has_ended_completes_nothing_in_shards_either() {
    let bank = Bank::in_shards(3).await;
    bank.submit(1).await;
    let service = bank.service.clone();
    let handler = prepare(async |_| Ok::<_, &str>(()));
    let handler = handler.in_transaction(move |tx, message: &Received<Deposit>, ()| {
        let done = deposit(tx, message);
        if message.attempt() == 1 {
            run(tx, &["ROLLBACK", "BEGIN IMMEDIATE"]);
            let stray = service.submit(notice("stray")).within(tx);
            stray.expect("there is a transaction");
        }
        done
    });
    let listener = bank.service.listener(handler);
    let mut events = listener.events();
    let report = drain(listener).await;
    assert_eq!((report.info.completed, report.info.retried), (1, 1));
    let is_retried = |kind: &_| matches!(kind, ListenerEventKind::Retried { .. });
    let ListenerEventKind::Retried { error, .. } = next(&mut events, is_retried).await else {
        unreachable!("it is waited for");
    };
    let text = error.to_string();
    assert!(
        text.contains("ended before the function returned"),
        "{text}"
    );
    bank.assert(10, 0, 1).await;
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Entered {
    #[message(key)]
    number: u32,
}

/// On the application's own connection, a transaction that has ended completes and submits nothing.
#[tokio::test]
async fn a_transaction_that_has_ended_completes_nothing_on_the_applications_own_connection() {
    let mut bank = bank_with_tables().await;
    bank.service
        .submit(Entered { number: 1 })
        .await
        .expect("submitted");
    let service: QueueService = bank.service.clone();
    for ends in ENDS.iter().filter(|ends| !ends.contains(&"COMMIT")) {
        let entered = service.accept::<Entered>().await.expect("no error");
        let entered = entered.expect("it is there again");
        let tx = begin(&mut bank.connection);
        run(&tx, ends);
        if !tx.is_autocommit() {
            panic!("{ends:?} has not ended the transaction");
        }
        service
            .submit_within(&tx, notice("stray"))
            .expect_err("it has ended");
        let error = entered.complete_within(&tx, []).expect_err("it has ended");
        drop(tx);
        run(&bank.connection, &["PRAGMA max_page_count = 1000000"]);
        let back = error
            .delivery
            .settle(Disposition::postpone(std::time::Duration::ZERO));
        back.await.expect("put back");
    }
    bank.assert(0, 0, 0).await;
}

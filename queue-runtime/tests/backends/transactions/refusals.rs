//! Transactions in which no message can be submitted or completed.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::clock::SystemClock;
use queue_runtime::idempotency::MemoryResults;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::sqlite::rusqlite::{Connection, Transaction};
use queue_runtime::wire::DEFAULT_MAX_PAYLOAD;
use queue_runtime::{ErrorKind, FollowUp, QueueService, SubmitError};

use crate::transactions::bank::{Bank, Deposit, Notice, begin, notice};

/// Moves the log into the database, so that a connection with another log can read that.
#[cfg(unix)]
fn empty_log(bank: &Bank) {
    let emptied = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy: i64 = bank
        .connection
        .query_row(emptied, [], |row| row.get(0))
        .expect("emptied");
    assert_eq!(busy, 0);
}

/// Submits in the transaction, and returns the kind and the text of the error.
fn refused(service: &QueueService, tx: &Transaction<'_>) -> (ErrorKind, String) {
    let refused = service.submit_within(tx, notice("lost"));
    let error: SubmitError<Notice> = refused.expect_err("it must be refused");
    assert_eq!(error.message, notice("lost"), "it is given back");
    let text = error.to_string();
    let SubmitErrorKind::Storage(error) = error.kind else {
        panic!("{text}");
    };
    (error.kind(), text)
}

#[tokio::test]
async fn a_message_made_by_hand_is_in_no_transaction_and_says_so() {
    let mut bank = Bank::open().await;
    let tx = begin(&mut bank.connection);
    let deposit = Deposit {
        number: 1,
        amount: 1,
    };
    let made = queue_runtime::testing::received(deposit).build();
    let problem = made
        .complete_within(&tx, [])
        .expect_err("it is stored nowhere");
    let SettleErrorKind::NotDone(error) = &problem else {
        panic!("{problem}");
    };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("made by hand"), "{error}");
}

#[tokio::test]
async fn a_storage_without_transactions_is_a_typed_error() {
    let mut bank = Bank::open().await;
    let memory = QueueService::connect("memory:").await.expect("connects");
    assert_eq!(
        queue_runtime::sqlite::connect(memory.backend())
            .expect_err("there is no file")
            .kind(),
        ErrorKind::Unsupported
    );
    let tx = begin(&mut bank.connection);
    let (kind, text) = refused(&memory, &tx);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("`sqlite:PATH`"), "{text}");

    let deposit = Deposit {
        number: 1,
        amount: 1,
    };
    memory.submit(deposit).await.expect("submitted");
    let delivery = memory.accept::<Deposit>().await.expect("no error");
    let delivery = delivery.expect("just submitted");
    let error = delivery
        .complete_within(&tx, [])
        .expect_err("no transactions");
    let SettleErrorKind::NotDone(problem) = &error.kind else {
        panic!("{error}");
    };
    assert_eq!(problem.kind(), ErrorKind::Unsupported);
    error.delivery.complete().await.expect("it is still leased");
}

#[tokio::test]
async fn another_file_is_refused_and_another_path_is_not() {
    let mut bank = Bank::open().await;
    let copy = bank.folder.path().join("copy.db");
    std::fs::copy(bank.path(), &copy).expect("copied");
    for path in [copy, bank.folder.path().join("new.db")] {
        let mut other = Connection::open(&path).expect("opened");
        let tx = begin(&mut other);
        let (kind, text) = refused(&bank.service, &tx);
        assert_eq!(kind, ErrorKind::InvalidInput);
        let own = bank.path().canonicalize().expect("a path");
        for path in [path, own] {
            assert!(text.contains(&*path.to_string_lossy()), "{text}");
        }
    }
    let mut memory = Connection::open_in_memory().expect("opened");
    let (kind, _) = refused(&bank.service, &begin(&mut memory));
    assert_eq!(kind, ErrorKind::InvalidInput);

    // The main database decides where a commit goes.
    let attach = format!("ATTACH '{}' AS queues", bank.path().display());
    memory.execute_batch(&attach).expect("attached");
    let (kind, _) = refused(&bank.service, &begin(&mut memory));
    assert_eq!(kind, ErrorKind::InvalidInput);

    #[cfg(unix)]
    {
        let link = bank.folder.path().join("link.db");
        std::os::unix::fs::symlink(bank.path(), &link).expect("linked");
        let mut linked = Connection::open(&link).expect("opened");
        let tx = begin(&mut linked);
        bank.service
            .submit_within(&tx, notice("linked"))
            .expect("it is the same file");
        tx.commit().expect("committed");
        bank.assert(0, 0, 1).await;
    }
    let tx = begin(&mut bank.connection);
    bank.service
        .submit_within(&tx, notice("own"))
        .expect("it is the file");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_with_a_second_name_is_refused_by_each_of_them() {
    let mut bank = Bank::open().await;
    empty_log(&bank);
    let link = bank.folder.path().join("link.db");
    std::fs::hard_link(bank.path(), &link).expect("linked");
    let mut linked = Connection::open(&link).expect("opened");
    for connection in [&mut linked, &mut bank.connection] {
        let tx = begin(connection);
        let (kind, text) = refused(&bank.service, &tx);
        assert_eq!(kind, ErrorKind::Storage);
        assert!(text.contains("2 hard links"), "{text}");
    }
    let error =
        queue_runtime::sqlite::connect(bank.service.backend()).expect_err("it has two names");
    assert!(error.to_string().contains("2 hard links"), "{error}");
    drop(linked);
    std::fs::remove_file(link).expect("removed");
    bank.assert(0, 0, 0).await;
    let tx = begin(&mut bank.connection);
    let kept = bank.service.submit_within(&tx, notice("kept"));
    kept.expect("it has one name again");
}

#[cfg(unix)]
#[tokio::test]
async fn a_connection_with_another_log_is_refused() {
    let bank = Bank::open().await;
    empty_log(&bank);
    let moved = bank.folder.path().join("moved.db");
    std::fs::rename(bank.path(), &moved).expect("moved");
    let mut connection = Connection::open(&moved).expect("opened");
    let (kind, text) = refused(&bank.service, &begin(&mut connection));
    assert_eq!(kind, ErrorKind::InvalidInput);
    assert!(text.contains("another log"), "{text}");
    drop(connection);
    std::fs::rename(&moved, bank.path()).expect("moved back");
    bank.assert(0, 0, 0).await;
}

#[tokio::test]
async fn a_transaction_that_has_ended_is_refused() {
    let mut bank = Bank::open().await;
    let tx = begin(&mut bank.connection);
    tx.execute_batch("COMMIT").expect("ended");
    let (kind, text) = refused(&bank.service, &tx);
    assert_eq!(kind, ErrorKind::InvalidInput);
    assert!(text.contains("no open transaction"), "{text}");
    drop(tx);
    bank.assert(0, 0, 0).await;
}

#[tokio::test]
async fn a_connection_whose_commits_may_be_lost_is_refused() {
    let mut bank = Bank::open().await;
    let url = format!("sqlite:{}?synchronous=normal", bank.path().display());
    let normal = QueueService::connect(&url).await.expect("connects");
    for (level, full, relaxed) in [(0, false, false), (1, false, true), (2, true, true)] {
        let set = bank.connection.pragma_update(None, "synchronous", level);
        set.expect("set");
        for (service, accepted) in [(&bank.service, full), (&normal, relaxed)] {
            let tx = begin(&mut bank.connection);
            if accepted {
                service
                    .submit_within(&tx, notice("kept"))
                    .expect("safe enough");
            } else {
                let (kind, text) = refused(service, &tx);
                assert_eq!(kind, ErrorKind::InvalidInput);
                let found = format!("PRAGMA synchronous = {level}");
                assert!(text.contains(&found), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_temporary_table_that_hides_one_of_the_queues_is_refused() {
    let mut bank = Bank::open().await;
    let hide = "CREATE TEMP TABLE messages (anything); CREATE TEMP TABLE Queue_Messages (anything)";
    bank.connection.execute_batch(hide).expect("created");
    let tx = begin(&mut bank.connection);
    let (kind, text) = refused(&bank.service, &tx);
    assert_eq!(kind, ErrorKind::InvalidInput);
    assert!(text.contains("`Queue_Messages`"), "{text}");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let mut bank = Bank::open().await;
    let newer = "DROP VIEW queue_layout; CREATE VIEW queue_layout (version) AS SELECT 99";
    bank.connection.execute_batch(newer).expect("set");
    let (kind, text) = refused(&bank.service, &begin(&mut bank.connection));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("version 99"), "{text}");
}

#[tokio::test]
async fn a_transaction_that_does_not_get_the_lock_can_be_repeated() {
    let mut bank = Bank::open().await;
    let mut other = queue_runtime::sqlite::connect(bank.service.backend()).expect("a connection");
    let writing = begin(&mut other);
    let busy = bank.connection.busy_timeout(Duration::ZERO);
    busy.expect("set");
    let tx = bank
        .connection
        .transaction()
        .expect("a deferred one begins");
    let (kind, _) = refused(&bank.service, &tx);
    assert_eq!(kind, ErrorKind::Timeout);
    drop(writing);
    bank.service
        .submit_within(&tx, notice("late"))
        .expect("nobody writes now");
    tx.commit().expect("committed");
    bank.assert(0, 0, 1).await;
}

#[tokio::test]
async fn a_claim_in_another_store_refuses_all_of_the_completion() {
    let mut bank = Bank::open().await;
    bank.submit(1).await;
    let store = Arc::new(MemoryResults::new(Arc::new(SystemClock::new())));
    let delivery = bank.service.accept::<Deposit>().idempotent(store).await;
    let delivery = delivery.expect("no error").expect("just submitted");
    let tx = begin(&mut bank.connection);
    let follow_up = FollowUp::new(&notice("10 more"));
    let error = delivery
        .complete_within(&tx, [follow_up])
        .expect_err("another store");
    let SettleErrorKind::LeaseLost(problem) = &error.kind else {
        panic!("{error}");
    };
    let text = problem.to_string();
    assert!(text.contains("result store is another one"), "{text}");
    tx.commit().expect("committed");
    bank.assert(0, 1, 0).await;
}

#[tokio::test]
async fn a_follow_up_that_can_never_be_stored_refuses_all_of_the_completion() {
    let mut bank = Bank::open().await;
    let delivery = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    let (small, large) = (notice("small"), notice(&"x".repeat(DEFAULT_MAX_PAYLOAD)));
    let follow_ups = [FollowUp::new(&small), FollowUp::new(&large)];
    let error = delivery
        .complete_within(&tx, follow_ups)
        .expect_err("too large");
    let SettleErrorKind::NotDone(problem) = &error.kind else {
        panic!("{error}");
    };
    assert_eq!(problem.kind(), ErrorKind::InvalidInput);
    tx.commit().expect("committed");
    bank.assert(0, 1, 0).await;
    error.delivery.complete().await.expect("it is still leased");
}

#[tokio::test]
async fn it_is_said_whether_the_message_has_expired_or_its_queue_is_gone() {
    let mut bank = Bank::open().await;
    let deposit = Deposit {
        number: 1,
        amount: 1,
    };
    let submit = bank.service.submit(deposit);
    let brief = submit.time_to_live(Duration::from_secs(10)).await;
    brief.expect("submitted");
    let accepted = bank.service.accept::<Deposit>().await.expect("no error");
    let expiring = accepted.expect("just submitted");
    bank.clock.advance(Duration::from_secs(13));
    let tx = begin(&mut bank.connection);
    let error = expiring
        .complete_within(&tx, [])
        .expect_err("it has expired");
    assert!(matches!(error.kind, SettleErrorKind::Expired(_)), "{error}");
    drop(tx);

    let deposit = bank.accepted().await;
    let queue = bank.service.any_queue("deposits").expect("a name");
    queue.delete().await.expect("deleted");
    let tx = begin(&mut bank.connection);
    let error = deposit.complete_within(&tx, []).expect_err("it is gone");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{error}"
    );
}

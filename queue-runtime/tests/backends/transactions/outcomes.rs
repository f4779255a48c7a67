//! What becomes of a message that was completed in a transaction.

use std::time::Duration;

use queue_runtime::clock::Clock as _;
use queue_runtime::error::Operation;
use queue_runtime::receive::{SettleErrorKind, Settled};
use queue_runtime::testing::Fault;
use queue_runtime::{ErrorKind, FollowUp};

use crate::transactions::bank::{Bank, Deposit, GUARD, Notice, add, begin, notice};

/// Asserts that the transaction was not committed.
fn assert_not_committed(problem: &SettleErrorKind) {
    let SettleErrorKind::NotDone(error) = problem else {
        panic!("{problem:?}");
    };
    assert_eq!(error.kind(), ErrorKind::NotCommitted);
}

#[tokio::test]
async fn rows_acknowledgement_and_follow_ups_are_committed_together() {
    let mut bank = Bank::open().await;
    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    add(&tx, deposit.amount);
    let follow_up = FollowUp::new(&notice("10 more"));
    let completing = deposit.complete_within(&tx, [follow_up]).expect("written");
    tx.commit().expect("committed");
    completing.confirm().await.expect("it was committed");
    bank.assert(10, 0, 1).await;
    let found = bank.service.accept::<Notice>().await.expect("no error");
    let found = found.expect("it was committed");
    assert_eq!(*found.message(), notice("10 more"));
}

#[tokio::test]
async fn what_is_rolled_back_leaves_the_message_leased() {
    let mut bank = Bank::open().await;
    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    add(&tx, deposit.amount);
    bank.service
        .submit_within(&tx, notice("alone"))
        .expect("written");
    let follow_up = FollowUp::new(&notice("10 more"));
    let completing = deposit.complete_within(&tx, [follow_up]).expect("written");
    tx.rollback().expect("rolled back");
    let error = completing
        .confirm()
        .await
        .expect_err("it was not committed");
    assert_not_committed(&error.kind);
    bank.assert(0, 1, 0).await;
    let other = bank.service.accept::<Deposit>().await.expect("no error");
    assert!(other.is_none(), "it is still leased");

    let settled = error.delivery.retry_after(Duration::ZERO, "later").await;
    assert!(
        matches!(settled, Ok(Settled::Retried { .. })),
        "{settled:?}"
    );
    let again = bank.service.accept::<Deposit>().await.expect("no error");
    assert_eq!(again.expect("it was put back").attempt(), 2);
}

#[tokio::test]
async fn a_second_transaction_can_complete_what_the_first_did_not() {
    let mut bank = Bank::open().await;
    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    let follow_up = || FollowUp::new(&notice("10 more"));
    let completing = deposit
        .complete_within(&tx, [follow_up()])
        .expect("written");
    drop(tx);
    let error = completing
        .confirm()
        .await
        .expect_err("it was not committed");
    let tx = begin(&mut bank.connection);
    let completing = error.delivery.complete_within(&tx, [follow_up()]);
    let completing = completing.expect("it is still leased");
    tx.commit().expect("committed");
    completing.confirm().await.expect("it was committed");
    bank.assert(0, 0, 1).await;
}

#[tokio::test]
async fn what_a_savepoint_takes_back_was_not_committed() {
    let mut bank = Bank::open().await;
    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    add(&tx, 1);
    tx.execute_batch("SAVEPOINT application")
        .expect("a savepoint");
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.execute_batch("ROLLBACK TO application")
        .expect("rolled back");
    tx.commit().expect("committed");
    let error = completing.confirm().await.expect_err("it was taken back");
    assert_not_committed(&error.kind);
    bank.assert(1, 1, 0).await;
}

#[tokio::test]
async fn a_commit_that_the_application_s_own_rows_refuse_completes_nothing() {
    let mut bank = Bank::open().await;
    let deferred = "PRAGMA foreign_keys = ON;
        CREATE TABLE parents (id INTEGER PRIMARY KEY);
        CREATE TABLE children (parent REFERENCES parents DEFERRABLE INITIALLY DEFERRED)";
    bank.connection.execute_batch(deferred).expect("created");
    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    tx.execute("INSERT INTO children VALUES (7)", [])
        .expect("deferred");
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.commit().expect_err("there is no such parent");
    let error = completing
        .confirm()
        .await
        .expect_err("it was not committed");
    assert_not_committed(&error.kind);
    bank.assert(0, 1, 0).await;
}

#[tokio::test]
async fn a_stale_lease_completes_nothing_and_the_transaction_can_go_on() {
    let mut bank = Bank::open().await;
    let stale = bank.accepted().await;
    let other = bank.other_service().await;
    bank.faults
        .fail_every(Operation::Update, Fault::Refused(ErrorKind::Denied));
    bank.clock.advance(Duration::from_secs(31));
    let taken = other.accept::<Deposit>().await.expect("no error");
    let taken = taken.expect("its lease has ended");

    let tx = begin(&mut bank.connection);
    add(&tx, 1);
    let follow_up = FollowUp::new(&notice("10 more"));
    let error = stale
        .complete_within(&tx, [follow_up])
        .expect_err("another has it");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{error}"
    );
    tx.commit().expect("the transaction is intact");
    bank.assert(1, 1, 0).await;
    taken.complete().await.expect("it is unharmed");
}

#[tokio::test]
async fn a_renewal_whose_answer_was_lost_does_not_cost_the_lease() {
    let mut bank = Bank::open().await;
    let deposit = bank.accepted().await;
    bank.faults
        .fail_next(1, Operation::Update, Fault::AnswerLost);
    bank.clock.advance(Duration::from_secs(16));
    bank.faults.until_injected(1, Operation::Update).await;

    let tx = begin(&mut bank.connection);
    add(&tx, deposit.amount);
    let completing = deposit
        .complete_within(&tx, [])
        .expect("nobody else has received it");
    tx.commit().expect("committed");
    completing.confirm().await.expect("it was committed");
    bank.assert(10, 0, 0).await;
}

#[tokio::test]
async fn a_transaction_that_is_open_when_asked_about_is_waited_for() {
    let mut bank = Bank::with_busy_timeout(Duration::from_millis(20)).await;
    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    let confirmed = tokio::spawn(completing.confirm());
    let clock = bank.clock.clone();
    let pause_ends = || {
        let wake = clock
            .next_wake()
            .map(|at| at.saturating_sub(clock.monotonic()));
        wake.is_some_and(|left| left < Duration::from_secs(5))
    };
    // The storage has given up waiting, and is asked again after a pause.
    while !pause_ends() {
        assert!(!confirmed.is_finished(), "nobody knows the outcome");
        tokio::task::yield_now().await;
    }
    tx.commit().expect("committed");
    while !confirmed.is_finished() {
        clock.advance(Duration::from_millis(50));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let confirmed = confirmed.await.expect("no panic");
    confirmed.expect("it was committed");
}

#[tokio::test]
async fn the_end_of_a_transaction_is_not_waited_for_longer_than_the_lease_lasts() {
    let mut bank = Bank::with_busy_timeout(10 * GUARD).await;
    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    let confirmed = tokio::spawn(completing.confirm());
    // It asks the storage, which waits, before the lease would be renewed.
    tokio::task::yield_now().await;
    bank.clock.advance(Duration::from_secs(60));
    let confirmed = tokio::time::timeout(GUARD, confirmed).await;
    let confirmed = confirmed.expect("the lease has ended").expect("no panic");
    let error = confirmed.expect_err("the transaction is open");
    assert!(matches!(error.kind, SettleErrorKind::Unknown(_)), "{error}");
    tx.rollback().expect("rolled back");
}

#[tokio::test]
async fn without_a_record_the_outcome_is_unknown_after_half_a_day() {
    use queue_tests::HOUR;

    let mut bank = Bank::open().await;
    for (hours, expected) in [(11, "NotDone(NotCommitted)"), (13, "Unknown(Timeout)")] {
        let deposit = bank.accepted().await;
        let tx = begin(&mut bank.connection);
        let completing = deposit.complete_within(&tx, []).expect("written");
        tx.rollback().expect("rolled back");
        bank.clock.advance(hours * HOUR);
        let error = completing.confirm().await.expect_err("no record");
        let found = match &error.kind {
            SettleErrorKind::NotDone(error) => format!("NotDone({:?})", error.kind()),
            SettleErrorKind::Unknown(error) => format!("Unknown({:?})", error.kind()),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected, "after {hours} hours");
        // What is known remains known, whether or not the lease has been renewed meanwhile.
        bank.clock.advance(2 * HOUR);
        let again = error.delivery.retry_after(Duration::ZERO, "later").await;
        let again = again.map_err(|error| error.kind);
        let is_unknown = matches!(again, Err(SettleErrorKind::Unknown(_)));
        assert_eq!(is_unknown, expected.starts_with("Unknown"), "{again:?}");
    }
}

#[tokio::test]
async fn the_records_of_transactions_do_not_pile_up() {
    let mut bank = Bank::open().await;
    for _ in 0..20 {
        let deposit = bank.accepted().await;
        let tx = begin(&mut bank.connection);
        let completing = deposit.complete_within(&tx, []).expect("written");
        tx.commit().expect("committed");
        completing.confirm().await.expect("it was committed");
    }
    let rows = "SELECT count(*) FROM queue_results";
    let rows = bank
        .connection
        .query_row(rows, [], |row| row.get::<_, u32>(0));
    assert_eq!(rows, Ok(1), "the last one");
}

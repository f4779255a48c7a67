//! Handlers that work in transactions on the database of the queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::listener::DrainReport;
use queue_runtime::postgres::{self, Ended, InTransaction, Tx};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{
    Disposition, ErrorKind, Failure, Handler, QueueService, Received, RetryPolicy,
};

use crate::bank::{Bank, Deposit, GUARD, Notice};

/// Handles all deposits.
async fn drain(service: &QueueService, handler: impl Handler<Deposit>) -> DrainReport {
    let retries = RetryPolicy::fixed(Duration::ZERO);
    let listener = service.listener(handler).retry(retries).until_empty();
    let listener = listener.start().expect("it starts");
    let drained = tokio::time::timeout(GUARD, listener.drained()).await;
    drained.expect("it ends")
}

/// Enters a deposit.
async fn enter(tx: &Tx, schema: &str, deposit: &Deposit) -> Result<(), Failure> {
    let insert = format!("INSERT INTO {schema}.account VALUES ($1, $2)");
    tx.execute(&insert, &[&deposit.number, &deposit.amount])
        .await?;
    Ok(())
}

fn noticed(tx: Tx, deposit: &Deposit) -> Ended {
    let text = format!("{} is entered", deposit.number);
    tx.end(Disposition::complete().then(&Notice { text }))
}

/// A handler that enters each deposit and submits a notice, after it has called `first` with the number of the call.
fn entering<F, Fut>(bank: &Bank, first: F) -> InTransaction<Deposit>
where
    F: Fn(u32, Tx) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Tx, Failure>> + Send,
{
    let (schema, calls) = (bank.schema.clone(), Arc::new(AtomicU32::new(0)));
    postgres::in_transaction(move |tx: Tx, deposit: Arc<Received<Deposit>>| {
        let (schema, first) = (schema.clone(), first.clone());
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            enter(&tx, &schema, &deposit).await?;
            let tx = first(call, tx).await?;
            Ok::<_, Failure>(noticed(tx, &deposit))
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_follow_ups_and_acknowledgement_are_committed_together() {
    let bank = Bank::open().await;
    for number in 0..40 {
        bank.submit(number).await;
    }
    let handler = entering(&bank, async |_, tx| Ok(tx)).connections(4);
    let report = drain(&bank.service, handler).await;
    assert_eq!(report.info.completed, 40);
    bank.assert(40, 0, 40).await;
    // As many connections as were allowed, which are used again.
    let used = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE '%COMMIT%'";
    let row = bank.client.query_one(used, &[&bank.schema]).await;
    let used: i64 = row.expect("counted").get(0);
    assert!(
        used <= 8,
        "{used}: four of the handler, and the engine's own"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pooled_transactions_are_committed_and_rolled_back() {
    let bank = Bank::pooled().await;
    for number in 0..40 {
        bank.submit(number).await;
    }
    let handler = entering(&bank, async |call, tx| match call % 4 {
        0 => Err(Failure::retry("again")),
        _ => Ok(tx),
    });
    let report = drain(&bank.service, handler.connections(4)).await;
    assert_eq!(report.info.completed, 40);
    bank.assert(40, 0, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_an_attempt_that_fails() {
    let bank = Bank::open().await;
    bank.submit(1).await;
    let handler = entering(&bank, async |call, tx| match call {
        0 => Err(Failure::retry("the account is closed")),
        // Handed back, and rolled back.
        _ => Ok(tx),
    });
    let report = drain(&bank.service, handler).await;
    assert_eq!((report.info.completed, report.info.retried), (1, 1));
    bank.assert(1, 0, 1).await;

    bank.submit(2).await;
    let rejecting = postgres::in_transaction({
        let schema = bank.schema.clone();
        move |tx: Tx, deposit: Arc<Received<Deposit>>| {
            let schema = schema.clone();
            async move {
                enter(&tx, &schema, &deposit).await?;
                Ok::<_, Failure>(tx.end(Disposition::reject("there is no such account")))
            }
        }
    });
    let report = drain(&bank.service, rejecting).await;
    assert_eq!(report.info.poisoned, 1);
    bank.assert(1, 0, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_ends_is_no_attempt() {
    let bank = Bank::open().await;
    for (number, fault) in [
        "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure'; END $$",
        "SELECT pg_terminate_backend(pg_backend_pid())",
        // At the commit.
        "CREATE TEMPORARY TABLE late (x integer); CREATE FUNCTION pg_temp.die() RETURNS trigger LANGUAGE plpgsql
            AS $f$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $f$;
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late INITIALLY DEFERRED FOR EACH ROW
            EXECUTE FUNCTION pg_temp.die(); INSERT INTO late VALUES (1)",
    ]
    .into_iter()
    .enumerate()
    {
        bank.submit(number as i32).await;
        let handler = entering(&bank, move |call, tx| async move {
            if call == 0 {
                tx.batch_execute(fault).await?;
            }
            Ok(tx)
        });
        let report = drain(&bank.service, handler).await;
        let info = report.info;
        assert_eq!((info.completed, info.retried), (1, 0), "{fault}: {info:?}");
        let entered = number + 1;
        bank.assert(entered as i64, 0, entered).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_ends_its_transaction_completes_nothing() {
    let bank = Bank::open().await;
    bank.submit(1).await;
    let handler = entering(&bank, async |call, tx| {
        if call == 0 {
            tx.batch_execute("ROLLBACK; BEGIN").await?;
        }
        Ok(tx)
    });
    let report = drain(&bank.service, handler).await;
    assert_eq!((report.info.completed, report.info.retried), (1, 1));
    bank.assert(1, 0, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_takes_effect_with_the_commit() {
    let bank = Bank::open().await;
    let mut client = postgres::connect(&**bank.service.backend())
        .await
        .expect("a connection");
    for (committed, notices) in [(false, 0), (true, 1)] {
        let tx = client.transaction().await.expect("begun");
        let notice = Notice {
            text: "kept".to_owned(),
        };
        let submitted = bank.service.submit_within(&tx, notice).await;
        submitted.expect("written");
        if committed {
            tx.commit().await.expect("committed");
        } else {
            tx.rollback().await.expect("rolled back");
        }
        bank.assert(0, 0, notices).await;
    }
}

#[tokio::test]
async fn queues_elsewhere_are_refused() {
    let bank = Bank::open().await;
    let memory = QueueService::connect("memory:").await.expect("connected");
    let handler = entering(&bank, async |_, tx| Ok(tx));
    let refused = memory
        .listener(handler)
        .start()
        .expect_err("another storage");
    assert!(
        format!("{refused:?}").contains("not in PostgreSQL"),
        "{refused:?}"
    );
    let mut client = postgres::connect(&**bank.service.backend())
        .await
        .expect("a connection");
    let tx = client.transaction().await.expect("begun");
    let notice = Notice {
        text: "lost".to_owned(),
    };
    let refused = memory
        .submit_within(&tx, notice)
        .await
        .expect_err("another storage");
    let SubmitErrorKind::Storage(error) = refused.kind else {
        panic!("another problem");
    };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_function_does_wrong_is_a_failed_attempt() {
    let bank = Bank::open().await;
    for (number, mistake) in [
        // An error that the function does not heed.
        "SELECT 1 / 0",
        // A constraint that is checked at the commit.
        "CREATE TEMPORARY TABLE late (x integer UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO late VALUES (1), (1)",
        "SET LOCAL synchronous_commit = off",
        "SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)",
    ]
    .into_iter()
    .enumerate()
    {
        bank.submit(number as i32).await;
        let handler = entering(&bank, move |call, tx| async move {
            if call == 0 {
                drop(tx.batch_execute(mistake).await);
            }
            Ok(tx)
        });
        let report = drain(&bank.service, handler).await;
        let info = report.info;
        assert_eq!((info.completed, info.retried), (1, 1), "{mistake}: {info:?}");
        let entered = number + 1;
        bank.assert(entered as i64, 0, entered).await;
    }
}

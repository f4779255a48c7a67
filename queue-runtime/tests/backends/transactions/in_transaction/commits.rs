//! Handlers whose rows, follow-ups and acknowledgement are one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use queue_runtime::envelope::PoisonReason;
use queue_runtime::listener::{Route, StartErrorKind};
use queue_runtime::testing::{self};
use queue_runtime::{
    Disposition, Failure, Handler, ListenerEventKind, Received, StartError, in_transaction, prepare,
};
use queue_tests::SECOND;

use crate::transactions::bank::{Bank, Deposit, GUARD, Notice, add, notice};
use crate::transactions::deposits::{deposit, drain, next};

#[tokio::test]
async fn rows_follow_ups_and_acknowledgement_are_committed_together() {
    for bank in [Bank::in_real_time().await, Bank::in_shards(3).await] {
        for number in 0..5 {
            bank.submit(number).await;
        }
        let report = drain(bank.service.listener(in_transaction(deposit))).await;
        assert_eq!((report.info.completed, report.info.retried), (5, 0));
        bank.assert(50, 0, 5).await;
    }
}

/// In each case the function has added to the balance before.
#[tokio::test]
async fn what_does_not_complete_the_message_is_rolled_back() {
    type End = fn() -> Result<Disposition, Failure>;
    let ends: [(End, PoisonReason); 3] = [
        (|| Err("no".into()), PoisonReason::Failed),
        (|| Err(Failure::reject("never")), PoisonReason::Rejected),
        (|| panic!("in the transaction"), PoisonReason::Failed),
    ];
    for (end, expected) in ends {
        let bank = Bank::in_real_time().await;
        bank.submit(1).await;
        bank.submit(2).await;
        let handler = in_transaction(move |tx, message: &Received<Deposit>| {
            let done = deposit(tx, message);
            if message.number == 1 { end() } else { Ok(done) }
        });
        let listener = bank.service.listener(handler).poison_threshold(2);
        let mut events = listener.events();
        let report = drain(listener).await;
        assert_eq!((report.info.completed, report.info.poisoned), (1, 1));
        let is_poisoned = |kind: &_| matches!(kind, ListenerEventKind::Poisoned { .. });
        let ListenerEventKind::Poisoned { reason, .. } = next(&mut events, is_poisoned).await
        else {
            unreachable!("it is waited for");
        };
        assert_eq!(reason, expected);
        bank.assert(10, 0, 1).await;
    }
}

#[tokio::test]
async fn a_function_that_postpones_is_rolled_back_and_tried_again() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let calls = AtomicU32::new(0);
    let handler = in_transaction(move |tx, message: &Received<Deposit>| {
        let done = deposit(tx, message);
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Disposition::postpone(SECOND / 10),
            _ => done,
        }
    });
    let report = drain(bank.service.listener(handler)).await;
    let found = (
        report.info.completed,
        report.info.released,
        report.info.retried,
    );
    assert_eq!(found, (1, 1, 0));
    bank.assert(10, 0, 1).await;
}

#[tokio::test]
async fn what_is_prepared_is_passed_on_and_its_failure_begins_no_transaction() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    bank.submit(2).await;
    let ask = async |deposit: Arc<Received<Deposit>>| {
        tokio::task::yield_now().await;
        match (deposit.number, deposit.attempt()) {
            (1, 1) => Err("the rate is not known"),
            _ => Ok(deposit.amount * 2),
        }
    };
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = prepare(ask).in_transaction(move |tx, _: &Received<Deposit>, twice| {
        counted.fetch_add(1, Ordering::Relaxed);
        add(tx, twice);
    });
    let report = drain(bank.service.listener(handler)).await;
    assert_eq!((report.info.completed, report.info.retried), (2, 1));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    bank.assert(40, 0, 0).await;
}

/// Each would otherwise wait for the file, and for no longer than its connection does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_transaction_of_a_service_runs_at_a_time() {
    let bank = Bank::in_real_time_with(SECOND / 10).await;
    for number in 0..3 {
        bank.submit(number).await;
        bank.service.submit(notice("one")).await.expect("submitted");
    }
    let long = || std::thread::sleep(SECOND / 4);
    let deposits = in_transaction(move |tx, deposit: &Received<Deposit>| {
        add(tx, deposit.amount);
        long();
    });
    let notices = in_transaction(move |_, _: &Received<Notice>| long());
    let listener = bank.service.listener(notices).start().expect("it starts");
    let report = drain(bank.service.listener(deposits)).await;
    assert_eq!((report.info.completed, report.info.released), (3, 0));
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), listener.info().released), (3, 0));
    bank.assert(30, 0, 0).await;
}

/// A quarter of the visibility timeout is longer than the message lives.
#[tokio::test]
async fn a_message_with_a_short_life_is_handled() {
    let bank = Bank::in_real_time().await;
    let message = Deposit {
        number: 1,
        amount: 10,
    };
    let submitted = bank.service.submit(message).time_to_live(GUARD);
    submitted.await.expect("submitted");
    let listener = bank.service.listener(in_transaction(deposit));
    let report = drain(listener.visibility_timeout(10 * GUARD)).await;
    assert_eq!((report.info.completed, report.info.released), (1, 0));
    bank.assert(10, 0, 1).await;
}

/// A handler of another queue runs for two visibility timeouts meanwhile, whose renewals wait for the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_transaction_of_three_seconds_is_reported_and_the_leases_of_others_hold() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    for _ in 0..8 {
        bank.service.submit(notice("one")).await.expect("submitted");
    }
    let visibility = 6 * SECOND;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let others = move |_: Received<Notice>| {
        counted.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(2 * visibility)
    };
    let others = bank.service.listener(others).visibility_timeout(visibility);
    let others = others.start().expect("it starts");
    while calls.load(Ordering::Relaxed) < 8 {
        tokio::task::yield_now().await;
    }
    let handler = in_transaction(|tx, deposit: &Received<Deposit>| {
        add(tx, deposit.amount);
        std::thread::sleep(3 * SECOND);
    });
    let slow = bank
        .service
        .listener(handler)
        .visibility_timeout(visibility);
    let mut events = slow.events();
    let report = drain(slow).await;
    assert_eq!(report.info.completed, 1);
    next(&mut events, |kind| {
        matches!(kind, ListenerEventKind::TransactionSlow { .. })
    })
    .await;
    let drained = testing::drain([&others]).await.expect("drained");
    assert_eq!((drained.completed(), calls.load(Ordering::Relaxed)), (8, 8));
    bank.assert(10, 0, 0).await;
}

#[tokio::test]
async fn a_short_transaction_is_not_reported() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let listener = bank.service.listener(in_transaction(deposit));
    let mut events = listener.events();
    assert_eq!(drain(listener).await.info.completed, 1);
    while let Ok(event) = events.try_recv() {
        let is_slow = matches!(event.kind, ListenerEventKind::TransactionSlow { .. });
        assert!(!is_slow, "{event:?}");
    }
}

#[tokio::test]
async fn a_listener_refuses_to_start_where_there_are_no_transactions() {
    let service = testing::service().await;
    let started = service.listener(in_transaction(deposit)).start();
    let error = started.expect_err("there are none");
    assert!(
        matches!(error.kind, StartErrorKind::Transactions { .. }),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "failed to start a listener on queue `deposits`: the handler of `deposit` works in transactions, \
         which only queues in SQLite or PostgreSQL have"
    );
    let source = std::error::Error::source(&error)
        .expect("a cause")
        .to_string();
    assert!(source.contains("`sqlite:PATH`"), "{source}");

    // Nor with connections that cannot be set up, or whose commits may be lost.
    let bank = Bank::in_real_time().await;
    for set_up in [
        "ATTACH '/nowhere/at.all' AS other",
        "PRAGMA synchronous = OFF",
    ] {
        let handler =
            in_transaction(deposit).on_connect(move |connection| connection.execute_batch(set_up));
        let refused = bank.service.listener(handler).start();
        assert!(
            matches!(
                refused,
                Err(StartError {
                    kind: StartErrorKind::Transactions { .. },
                    ..
                })
            ),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_connection_is_set_up_by_the_application() {
    let bank = Bank::in_real_time().await;
    bank.connection
        .execute_batch(
            "CREATE TABLE known (number INTEGER PRIMARY KEY); INSERT INTO known VALUES (1);
             CREATE TABLE entries (number INTEGER REFERENCES known DEFERRABLE INITIALLY DEFERRED)",
        )
        .expect("created");
    bank.submit(1).await;
    bank.submit(2).await;
    let handler = in_transaction(|tx, deposit: &Received<Deposit>| {
        tx.execute("INSERT INTO entries VALUES (?1)", [deposit.number])
            .map(drop)
    });
    let handler =
        handler.on_connect(|connection| connection.pragma_update(None, "foreign_keys", true));
    let listener = bank.service.listener(handler);
    // The commit itself fails for the second, which is its own fault.
    let report = drain(listener.poison_threshold(2)).await;
    let found = (
        report.info.completed,
        report.info.retried,
        report.info.poisoned,
    );
    assert_eq!(found, (1, 1, 1));
}

#[tokio::test]
async fn a_router_has_transactions_beside_other_handlers() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let notices = async |_: Received<Notice>| {};
    let router = bank.service.router("deposits").expect("a name");
    let router = router.route(Route::new(in_transaction(deposit)).handler_timeout(GUARD));
    let listener = router.handle(notices).until_empty().start();
    let report = listener.expect("it starts").drained().await;
    assert_eq!(report.info.completed, 1);
    bank.assert(10, 0, 1).await;
}

#[tokio::test]
async fn a_handler_is_called_without_a_listener() {
    let bank = Bank::in_real_time().await;
    let by_hand = testing::received(Deposit {
        number: 1,
        amount: 10,
    })
    .build();
    let ended = in_transaction(deposit).call(by_hand).await;
    assert!(matches!(ended, Disposition::Retry { .. }), "{ended:?}");
    bank.assert(0, 0, 0).await;
}

//! Handlers whose rows, follow-ups and acknowledgement are one transaction.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::clock::ManualClock;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::listener::{DrainReport, Route};
use queue_runtime::sqlite::rusqlite::{Transaction, ffi};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    Disposition, ErrorKind, Failure, Handler, ListenerBuilder, ListenerEvent, ListenerEventKind,
    Operation, Received, RetryPolicy, StartError, in_transaction, prepare,
};
use tokio::sync::broadcast::Receiver;
use tokio::sync::oneshot;

use crate::bank::{Bank, Deposit, GUARD, Notice, add, begin, notice};

const SECOND: Duration = Duration::from_secs(1);

/// Adds to the balance, and sends a notice.
fn deposit(tx: &Transaction<'_>, deposit: &Received<Deposit>) -> Disposition {
    add(tx, deposit.amount);
    Disposition::complete().then(&notice("more"))
}

/// Listens until the queue is empty.
async fn drain(listener: ListenerBuilder<Deposit>) -> DrainReport {
    let at_once = RetryPolicy::fixed(Duration::ZERO);
    let listener = listener.retry(at_once).until_empty().start();
    let listener = listener.expect("it starts");
    let report = tokio::time::timeout(GUARD, listener.drained()).await;
    report.expect("the queue becomes empty")
}

async fn next(
    events: &mut Receiver<ListenerEvent>,
    wanted: impl Fn(&ListenerEventKind) -> bool,
) -> ListenerEventKind {
    let found = async {
        loop {
            let kind = events.recv().await.expect("the listener runs").kind;
            if wanted(&kind) {
                return kind;
            }
        }
    };
    let found = tokio::time::timeout(GUARD, found).await;
    found.expect("the event is published")
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_transaction_of_a_service_runs_at_a_time() {
    let bank = Bank::in_real_time().await;
    for number in 0..20 {
        bank.submit(number).await;
        bank.service.submit(notice("one")).await.expect("submitted");
    }
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let run = move || {
        let begun = now.fetch_add(1, Ordering::SeqCst) + 1;
        peak.fetch_max(begun, Ordering::SeqCst);
        std::thread::sleep(SECOND / 500);
        now.fetch_sub(1, Ordering::SeqCst);
    };
    let other = run.clone();
    let deposits = in_transaction(move |tx, deposit: &Received<Deposit>| {
        add(tx, deposit.amount);
        run();
    });
    let notices = in_transaction(move |_, _: &Received<Notice>| other());
    let listener = bank.service.listener(notices).start().expect("it starts");
    let report = drain(bank.service.listener(deposits)).await;
    assert_eq!(report.info.completed, 20);
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 20);
    assert_eq!(most.load(Ordering::SeqCst), 1);
    bank.assert(200, 0, 0).await;
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

/// Has time go on until the event is published.
async fn next_in_time(
    clock: &ManualClock,
    events: &mut Receiver<ListenerEvent>,
    wanted: impl Fn(&ListenerEventKind) -> bool,
) -> ListenerEventKind {
    let going_on = async {
        loop {
            tokio::time::sleep(SECOND / 100).await;
            clock.advance(SECOND / 10);
        }
    };
    tokio::select! {
        found = next(events, wanted) => found,
        () = going_on => unreachable!("it does not end"),
    }
}

/// A gate in what is prepared: the first message that comes waits until the test lets it go on.
fn gate() -> (
    impl Fn() -> Option<oneshot::Sender<oneshot::Sender<()>>>,
    Come,
) {
    let (come, comes) = oneshot::channel();
    let come = Mutex::new(Some(come));
    (move || come.lock().expect("free").take(), comes)
}

type Come = oneshot::Receiver<oneshot::Sender<()>>;

async fn pass(come: Option<oneshot::Sender<oneshot::Sender<()>>>) -> Result<(), &'static str> {
    if let Some(come) = come {
        let (go, goes) = oneshot::channel();
        come.send(go).map_err(|_| "nobody waits")?;
        goes.await.map_err(|_| "nobody waits")?;
    }
    Ok(())
}

/// Its lease is not renewed while another connection writes, and would end during the transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transaction_begins_when_less_than_a_quarter_of_the_lease_is_left() {
    let mut bank = Bank::open().await;
    let (service, clock, faults) = (
        bank.service.clone(),
        bank.clock.clone(),
        bank.faults.clone(),
    );
    bank.submit(1).await;
    let (first, comes) = gate();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = prepare(move |_: Arc<Received<Deposit>>| pass(first()));
    let handler = handler.in_transaction(move |tx, message, ()| {
        counted.fetch_add(1, Ordering::Relaxed);
        deposit(tx, message)
    });
    let listener = service.listener(handler).visibility_timeout(30 * SECOND);
    let mut events = listener.events();
    let listener = listener.start().expect("it starts");
    let go = comes.await.expect("the handler is called");
    let writing = begin(&mut bank.connection);
    faults.fail_every(Operation::Update, Fault::Refused(ErrorKind::Timeout));
    go.send(()).expect("it waits");
    // Usually it waits for the file by then. If not, it does not get that far.
    tokio::time::sleep(SECOND / 4).await;
    clock.advance(23 * SECOND);
    writing.rollback().expect("rolled back");
    let is_end = |kind: &ListenerEventKind| {
        let is_released = matches!(kind, ListenerEventKind::Released { .. });
        is_released || matches!(kind, ListenerEventKind::NotSettled { .. })
    };
    next_in_time(&clock, &mut events, is_end).await;
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    faults.heal();
    let is_completed = |kind: &_| matches!(kind, ListenerEventKind::Completed { .. });
    next_in_time(&clock, &mut events, is_completed).await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    bank.assert(10, 0, 1).await;
    listener.shutdown(GUARD).await;
}

#[tokio::test]
async fn a_listener_refuses_to_start_where_there_are_no_transactions() {
    let service = testing::service().await;
    let started = service.listener(in_transaction(deposit)).start();
    let Err(error @ StartError::Transactions { .. }) = started else {
        panic!("{started:?}");
    };
    assert_eq!(
        error.to_string(),
        "failed to start a listener on queue `deposits`: the handler of `deposit` works in transactions"
    );
    let source = std::error::Error::source(&error)
        .expect("a cause")
        .to_string();
    assert!(source.contains("`sqlite:PATH`"), "{source}");
}

/// Another process writes for longer than the busy timeout: the message has done nothing wrong.
#[tokio::test]
async fn a_file_that_cannot_be_written_is_no_attempt_of_the_message() {
    let mut bank = Bank::with_busy_timeout(SECOND / 10).await;
    bank.submit(1).await;
    let (service, clock) = (bank.service.clone(), bank.clock.clone());
    let (first, begins) = gate();
    let handler = prepare(move |_: Arc<Received<Deposit>>| pass(first()));
    let handler = handler.in_transaction(|tx, message, ()| deposit(tx, message));
    let listener = service.listener(handler).poison_threshold(1);
    let mut events = listener.events();
    let listener = listener.start().expect("it starts");
    let go = begins.await.expect("the handler is called");
    let writing = begin(&mut bank.connection);
    go.send(()).expect("it waits");
    // It is postponed once the file can be written again.
    tokio::time::sleep(SECOND / 2).await;
    writing.rollback().expect("rolled back");
    let is_postponed = |kind: &_| matches!(kind, ListenerEventKind::Postponed { .. });
    next_in_time(&clock, &mut events, is_postponed).await;
    let is_completed = |kind: &_| matches!(kind, ListenerEventKind::Completed { .. });
    let completed = next_in_time(&clock, &mut events, is_completed).await;
    let ListenerEventKind::Completed { attempt, .. } = completed else {
        unreachable!("it is waited for");
    };
    assert_eq!(attempt, 1);
    bank.assert(10, 0, 1).await;
    listener.shutdown(GUARD).await;
}

/// As a function returns it whose statement finds the disk full.
#[tokio::test]
async fn an_error_of_the_file_in_the_function_is_no_attempt_but_one_of_a_statement_is() {
    use queue_runtime::sqlite::rusqlite::Error::SqliteFailure;
    for (code, postponed) in [(ffi::SQLITE_FULL, true), (ffi::SQLITE_CONSTRAINT, false)] {
        let bank = Bank::in_real_time().await;
        bank.submit(1).await;
        let calls = AtomicU32::new(0);
        let handler = in_transaction(move |tx, message: &Received<Deposit>| {
            add(tx, message.amount);
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(Failure::from(SqliteFailure(ffi::Error::new(code), None))),
                _ => Ok(()),
            }
        });
        let report = drain(bank.service.listener(handler)).await;
        let found = (report.info.released, report.info.retried);
        assert_eq!(found, (u64::from(postponed), u64::from(!postponed)));
        bank.assert(10, 0, 0).await;
    }
}

#[tokio::test]
async fn a_connection_of_the_applications_own_is_used() {
    let bank = Bank::in_real_time().await;
    bank.connection
        .execute_batch(
            "CREATE TABLE known (number INTEGER PRIMARY KEY); INSERT INTO known VALUES (1);
             CREATE TABLE entries (number INTEGER REFERENCES known DEFERRABLE INITIALLY DEFERRED)",
        )
        .expect("created");
    bank.submit(1).await;
    bank.submit(2).await;
    let connection = queue_runtime::sqlite::connect(bank.service.backend()).expect("opened");
    let on = connection.pragma_update(None, "foreign_keys", true);
    on.expect("set");
    let handler = in_transaction(|tx, deposit: &Received<Deposit>| {
        tx.execute("INSERT INTO entries VALUES (?1)", [deposit.number])
            .map(drop)
    });
    let listener = bank.service.listener(handler.connection(connection));
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
    let router = bank.service.router("deposits");
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

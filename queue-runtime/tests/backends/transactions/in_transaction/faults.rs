//! What becomes of a message whose transaction fails, waits, or does not end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use queue_runtime::clock::ManualClock;
use queue_runtime::error::Operation;
use queue_runtime::sqlite::rusqlite::ffi;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    Error, ErrorKind, Failure, ListenerEvent, ListenerEventKind, Received, in_transaction, prepare,
};
use queue_tests::SECOND;
use tokio::sync::broadcast::Receiver;
use tokio::sync::oneshot;

use crate::transactions::bank::{Bank, Deposit, GUARD, Notice, add, begin, notice};
use crate::transactions::deposits::{deposit, drain, next};

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

/// Checks whether an error that the function returns once is an attempt.
async fn fails_once(postponed: bool, error: impl Fn() -> Failure + Send + Sync + 'static) {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let calls = AtomicU32::new(0);
    let handler = in_transaction(move |tx, message: &Received<Deposit>| {
        add(tx, message.amount);
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Err(error()),
            _ => Ok(()),
        }
    });
    let report = drain(bank.service.listener(handler)).await;
    let found = (report.info.released, report.info.retried);
    assert_eq!(found, (usize::from(postponed), usize::from(!postponed)));
    bank.assert(10, 0, 0).await;
}

/// As a function returns it whose statement finds the disk full.
#[tokio::test]
async fn an_error_of_the_file_in_the_function_is_no_attempt_but_one_of_a_statement_is() {
    use queue_runtime::sqlite::rusqlite::Error::SqliteFailure;
    for (code, postponed) in [
        (ffi::SQLITE_FULL, true),
        (ffi::SQLITE_IOERR_WRITE, true),
        (ffi::SQLITE_CORRUPT, false),
        (ffi::SQLITE_LOCKED, false),
        (ffi::SQLITE_CONSTRAINT, false),
    ] {
        fails_once(postponed, move || {
            Failure::from(SqliteFailure(ffi::Error::new(code), None))
        })
        .await;
    }
}

/// As of `submit_within`, when the disk is full.
#[tokio::test]
async fn an_error_of_a_submission_in_the_function_is_no_attempt_unless_the_message_is_to_blame() {
    for (kind, postponed) in [(ErrorKind::Storage, true), (ErrorKind::TooLarge, false)] {
        fails_once(postponed, move || {
            Failure::from(Error::new(kind, Operation::Put))
        })
        .await;
    }
}

/// SQLite ends the transaction itself, and would commit each further statement by itself.
#[tokio::test]
async fn a_function_that_goes_on_after_its_transaction_was_ended_commits_nothing() {
    let bank = Bank::in_real_time().await;
    let table = "CREATE TABLE entries (number INTEGER PRIMARY KEY); INSERT INTO entries VALUES (1)";
    bank.connection.execute_batch(table).expect("created");
    bank.submit(1).await;
    let handler = in_transaction(|tx, _: &Received<Deposit>| {
        let ended = tx.execute("INSERT OR ROLLBACK INTO entries VALUES (1)", []);
        assert!(ended.is_err() && tx.is_autocommit());
        // It is refused, which the function does not notice either.
        let _ = tx.execute("INSERT INTO entries VALUES (2)", []);
    });
    let report = drain(bank.service.listener(handler).poison_threshold(2)).await;
    assert_eq!((report.info.completed, report.info.poisoned), (0, 1));
    let entries = "SELECT group_concat(number) FROM entries";
    let found: String = bank
        .connection
        .query_row(entries, [], |row| row.get(0))
        .expect("read");
    assert_eq!(found, "1");
}

#[tokio::test]
async fn a_function_that_completes_the_message_itself_is_told_what_to_do_instead() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let handler = in_transaction(|tx, message: &Received<Deposit>| {
        add(tx, message.amount);
        message.complete_within(tx, [])
    });
    let report = drain(bank.service.listener(handler).poison_threshold(1)).await;
    assert_eq!(report.info.poisoned, 1);
    let poisoned = bank.service.any_queue("deposits-poison").expect("a name");
    let poisoned = poisoned.accept().await.expect("received").expect("one");
    let record = poisoned.envelope().poison.clone().expect("a record");
    let error = record.error.expect("an error");
    assert!(
        error.contains("the function has completed the message itself"),
        "{error}"
    );
    bank.assert(0, 0, 0).await;
}

/// Another handler is in a transaction for longer than this one's timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiting_for_the_turn_counts_no_attempt() {
    let bank = Bank::open().await;
    let (service, clock) = (&bank.service, &bank.clock);
    bank.submit(1).await;
    service.submit(notice("long")).await.expect("submitted");
    let (first, comes) = gate();
    let handler = prepare(move |_: Arc<Received<Deposit>>| pass(first()));
    let handler = handler.in_transaction(|tx, message, ()| deposit(tx, message));
    let waiting = service.listener(handler).poison_threshold(1);
    let waiting = waiting.handler_timeout(10 * SECOND);
    let mut events = waiting.events();
    let waiting = waiting.start().expect("it starts");
    let go = comes.await.expect("the handler is called");

    let (begun, begins) = oneshot::channel();
    let (release, released) = mpsc::channel::<()>();
    let (begun, released) = (Mutex::new(Some(begun)), Mutex::new(released));
    let long = in_transaction(move |_, _: &Received<Notice>| {
        let begun = begun.lock().expect("free").take();
        begun
            .into_iter()
            .for_each(|begun| begun.send(()).expect("it is waited for"));
        // An error says that it is released.
        let _ = released.lock().expect("free").recv();
    });
    let long = service.listener(long).handler_timeout(3_600 * SECOND);
    let long = long.start().expect("it starts");
    begins.await.expect("the transaction begins");
    go.send(()).expect("it waits");
    tokio::time::sleep(SECOND).await;
    clock.advance(11 * SECOND);
    tokio::time::sleep(SECOND / 10).await;
    drop(release);
    let is_end = |kind: &ListenerEventKind| {
        let is_completed = matches!(kind, ListenerEventKind::Completed { .. });
        is_completed || matches!(kind, ListenerEventKind::Poisoned { .. })
    };
    let end = next_in_time(clock, &mut events, is_end).await;
    assert!(
        matches!(end, ListenerEventKind::Completed { attempt: 1, .. }),
        "{end:?}"
    );
    assert_eq!(waiting.info().released, 1, "its time was over");
    waiting.shutdown(GUARD).await;
    long.shutdown(GUARD).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_transaction_that_is_committed_after_its_timeout_has_completed_its_message() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let handler = in_transaction(|tx, message: &Received<Deposit>| {
        let done = deposit(tx, message);
        std::thread::sleep(5 * SECOND / 2);
        done
    });
    let report = drain(bank.service.listener(handler).handler_timeout(SECOND / 10)).await;
    assert_eq!((report.info.completed, report.info.unsettled), (1, 0));
    bank.assert(10, 0, 1).await;
}

/// It would otherwise keep the file from all others.
#[tokio::test]
async fn a_statement_that_does_not_end_is_interrupted_at_the_handler_timeout() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let endless =
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";
    let handler = in_transaction(move |tx, message: &Received<Deposit>| {
        let done = deposit(tx, message);
        match message.attempt() {
            1 => tx
                .query_row(endless, [], |row| row.get::<_, i64>(0))
                .map(|_| done),
            _ => Ok(done),
        }
    });
    let listener = bank.service.listener(handler).handler_timeout(2 * SECOND);
    let mut events = listener.events();
    let report = drain(listener).await;
    assert_eq!((report.info.completed, report.info.retried), (1, 1));
    let is_retried = |kind: &_| matches!(kind, ListenerEventKind::Retried { .. });
    let ListenerEventKind::Retried { error, .. } = next(&mut events, is_retried).await else {
        unreachable!("it is waited for");
    };
    assert_eq!(error.to_string(), "interrupted");
    bank.assert(10, 0, 1).await;
}

/// It cannot be interrupted, and no process can write meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_stuck_needs_a_restart() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let handler = in_transaction(move |tx, message: &Received<Deposit>| {
        let done = deposit(tx, message);
        // An error says that it is released.
        let _ = released.lock().expect("free").recv();
        done
    });
    let listener = bank.service.listener(handler).handler_timeout(SECOND / 5);
    let mut events = listener.events();
    let listener = listener.start().expect("it starts");
    let is_stuck = |kind: &_| matches!(kind, ListenerEventKind::HandlerStuck { .. });
    next(&mut events, is_stuck).await;
    let health = bank.service.health();
    assert!(health.needs_restart() && !health.is_healthy());
    let text = health.to_string();
    assert!(
        text.contains(
            "one of these handlers is in a transaction, so nothing else can be written to the file"
        ),
        "{text}"
    );
    drop(release);
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), listener.info().stuck), (1, 0));
    assert!(!bank.service.health().needs_restart());
    bank.assert(10, 0, 1).await;
}

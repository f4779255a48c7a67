//! Handlers that complete their messages in transactions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::listener::DrainReport;
use queue_runtime::policy::{Idle, IdlePolicy};
use queue_runtime::settings::ConsumerConfig;
use queue_runtime::sqlite::rusqlite::Connection;
use queue_runtime::{
    Disposition, Failure, FollowUp, Handler, ListenerEvent, ListenerEventKind, QueueService,
    Received, RetryPolicy, blocking,
};
use tokio::sync::broadcast::Receiver;

use crate::transactions::bank::{Bank, Deposit, GUARD, Notice, add, begin, notice};
use crate::transactions::log::LOG;

/// How a handler ends after it has completed its message in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Returns,
    Fails,
    Panics,
    /// The first so many times, without a commit.
    ForgetsToCommit(u32),
}

struct Handled {
    calls: Arc<AtomicU32>,
    connection: Mutex<Connection>,
}

impl Handled {
    fn by(bank: &Bank) -> Self {
        Self {
            calls: Arc::default(),
            connection: Mutex::new(
                queue_runtime::sqlite::connect(bank.service.backend()).expect("a connection"),
            ),
        }
    }

    fn handle(&self, deposit: &Received<Deposit>, end: End) -> Result<(), Failure> {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let mut connection = self.connection.lock().expect("it panics without the lock");
        let tx = begin(&mut connection);
        add(&tx, deposit.amount);
        deposit.complete_within(&tx, [FollowUp::new(&notice("more"))])?;
        if matches!(end, End::ForgetsToCommit(times) if calls <= times) {
            return Ok(());
        }
        tx.commit()?;
        drop(connection);
        match end {
            End::Fails => Err("after the commit".into()),
            End::Panics => panic!("after the commit"),
            End::Returns | End::ForgetsToCommit(_) => Ok(()),
        }
    }
}

/// Listens until the queue is empty.
async fn drain(bank: &Bank, handler: impl Handler<Deposit>) -> DrainReport {
    let listener = bank.service.listener(handler).until_empty();
    let at_once = RetryPolicy::fixed(Duration::ZERO);
    let listener = listener.retry(at_once).start().expect("it starts");
    let report = tokio::time::timeout(GUARD, listener.drained()).await;
    report.expect("the queue becomes empty")
}

/// Waits for messages that were handled, and returns how many were completed and how many duplicates.
async fn handled(events: &mut Receiver<ListenerEvent>, messages: usize) -> (usize, usize) {
    let (mut completed, mut duplicates) = (0, 0);
    let counting = async {
        while completed + duplicates < messages {
            match events.recv().await.expect("the listener runs").kind {
                ListenerEventKind::Completed { .. } => completed += 1,
                ListenerEventKind::Duplicate { .. } => duplicates += 1,
                _ => {}
            }
        }
    };
    let counted = tokio::time::timeout(GUARD, counting).await;
    counted.expect("all are handled");
    (completed, duplicates)
}

#[tokio::test]
async fn a_transaction_that_was_committed_counts_whatever_the_handler_does_then() {
    for end in [End::Returns, End::Fails, End::Panics] {
        let bank = Bank::in_real_time().await;
        bank.submit(1).await;
        let handled = Handled::by(&bank);
        let calls = Arc::clone(&handled.calls);
        let report = drain(
            &bank,
            blocking(move |deposit| handled.handle(&deposit, end)),
        )
        .await;
        let (info, calls) = (report.info, calls.load(Ordering::Relaxed));
        let found = (info.completed, info.retried, info.poisoned, calls);
        assert_eq!(found, (1, 0, 0, 1), "{end:?}");
        bank.assert(10, 0, 1).await;
    }
}

#[tokio::test]
async fn follow_ups_that_a_handler_returns_after_the_commit_are_logged_as_lost() {
    let log = LazyLock::force(&LOG);
    let bank = Bank::in_real_time().await;
    let deposit = Deposit {
        number: 1,
        amount: 10,
    };
    let submitted = bank.service.submit(deposit).id("returns-too-much").await;
    submitted.expect("submitted");
    let handled = Handled::by(&bank);
    let handler = blocking(move |deposit: Received<Deposit>| {
        let handled = handled.handle(&deposit, End::Returns);
        handled.expect("committed");
        Disposition::complete().then(&notice("too late"))
    });
    assert_eq!(drain(&bank, handler).await.info.completed, 1);
    bank.assert(10, 0, 1).await;
    let lost = ["ERROR", "deposits", "returns-too-much", "lost=1"];
    assert!(log.has(&lost));
}

#[tokio::test]
async fn a_handler_that_forgets_to_commit_has_failed() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let handled = Handled::by(&bank);
    let end = End::ForgetsToCommit(1);
    let report = drain(
        &bank,
        blocking(move |deposit| handled.handle(&deposit, end)),
    )
    .await;
    assert_eq!((report.info.completed, report.info.retried), (1, 1));
    bank.assert(10, 0, 1).await;
}

/// To the circuit breaker too: it opens, and a probe like that neither closes it nor makes the message poison.
#[tokio::test]
async fn handlers_that_do_not_commit_open_the_circuit_breaker() {
    let bank = Bank::in_real_time().await;
    bank.submit(1).await;
    let handled = Handled::by(&bank);
    let calls = Arc::clone(&handled.calls);
    let end = End::ForgetsToCommit(6);
    let handler = blocking(move |deposit| handled.handle(&deposit, end));
    let config = r#"
        poison_threshold = 3
        circuit_breaker = { failed = 1.0, attempts = 2, probe_interval = "10ms" }
    "#;
    let config: ConsumerConfig = toml::from_str(config).expect("valid");
    let listener = bank.service.listener(handler).config(&config);
    let listener = listener.retry(RetryPolicy::fixed(Duration::ZERO));
    let mut events = listener.events();
    let listener = listener.start().expect("it starts");
    let mut changes = Vec::new();
    let watching = async {
        let mut completed = false;
        while !completed || changes.last() != Some(&"closed") {
            match events.recv().await.expect("the listener runs").kind {
                ListenerEventKind::CircuitOpened { .. } => changes.push("opened"),
                ListenerEventKind::CircuitProbeFailed { .. } => changes.push("probe failed"),
                ListenerEventKind::CircuitClosed { .. } => changes.push("closed"),
                ListenerEventKind::Completed { .. } => completed = true,
                _ => {}
            }
        }
    };
    let watched = tokio::time::timeout(GUARD, watching).await;
    watched.expect("the circuit breaker opens and closes");
    let probes = ["probe failed"; 4];
    assert_eq!(changes, [&["opened"], &probes[..], &["closed"]].concat());
    // Two attempts count. The third would be the last one, so that of a probe does not.
    let info = listener.info();
    let found = (info.completed, info.retried, info.released, info.poisoned);
    assert_eq!(found, (1, 2, 4, 0));
    assert_eq!(calls.load(Ordering::Relaxed), 7);
    bank.assert(10, 0, 1).await;
}

#[tokio::test]
async fn a_renewal_that_finds_the_message_gone_does_not_stop_the_handler() {
    let bank = Bank::open().await;
    bank.submit(1).await;
    let connection = queue_runtime::sqlite::connect(bank.service.backend()).expect("a connection");
    let (clock, faults) = (bank.clock.clone(), bank.faults.clone());
    let connection = Arc::new(Mutex::new(connection));
    let (found, mut cancelled) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |deposit: Received<Deposit>| {
        let (clock, faults, found) = (clock.clone(), faults.clone(), found.clone());
        let connection = Arc::clone(&connection);
        async move {
            {
                let mut connection = connection.lock().expect("no panic");
                let tx = begin(&mut connection);
                add(&tx, deposit.amount);
                deposit.complete_within(&tx, [])?;
                tx.commit()?;
            }
            clock.advance(Duration::from_secs(16));
            faults.until_called(1, Operation::Update).await;
            // Waits for the renewal. There is nothing to write it into any more.
            let written = deposit.checkpoint(&1).await;
            found.send((written.is_ok(), deposit.is_cancelled()))?;
            Ok::<_, Failure>(())
        }
    };
    let listener = bank.service.listener(handler).start();
    let listener = listener.expect("it starts");
    assert_eq!(handled(&mut listener.events(), 1).await, (1, 0));
    assert_eq!(cancelled.recv().await, Some((false, false)));
    bank.assert(10, 0, 0).await;
}

#[tokio::test]
async fn the_result_of_a_key_is_recorded_in_the_transaction() {
    let bank = Bank::in_real_time().await;
    let request = |number| Deposit { number, amount: 10 };
    for _ in 0..5 {
        let submitted = bank.service.submit(request(7)).request_id("once").await;
        submitted.expect("submitted");
    }
    let by = Handled::by(&bank);
    let calls = Arc::clone(&by.calls);
    let store = bank.service.results().expect("in the file");
    let handler = blocking(move |deposit: Received<Deposit>| by.handle(&deposit, End::Panics));
    let listener = bank.service.listener(handler).idempotent(store);
    // One after the other: a duplicate of work in flight would wait.
    let listener = listener.tasks(1).max_in_flight(1).start();
    let listener = listener.expect("it starts");
    assert_eq!(handled(&mut listener.events(), 5).await, (1, 4));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    bank.assert(10, 0, 1).await;
}

#[tokio::test]
async fn a_later_request_for_the_same_key_gets_the_reply_of_the_transaction() {
    let bank = Bank::in_real_time().await;
    let connection =
        Mutex::new(queue_runtime::sqlite::connect(bank.service.backend()).expect("a connection"));
    let handler = blocking(move |deposit: Received<Deposit>| -> Result<(), Failure> {
        let mut connection = connection.lock().map_err(|_| "a panic")?;
        let tx = begin(&mut connection);
        add(&tx, deposit.amount);
        let follow_ups = [
            FollowUp::reply(&notice("done")),
            FollowUp::new(&notice("more")),
        ];
        deposit.complete_within(&tx, follow_ups)?;
        Ok(tx.commit()?)
    });
    let store = bank.service.results().expect("in the file");
    let listener = bank.service.listener(handler).idempotent(store).start();
    let _listener = listener.expect("it starts");
    for _ in 0..2 {
        let deposit = Deposit {
            number: 7,
            amount: 10,
        };
        let request = bank.service.request(deposit).reply::<Notice>();
        let reply = request.request_id("once").timeout(GUARD).await;
        assert_eq!(*reply.expect("answered").message(), notice("done"));
    }
    bank.assert(10, 0, 1).await;
}

/// A consumer that polls once a day, in a time that stands still.
#[derive(Debug)]
struct Daily;

impl IdlePolicy for Daily {
    fn delay(&self, _: Idle) -> Duration {
        Duration::from_secs(24 * 60 * 60)
    }
}

#[tokio::test]
async fn idle_consumers_are_woken_after_the_commit() {
    let mut bank = Bank::open().await;
    let service: &QueueService = &bank.service;
    let handler = async |_: Received<Deposit>| {};
    let listener = service.listener(handler).idle(Daily).start();
    let listener = listener.expect("it starts");
    let mut events = listener.events();
    bank.faults.until_called(1, Operation::Receive).await;
    let tx = begin(&mut bank.connection);
    let deposit = Deposit {
        number: 1,
        amount: 1,
    };
    service
        .submit_within(&tx, deposit.clone())
        .expect("written");
    tx.commit().expect("committed");
    assert_eq!(handled(&mut events, 1).await, (1, 0));
}

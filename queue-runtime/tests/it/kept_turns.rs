//! Turns of messages of one key are kept while a handler goes on, and keys are computed as a part of an attempt.

use std::sync::{Arc, Mutex};

use queue_runtime::error::Operation;
use queue_runtime::testing;
use queue_runtime::{
    Batch, ListenerEventKind, QueueService, Received, RetryPolicy, batch, blocking,
};
use queue_tests::SECOND;

use crate::support::accounts::{Accounts, Deposit, deposit, with_deposits};
use crate::support::stop;

/// A batch that is given up goes on, on its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_batch_that_is_stuck_keeps_the_turns_of_its_messages() {
    let service = QueueService::connect("memory:").await.expect("connects");
    for number in 0..2 {
        let deposit = Deposit { account: 1, number };
        service.submit(deposit).await.expect("stored");
    }
    let accounts = Accounts::default();
    let seen = accounts.clone();
    let handler = batch(move |deposits: Batch<Deposit>| {
        let accounts = seen.clone();
        async move {
            let (deposit, attempt) = (&*deposits[0], deposits[0].attempt());
            accounts.begin(deposit.account, deposit.number);
            if (deposit.number, attempt) == (0, 1) {
                // Until long after it was given up, on a thread that the runtime replaces meanwhile.
                tokio::task::block_in_place(|| std::thread::sleep(4 * SECOND));
            }
            accounts.end(deposit.account);
        }
    });
    let listener = service
        .listener(handler.size(1))
        .max_in_flight(4)
        .handler_timeout(SECOND / 2)
        .retry(RetryPolicy::fixed(SECOND / 10))
        .one_at_a_time_by(|deposit| deposit.account);
    let listener = listener.until_empty().start().expect("starts");
    let drained = listener.drained().await;
    assert_eq!(drained.info.completed, 2);
    assert_eq!(accounts.of(1).most, 1);
}

/// A function that ends the process would otherwise be called again and again: a message that may have ended some is marked
/// first, and one that has been marked is not decoded.
#[tokio::test(start_paused = true)]
async fn the_key_of_a_message_that_may_end_processes_is_computed_when_it_is_marked() {
    for (killed, marked, keys) in [(1, false, vec![0]), (3, false, vec![1]), (3, true, vec![])] {
        let (service, faults) = testing::service_with_faults().await;
        let deposit = Deposit {
            account: 1,
            number: 1,
        };
        service.submit(deposit).await.expect("stored");
        let accept = || service.accept::<Deposit>().visibility_timeout(SECOND * 10);
        for threshold in [1_000]
            .repeat(killed)
            .into_iter()
            .chain(marked.then_some(3))
        {
            let accepted = accept().poison_threshold(threshold).await;
            // As by a process that is killed.
            drop(accepted.expect("no error").expect("one"));
            tokio::time::sleep(SECOND * 20).await;
        }
        let before = faults.calls(Operation::Update);
        let computed = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&computed);
        let listener = service
            .listener(async |_: Received<Deposit>| std::future::pending::<()>().await)
            .poison_threshold(3)
            .one_at_a_time_by(move |deposit| {
                let marks = faults.calls(Operation::Update) - before;
                seen.lock().expect("free").push(marks);
                deposit.account
            })
            .start()
            .expect("starts");
        tokio::time::sleep(SECOND).await;
        assert_eq!(*computed.lock().expect("free"), keys, "{killed} {marked}");
        assert_eq!(listener.info().poisoned, usize::from(marked));
        stop(listener).await;
    }
}

/// The handler that blocks its thread may still write to the account.
#[tokio::test]
async fn a_handler_that_is_stuck_keeps_its_turn() {
    let service = testing::service().await;
    for number in 0..2 {
        let deposit = Deposit { account: 1, number };
        service.submit(deposit).await.expect("stored");
    }
    let accounts = Accounts::default();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let seen = accounts.clone();
    let handler = blocking(move |deposit: Received<Deposit>| {
        seen.begin(deposit.account, deposit.number);
        if deposit.number == 0 && deposit.attempt() == 1 {
            // It ignores its cancellation.
            let _ = released.lock().expect("free").recv();
        }
        seen.end(deposit.account);
    });
    let listener = service
        .listener(handler)
        .handler_timeout(SECOND / 2)
        .retry(RetryPolicy::fixed(SECOND / 10))
        .one_at_a_time_by(|deposit| deposit.account);
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    loop {
        let event = events.recv().await.expect("not lagged");
        if matches!(event.kind, ListenerEventKind::Retried { .. }) {
            break;
        }
    }
    // One of another account is handled meanwhile, and the other of this one waits for the thread.
    let another = Deposit {
        account: 2,
        number: 2,
    };
    service.submit(another).await.expect("stored");
    while accounts.of(2).begun.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(accounts.of(1).begun, [0]);
    release.send(()).expect("it waits");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 3);
    assert_eq!(accounts.of(1).most, 1);
    stop(listener).await;
}

/// A function that panics would otherwise have messages handled out of turn.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_key_is_a_failed_attempt() {
    let (service, accounts) = (with_deposits(1).await, Accounts::default());
    let listener = service
        .listener_with(accounts.clone(), deposit)
        .poison_threshold(2)
        .one_at_a_time_by(|deposit| {
            assert_ne!(deposit.account, 2, "this account has no key");
            deposit.account
        })
        .start()
        .expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (3, 1));
    assert!(accounts.of(2).begun.is_empty());
    stop(listener).await;
}

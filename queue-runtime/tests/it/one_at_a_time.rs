//! Messages of one key are handled one at a time, in the order in which they were received.

use queue_runtime::listener::Route;
use queue_runtime::testing::{self};
use queue_runtime::{Batch, Disposition, ListenerEventKind, Message, Received, RetryPolicy, batch};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};

use crate::support::accounts::{Accounts, Deposit, deposit, with_deposits};
use crate::support::stop;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "bank", kind = "withdrawal")]
struct Withdrawal {
    account: u32,
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "statements", kind = "statement")]
struct Statement {
    account: u32,
    number: u32,
    text: String,
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_key_are_handled_in_their_order_and_others_go_on() {
    let (service, accounts) = (with_deposits(8).await, Accounts::default());
    let started = tokio::time::Instant::now();
    let listener = service
        .listener_with(accounts.clone(), deposit)
        .max_in_flight(64)
        .one_at_a_time_by(|deposit| deposit.account)
        .start()
        .expect("starts");
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(listener.info().parked, 28, "one of each account is handled");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), listener.info().released), (32, 0));
    assert!(started.elapsed() < 10 * SECOND, "{:?}", started.elapsed());
    for account in 0..4 {
        let account = accounts.of(account);
        assert_eq!(account.most, 1);
        assert_eq!(account.begun, Vec::from_iter(0..8));
    }
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn without_keys_they_are_handled_at_the_same_time() {
    let (service, accounts) = (with_deposits(8).await, Accounts::default());
    let listener = service.listener_with(accounts.clone(), deposit);
    let listener = listener.max_in_flight(64).start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(accounts.of(0).most, 8);
    stop(listener).await;
}

/// With several threads, where tasks that were started one after the other run in any order. The keys of earlier messages
/// take longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn their_order_is_that_of_the_receive_and_not_that_of_the_threads() {
    let (service, accounts) = (testing::service().await, Accounts::default());
    let deposits = (0..8).map(|number| Deposit { account: 0, number });
    service.submit_all(deposits).await.expect("stored");
    let handler = async |accounts: Accounts, deposit: Received<Deposit>| {
        accounts.begin(deposit.account, deposit.number);
        tokio::task::yield_now().await;
        accounts.end(deposit.account);
    };
    let listener = service
        .listener_with(accounts.clone(), handler)
        .tasks(1)
        .max_in_flight(64)
        .one_at_a_time_by(|deposit| {
            std::thread::sleep(SECOND / 500 * (8 - deposit.number));
            deposit.account
        })
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(listener.info().released, 0, "there was a place for all");
    let account = accounts.of(0);
    assert_eq!((account.most, account.begun), (1, Vec::from_iter(0..8)));
    stop(listener).await;
}

/// Four accounts with more messages than are in flight by default, and handlers that take so long that the last wait for
/// several visibility timeouts.
#[tokio::test(start_paused = true)]
async fn messages_of_a_few_keys_keep_their_order_while_they_wait() {
    let (service, accounts) = (with_deposits(30).await, Accounts::default());
    let handler = async |accounts: Accounts, deposit: Received<Deposit>| {
        accounts.begin(deposit.account, deposit.number);
        tokio::time::sleep(15 * SECOND).await;
        accounts.end(deposit.account);
    };
    let listener = service
        .listener_with(accounts.clone(), handler)
        .one_at_a_time_by(|deposit| deposit.account)
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(listener.info().released, 0);
    for account in 0..4 {
        let account = accounts.of(account);
        assert_eq!((account.most, account.begun), (1, Vec::from_iter(0..30)));
    }
    stop(listener).await;
}

/// Those for which there is no place wait outside, and their attempts do not count.
#[tokio::test(start_paused = true)]
async fn a_key_with_many_messages_leaves_half_of_the_room_to_others() {
    let (service, accounts) = (testing::service().await, Accounts::default());
    let hot = (0..40).map(|number| Deposit { account: 0, number });
    service.submit_all(hot).await.expect("stored");
    let others = (1..=40).map(|account| Deposit { account, number: 0 });
    service.submit_all(others).await.expect("stored");
    let listener = service
        .listener_with(accounts.clone(), deposit)
        .max_in_flight(8)
        .poison_threshold(1)
        .one_at_a_time_by(|deposit| deposit.account);
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (80, 0));
    assert_eq!(accounts.of(0).most, 1);
    assert!(accounts.of(0).begun.len() == 40);
    let mut postponed = 0;
    while let Ok(event) = events.try_recv() {
        postponed += usize::from(matches!(event.kind, ListenerEventKind::Postponed { .. }));
    }
    assert!(postponed > 0, "there was no place for all");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_retry_the_next_message_of_the_key_goes_on() {
    let (service, accounts) = (with_deposits(3).await, Accounts::default());
    let handler = async |accounts: Accounts, deposit: Received<Deposit>| {
        accounts.handle(deposit.account, deposit.number).await;
        match (deposit.number, deposit.attempt()) {
            (0, 1) => Disposition::retry("later"),
            _ => Disposition::complete(),
        }
    };
    let listener = service
        .listener_with(accounts.clone(), handler)
        .retry(RetryPolicy::fixed(10 * SECOND))
        .one_at_a_time_by(|deposit| deposit.account)
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    for account in 0..4 {
        let account = accounts.of(account);
        assert_eq!((account.most, account.begun), (1, vec![0, 1, 2, 0]));
    }
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn routes_with_equal_keys_share_their_turns_unless_the_key_names_the_type() {
    for (apart, most) in [(false, 1), (true, 2)] {
        let (service, accounts) = (testing::service().await, Accounts::default());
        for number in 0..4 {
            let deposit = Deposit { account: 7, number };
            service.submit(deposit).await.expect("stored");
            let withdrawal = Withdrawal { account: 7, number };
            service.submit(withdrawal).await.expect("stored");
        }
        let withdraw = async |accounts: Accounts, message: Received<Withdrawal>| {
            accounts.handle(message.account, message.number).await;
        };
        let deposits = Route::with(accounts.clone(), deposit);
        let withdrawals = Route::with(accounts.clone(), withdraw);
        let listener = service
            .router("bank")
            .expect("a name")
            .route(deposits.one_at_a_time_by(|message| (0, message.account)))
            .route(withdrawals.one_at_a_time_by(move |message| (u32::from(apart), message.account)))
            .start()
            .expect("starts");
        testing::drain([&listener]).await.expect("drained");
        assert_eq!(accounts.of(7).most, most);
        stop(listener).await;
    }
}

/// A message that waits for its turn must not hold the place that the one before it needs.
#[tokio::test(start_paused = true)]
async fn turns_and_places_do_not_wait_for_each_other() {
    let (service, accounts) = (with_deposits(6).await, Accounts::default());
    let route = Route::with(accounts.clone(), deposit)
        .max_in_flight(1)
        .one_at_a_time_by(|deposit| deposit.account);
    let listener = service
        .router("bank")
        .expect("a name")
        .route(route)
        .max_in_flight(64);
    let listener = listener.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 24);
    for account in 0..4 {
        assert_eq!(accounts.of(account).begun, Vec::from_iter(0..6));
    }
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn messages_whose_payload_is_elsewhere_have_turns_too() {
    let (service, accounts) = (testing::service().await, Accounts::default());
    let statements = (0..6).map(|number| Statement {
        account: number % 2,
        number,
        text: "x".repeat(200_000),
    });
    service.submit_all(statements).await.expect("stored");
    let handler = async |accounts: Accounts, statement: Received<Statement>| {
        assert_eq!(statement.text.len(), 200_000);
        accounts.handle(statement.account, statement.number).await;
    };
    let listener = service
        .listener_with(accounts.clone(), handler)
        .one_at_a_time_by(|statement| statement.account)
        .start()
        .expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 6);
    assert_eq!((accounts.of(0).most, accounts.of(1).most), (1, 1));
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_no_two_messages_of_a_key() {
    let (service, accounts) = (with_deposits(5).await, Accounts::default());
    let seen = accounts.clone();
    let handler = batch(move |deposits: Batch<Deposit>| {
        let accounts = seen.clone();
        async move {
            for deposit in &deposits {
                accounts.begin(deposit.account, deposit.number);
            }
            tokio::time::sleep(SECOND).await;
            deposits.iter().for_each(|one| accounts.end(one.account));
        }
    });
    let listener = service
        .listener(handler)
        .max_in_flight(200)
        .one_at_a_time_by(|deposit| deposit.account)
        .start()
        .expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 20);
    for account in 0..4 {
        let account = accounts.of(account);
        assert_eq!((account.most, account.begun), (1, vec![0, 1, 2, 3, 4]));
    }
    stop(listener).await;
}

/// Several tasks receive at a time, and the first messages of each receive take long to decode.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn their_order_is_that_of_the_receives_of_several_tasks() {
    let (service, accounts) = (testing::service().await, Accounts::default());
    let deposits = (0..64).map(|number| Deposit { account: 0, number });
    service.submit_all(deposits).await.expect("stored");
    let handler = async |accounts: Accounts, deposit: Received<Deposit>| {
        accounts.begin(0, deposit.number);
        tokio::task::yield_now().await;
        accounts.end(0);
    };
    let listener = service
        .listener_with(accounts.clone(), handler)
        .tasks(8)
        .batch(4)
        .max_in_flight(256)
        .one_at_a_time_by(|deposit| {
            std::thread::sleep(SECOND / 500 * (4 - deposit.number % 4));
            deposit.account
        })
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    let account = accounts.of(0);
    assert_eq!((account.most, account.begun), (1, Vec::from_iter(0..64)));
    stop(listener).await;
}

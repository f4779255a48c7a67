//! Services whose queues are spread over shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::Backend;
use queue_runtime::error::Operation;
use queue_runtime::meter::TransactionKind;
use queue_runtime::policy::StorageRetry;
use queue_runtime::receive::{AcceptError, AcceptErrorKind};
use queue_runtime::service::{ConnectError, ConnectErrorKind};
use queue_runtime::sharded::Shards;
use queue_runtime::testing::{Fault, TokioClock};
use queue_runtime::{Disposition, ErrorKind, Message, QueueService, Received, RetryPolicy};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::support::shards::{CustomerOrder, QUEUE, World, drain, orders};

/// It has no key.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "events")]
struct Event(u32);

#[tokio::test(start_paused = true)]
async fn a_program_needs_no_change() {
    let world = World::new(2);
    let service = world.service(4).await;
    let queue = service.any_queue("orders").expect("a name");
    queue.create().await.expect("created");
    service.submit_all(orders(0..200)).await.expect("submitted");
    let counts = world.counts().await;
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert_eq!(counts.values().sum::<usize>(), 200);
    let properties = queue.properties().await.expect("properties");
    assert_eq!(properties.approximate_count, 200);

    let listener = service
        .listener(
            async |order: Received<CustomerOrder>| match order.number % 10 {
                0 => Disposition::retry("never"),
                _ => Disposition::complete(),
            },
        )
        .retry(RetryPolicy::fixed(Duration::from_secs(1)));
    let info = listener
        .until_empty()
        .start()
        .expect("starts")
        .drained()
        .await
        .info;
    assert_eq!((info.completed, info.poisoned), (180, 20));
    let puts = service
        .meter()
        .queue(QUEUE)
        .expect("a name")
        .of(TransactionKind::Put);
    assert_eq!(puts, 200, "they are counted for the queue as a whole");
    let poison = service.any_queue("orders-poison").expect("a name");
    let redriven = poison.redrive().run().await.expect("redriven");
    assert_eq!(redriven.redriven, 20);
    assert_eq!(drain(&service).await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn unique_messages_are_on_the_shards_of_their_keys_like_others() {
    let (plain, unique) = (World::new(1), World::new(1));
    let service = plain.service(4).await;
    service.submit_all(orders(0..50)).await.expect("submitted");
    let service = unique.service(4).await;
    for order in orders(0..50) {
        let submission = service.submit(order).unique_until_settled();
        submission.await.expect("submitted");
    }
    let counts = unique.counts().await;
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert_eq!(counts, plain.counts().await);
}

#[tokio::test(start_paused = true)]
async fn messages_of_one_key_share_a_shard_and_packs_are_of_one_shard() {
    for packed in [false, true] {
        let world = World::new(4);
        let service = world.service(4).await;
        let submission = service.submit_all(orders(0..200));
        let submitted = if packed {
            submission.packed().await
        } else {
            submission.await
        };
        let ids: BTreeSet<_> = submitted
            .expect("submitted")
            .into_iter()
            .map(|one| one.id)
            .collect();
        assert_eq!(ids.len(), 200);
        let mut shards: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
        for (number, account) in world.accounts.iter().enumerate() {
            let (clock, one): (_, Arc<dyn Backend>) =
                (TokioClock::new(), Arc::new(account.clone()));
            let alone = QueueService::with_backend(one)
                .clock(Arc::new(clock))
                .on_current_runtime();
            let alone = alone.connect().await.expect("connects");
            for name in account.list_queues("orders-s").await.expect("listed") {
                let queue = alone
                    .queue_named::<CustomerOrder>(name.as_str())
                    .expect("a name");
                while let Some(order) = queue.accept().await.expect("accepts") {
                    shards.entry(order.customer).or_default().insert(number);
                    order.complete().await.expect("completed");
                }
            }
        }
        assert_eq!(shards.len(), 50);
        assert!(
            shards.values().all(|shards| shards.len() == 1),
            "{shards:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn results_of_a_packed_submission_are_in_the_order_given() {
    let world = World::new(2);
    let service = world.service(8).await;
    let submission = service.submit_all(orders(0..100)).packed();
    let submitted = submission.await.expect("submitted");
    let messages: usize = world.counts().await.values().sum();
    assert!(messages <= 8, "one pack a shard: {messages}");
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let handled = Arc::clone(&seen);
    let listener = service.listener(move |order: Received<CustomerOrder>| {
        let id = order.envelope().id.clone();
        handled.lock().expect("held").insert(order.number, id);
        async {}
    });
    let _ = listener
        .until_empty()
        .start()
        .expect("starts")
        .drained()
        .await;
    let given: Vec<_> = seen.lock().expect("held").values().cloned().collect();
    let submitted: Vec<_> = submitted.into_iter().map(|one| one.id).collect();
    assert_eq!(submitted, given);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_down_holds_up_no_other() {
    let world = World::new(4);
    let service = world.service(4).await;
    service.submit_all(orders(0..200)).await.expect("submitted");
    let on_last = world.counts().await[&3];
    let down = &world.accounts[3];
    down.fail_every(Operation::Receive, Fault::Refused(ErrorKind::Unreachable));
    let handled = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&handled);
    let listener = service.listener(move |order: Received<CustomerOrder>| {
        seen.lock().expect("held").insert(order.number);
        async {}
    });
    let listener = listener.start().expect("starts");
    sleep(Duration::from_secs(60)).await;
    let count = handled.lock().expect("held").len();
    assert_eq!(count, 200 - on_last, "those of the others are handled");
    let asked = down.injected(Operation::Receive);
    assert!(
        (3..=12).contains(&asked),
        "it is asked after growing pauses: {asked} in a minute"
    );

    down.heal();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(handled.lock().expect("held").len(), 200, "nothing is lost");
    listener.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_empty_only_if_all_shards_have_answered() {
    let world = World::new(4);
    let service = world.service(4).await;
    service.submit_all(orders(0..50)).await.expect("submitted");
    let slow = Fault::Delayed(Duration::from_secs(8));
    for account in &world.accounts {
        account.fail_sometimes(0.3, Operation::Receive, slow.clone());
    }
    let mut numbers = BTreeSet::new();
    loop {
        match service.accept::<CustomerOrder>().await {
            Ok(Some(order)) => {
                assert!(numbers.insert(order.number), "twice: {}", order.number);
                order.complete().await.expect("completed");
            }
            Ok(None) => break,
            // One was slow twice. It is asked again after a pause.
            Err(AcceptError {
                kind: AcceptErrorKind::Storage(error),
                ..
            }) if error.kind() == ErrorKind::Timeout => {
                sleep(Duration::from_secs(30)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(numbers.len(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_never_answers_is_an_error_and_holds_up_no_other() {
    let world = World::new(4);
    let service = world.service(4).await;
    service.submit(Event(0)).await.expect("submitted");
    let accept = || {
        let service = service.clone();
        async move { service.accept::<Event>().await }
    };
    let first = accept().await.expect("received").expect("just submitted");
    first.complete().await.expect("completed");
    let hung = &world.accounts[2];
    hung.fail_every(Operation::Receive, Fault::Stalled);
    let refused = accept().await.expect_err("one has not answered");
    let AcceptErrorKind::Storage(refused) = refused.kind else {
        panic!("{refused:?}")
    };
    assert_eq!(refused.kind(), ErrorKind::Timeout);
    assert!(refused.to_string().contains("shard 2"), "{refused}");
    let accepted = accept().await.expect("it is left out for a while");
    assert!(accepted.is_none());

    // While it is waited for again, another one gets a message.
    sleep(Duration::from_secs(30)).await;
    let waiting = tokio::spawn(accept());
    sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished());
    let submitted = Instant::now();
    let events = (1..5).map(Event);
    service.submit_all(events).await.expect("submitted");
    let accepted = waiting.await.expect("no panic").expect("received");
    assert!(accepted.is_some());
    assert!(
        submitted.elapsed() < Duration::from_secs(5),
        "{:?}",
        submitted.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_without_a_key_goes_to_another_shard_than_one_that_is_down() {
    let world = World::new(4);
    let service = world.service(4).await;
    service.submit(Event(0)).await.expect("submitted");
    world.accounts[2].fail_every(Operation::Put, Fault::Throttled(None));
    for number in 1..20 {
        service
            .submit(Event(number))
            .await
            .expect("another shard takes it");
    }
    assert!(world.accounts[2].injected(Operation::Put) > 0);
    let properties = service
        .any_queue("events")
        .expect("a name")
        .properties()
        .await;
    assert_eq!(properties.expect("properties").approximate_count, 20);
}

#[tokio::test(start_paused = true)]
async fn programs_that_disagree_about_the_accounts_are_refused() {
    let connect = async |url: &str| {
        let service = QueueService::builder(url).on_current_runtime();
        service.connect().await
    };
    let kept = connect("sharded:4|memory:disagree-a|memory:disagree-b")
        .await
        .expect("connects");
    for url in [
        "sharded:4|memory:disagree-a",
        "sharded:4|memory:disagree-a|memory:disagree-c",
    ] {
        let refused = connect(url).await.expect_err("the accounts differ");
        let text = refused.to_string();
        assert!(
            text.contains("version 1") && text.contains("disagree-b"),
            "{text}"
        );
    }
    let more = "sharded:4|memory:disagree-a|memory:disagree-b|memory:disagree-c";
    connect(more).await.expect("it knows more than are in use");
    for (url, problem) in [
        ("sharded:four|memory:a", "no number of shards"),
        ("sharded:4", "names no account"),
    ] {
        match connect(url).await.expect_err("it is refused").kind {
            ConnectErrorKind::Url { problem: found, .. } => {
                assert!(found.contains(problem), "{found}")
            }
            other => panic!("{other}"),
        }
    }
    let refused = connect("sharded:0|memory:a").await.expect_err("no shards");
    assert!(refused.to_string().contains("1 to 256"), "{refused}");
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_is_slow_at_the_start_is_asked_again() {
    let world = World::new(2);
    let account = &world.accounts[0];
    let connect = async |policy| {
        let accounts = world.accounts.clone().into_iter();
        let accounts = accounts.map(|account| Arc::new(account) as Arc<dyn Backend>);
        let service = QueueService::sharded(accounts, Shards::new(4))
            .clock(Arc::new(TokioClock::new()))
            .storage_retry(policy)
            .on_current_runtime();
        service.connect().await
    };
    let fail = |calls| {
        let slow = Fault::Refused(ErrorKind::Timeout);
        account.fail_next(calls, Operation::Properties, slow);
    };
    fail(1);
    match connect(StorageRetry::never()).await {
        Err(ConnectError {
            kind: ConnectErrorKind::Storage(error),
            ..
        }) => assert_eq!(error.kind(), ErrorKind::Timeout),
        other => panic!("{other:?}"),
    }
    fail(2);
    let connected = connect(StorageRetry::default()).await;
    connected.expect("connects at the third try");
}

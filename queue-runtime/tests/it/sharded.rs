//! Services whose queues are spread over shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::meter::TransactionKind;
use queue_runtime::sharded::shard_of;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{
    ConnectError, Disposition, ErrorKind, Message, Operation, QueueName, QueueService, Received,
    RetryPolicy, StorageRetry,
};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[message(
    queue = "orders",
    visibility_timeout = "30s",
    poison_threshold = 3,
    key_scope = "global"
)]
struct Order {
    #[message(key)]
    customer: u32,
    number: u32,
}

const QUEUE: QueueName = QueueName::from_static("orders");

/// Storages in memory, with faults.
struct World {
    accounts: Vec<FaultInjector>,
}

impl World {
    fn new(accounts: usize) -> Self {
        let account =
            |_| FaultInjector::new(Arc::new(MemoryBackend::new(Arc::new(TokioClock::new()))));
        Self {
            accounts: (0..accounts).map(account).collect(),
        }
    }

    async fn service(&self, shards: u32) -> QueueService {
        let accounts = self.accounts.iter().map(|account| {
            let account: Arc<dyn Backend> = Arc::new(account.clone());
            account
        });
        let service = QueueService::sharded(accounts, shards)
            .clock(Arc::new(TokioClock::new()))
            .storage_retry(StorageRetry::never())
            .on_current_runtime();
        service.connect().await.expect("connects")
    }

    /// How many messages each shard of the queue has.
    async fn counts(&self) -> BTreeMap<u32, u64> {
        let mut counts = BTreeMap::new();
        for account in &self.accounts {
            for name in account.list_queues("orders-s").await.expect("listed") {
                let (queue, shard) = shard_of(&name).expect("a shard");
                assert_eq!(queue, QUEUE);
                let properties = account.properties(&name).await.expect("properties");
                counts.insert(shard, properties.approximate_count);
            }
        }
        counts
    }
}

fn orders(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Order> {
    numbers.map(|number| Order {
        customer: number % 50,
        number,
    })
}

/// Handles what is on the queue until it is empty, and returns how often each order was completed.
async fn drain(service: &QueueService) -> BTreeMap<u32, u32> {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let handled = Arc::clone(&seen);
    let listener = service.listener(move |order: Received<Order>| {
        *handled
            .lock()
            .expect("held")
            .entry(order.number)
            .or_default() += 1;
        async {}
    });
    let _ = listener
        .until_empty()
        .start()
        .expect("starts")
        .drained()
        .await;
    let seen = seen.lock().expect("held");
    seen.clone()
}

fn once(numbers: std::ops::Range<u32>) -> BTreeMap<u32, u32> {
    numbers.map(|number| (number, 1)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_program_needs_no_change() {
    let world = World::new(2);
    let service = world.service(4).await;
    let queue = service.any_queue("orders").expect("a name");
    queue.create().await.expect("created");
    service.submit_all(orders(0..200)).await.expect("submitted");
    let counts = world.counts().await;
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert_eq!(counts.values().sum::<u64>(), 200);
    let properties = queue.properties().await.expect("properties");
    assert_eq!(properties.approximate_count, 200);

    let listener = service
        .listener(async |order: Received<Order>| match order.number % 10 {
            0 => Disposition::retry("never"),
            _ => Disposition::complete(),
        })
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
        .queue(QUEUE.as_str())
        .of(TransactionKind::Put);
    assert_eq!(puts, 200, "they are counted for the queue as a whole");
    let poison = service.any_queue("orders-poison").expect("a name");
    let redriven = poison.redrive().run().await.expect("redriven");
    assert_eq!(redriven.redriven, 20);
    assert_eq!(drain(&service).await.len(), 20);
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
                let queue = alone.queue_named::<Order>(name.as_str()).expect("a name");
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
    let messages: u64 = world.counts().await.values().sum();
    assert!(messages <= 8, "one pack a shard: {messages}");
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let handled = Arc::clone(&seen);
    let listener = service.listener(move |order: Received<Order>| {
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
    let listener = service.listener(move |order: Received<Order>| {
        seen.lock().expect("held").insert(order.number);
        async {}
    });
    let listener = listener.start().expect("starts");
    sleep(Duration::from_secs(60)).await;
    let count = handled.lock().expect("held").len() as u64;
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
async fn a_message_without_a_key_goes_to_another_shard_than_one_that_is_down() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(queue = "events")]
    struct Event(u32);

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
async fn the_number_of_shards_changes_while_programs_use_them() {
    let world = World::new(2);
    let (producer, consumer) = (world.service(4).await, world.service(4).await);
    producer
        .submit_all(orders(0..100))
        .await
        .expect("submitted");
    let shards = producer.shards().expect("it has shards");
    let grown = shards.resize(8).await.expect("resized");
    assert_eq!((grown.before, grown.shards, grown.retired), (4, 8, 0));
    // The consumer does not know yet, and the next program is configured as the first ones were.
    producer
        .submit_all(orders(100..200))
        .await
        .expect("submitted");
    let late = world.service(4).await;
    assert_eq!(late.shards().expect("it has shards").shards(), 8);
    late.submit_all(orders(200..300)).await.expect("submitted");
    assert_eq!(world.counts().await.len(), 8);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(drain(&consumer).await, once(0..300));

    consumer
        .submit_all(orders(0..100))
        .await
        .expect("submitted");
    let shrunk = shards.resize(2).await.expect("resized");
    assert_eq!((shrunk.shards, shrunk.retired), (2, 6));
    // It puts on shards that are not in use any more, for a minute.
    consumer
        .submit_all(orders(100..200))
        .await
        .expect("submitted");
    sleep(Duration::from_secs(61)).await;
    consumer
        .submit_all(orders(200..300))
        .await
        .expect("submitted");
    let retired = shards.retired().await.expect("looked at");
    assert_eq!(retired.len(), 6);
    assert!(retired.iter().all(|shard| !shard.is_drained), "{retired:?}");
    assert_eq!(drain(&late).await, once(0..300));
    let retired = shards.retired().await.expect("looked at");
    assert!(retired.iter().all(|shard| shard.is_drained), "{retired:?}");
}

#[tokio::test(start_paused = true)]
async fn a_put_to_a_shard_that_was_deleted_is_placed_again() {
    let world = World::new(1);
    let (stopped, service) = (world.service(4).await, world.service(4).await);
    stopped.submit_all(orders(0..50)).await.expect("submitted");
    service
        .shards()
        .expect("it has shards")
        .resize(2)
        .await
        .expect("resized");
    assert_eq!(drain(&service).await, once(0..50));
    for shard in [2, 3] {
        let name = QueueName::new(&format!("orders-s{shard}")).expect("a name");
        world.accounts[0]
            .delete_queue(&name)
            .await
            .expect("deleted");
    }
    stopped
        .submit_all(orders(50..100))
        .await
        .expect("placed again");
    stopped
        .submit(Order {
            customer: 3,
            number: 100,
        })
        .await
        .expect("placed");
    assert_eq!(world.counts().await.len(), 2, "no shard was created");
    assert_eq!(drain(&service).await, once(50..101));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_put_by_what_was_read_more_than_two_minutes_ago() {
    let world = World::new(2);
    let service = world.service(4).await;
    service.submit_all(orders(0..10)).await.expect("submitted");
    world.accounts[0].fail_every(
        Operation::Properties,
        Fault::Refused(ErrorKind::Unreachable),
    );
    sleep(Duration::from_secs(90)).await;
    service
        .submit_all(orders(10..20))
        .await
        .expect("it is trusted still");
    sleep(Duration::from_secs(31)).await;
    let refused = service
        .submit_all(orders(20..30))
        .await
        .expect_err("it is too old");
    let text = refused.to_string();
    assert!(
        text.contains("which shards are in use was not read for"),
        "{text}"
    );
    world.accounts[0].heal();
    sleep(Duration::from_secs(2)).await;
    service
        .submit_all(orders(20..30))
        .await
        .expect("it was read again");
}

#[tokio::test(start_paused = true)]
async fn one_program_at_a_time_changes_the_number() {
    let world = World::new(1);
    let (one, other) = (world.service(2).await, world.service(2).await);
    one.submit_all(orders(0..10)).await.expect("submitted");
    let (one, other) = (
        one.shards().expect("shards"),
        other.shards().expect("shards"),
    );
    let (first, second) = tokio::join!(one.resize(4), other.resize(8));
    let done = [&first, &second]
        .into_iter()
        .filter(|resized| resized.is_ok())
        .count();
    assert!(done >= 1, "{first:?} {second:?}");
    for refused in [first, second].into_iter().filter_map(Result::err) {
        assert_eq!(refused.kind(), ErrorKind::Conflict);
    }
    for number in [0, 257] {
        let refused = one.resize(number).await.expect_err("out of range");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
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
        match connect(url).await.expect_err("it is refused") {
            ConnectError::Url { problem: found, .. } => assert!(found.contains(problem), "{found}"),
            other => panic!("{other}"),
        }
    }
    let refused = connect("sharded:0|memory:a").await.expect_err("no shards");
    assert!(refused.to_string().contains("1 to 256"), "{refused}");
    drop(kept);
}

/// A program with its own way to each account, so that it can be killed.
struct Program {
    service: QueueService,
    ways: Vec<FaultInjector>,
}

impl Program {
    async fn start(accounts: &[Arc<dyn Backend>]) -> Self {
        let ways: Vec<_> = accounts
            .iter()
            .map(|account| FaultInjector::new(Arc::clone(account)))
            .collect();
        let accounts = ways
            .iter()
            .map(|way| Arc::new(way.clone()) as Arc<dyn Backend>);
        let service = QueueService::sharded(accounts, 4)
            .clock(Arc::new(TokioClock::new()))
            .on_current_runtime();
        let service = service.connect().await.expect("connects");
        Self { service, ways }
    }

    /// Nothing that it does from now on is carried out.
    fn kill(self) {
        for way in &self.ways {
            for operation in [
                Operation::Receive,
                Operation::Update,
                Operation::Delete,
                Operation::Put,
                Operation::Apply,
                Operation::Properties,
            ] {
                way.fail_every(operation, Fault::Stalled);
            }
        }
        for listener in self.service.listeners() {
            drop(listener.stop_on_drop());
        }
    }
}

/// The numbers that were acknowledged to producers, and those that handlers have seen.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<(BTreeSet<u32>, BTreeSet<u32>)>>);

impl Seen {
    fn acknowledged(&self, number: u32) {
        self.0.lock().expect("held").0.insert(number);
    }

    fn consume(&self, program: &Program) {
        let seen = self.clone();
        let listener = program.service.listener(move |order: Received<Order>| {
            seen.0.lock().expect("held").1.insert(order.number);
            async {}
        });
        listener.start().expect("starts");
    }

    fn produce(&self, program: &Program, numbers: Arc<AtomicU32>) {
        let (seen, service) = (self.clone(), program.service.clone());
        tokio::spawn(async move {
            loop {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                let customer = number % 50;
                if service.submit(Order { customer, number }).await.is_ok() {
                    seen.acknowledged(number);
                }
                sleep(Duration::from_millis(100)).await;
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_by_a_resize_under_kills_with_a_producer_stopped_for_minutes() {
    const STEP: Duration = Duration::from_secs(20);

    let account = |_| Arc::new(MemoryBackend::new(Arc::new(TokioClock::new()))) as Arc<dyn Backend>;
    let accounts: Vec<_> = (0..2).map(account).collect();
    let (seen, numbers) = (Seen::default(), Arc::new(AtomicU32::new(0)));
    let admin = Program::start(&accounts).await;
    let queue = admin.service.any_queue("orders").expect("a name");
    queue.create().await.expect("created");

    // It is stopped while it puts on a shard that goes out of use meanwhile.
    let stopped = Program::start(&accounts).await;
    let late: Vec<u32> = (1_000_000..1_000_020).collect();
    for way in &stopped.ways {
        way.fail_next(20, Operation::Put, Fault::Delayed(Duration::from_secs(300)));
    }
    for number in late.clone() {
        let (seen, service) = (seen.clone(), stopped.service.clone());
        tokio::spawn(async move {
            let order = Order {
                customer: number,
                number,
            };
            if service.submit(order).await.is_ok() {
                seen.acknowledged(number);
            }
        });
    }

    let mut programs = Vec::new();
    for round in 0..36 {
        let program = Program::start(&accounts).await;
        if round % 2 == 0 {
            seen.consume(&program);
        } else {
            seen.produce(&program, Arc::clone(&numbers));
        }
        programs.push(program);
        match round {
            6 => drop(
                admin
                    .service
                    .shards()
                    .expect("shards")
                    .resize(8)
                    .await
                    .expect("grown"),
            ),
            12 => drop(
                admin
                    .service
                    .shards()
                    .expect("shards")
                    .resize(2)
                    .await
                    .expect("shrunk"),
            ),
            _ => {}
        }
        sleep(STEP).await;
        if programs.len() > 4 {
            programs.remove(0).kill();
        }
    }
    for program in programs {
        program.kill();
    }
    sleep(Duration::from_secs(120)).await;
    let last = Program::start(&accounts).await;
    let _ = drain(&last.service)
        .await
        .into_iter()
        .map(|(number, _)| seen.0.lock().expect("held").1.insert(number))
        .count();
    let (acknowledged, handled) = &*seen.0.lock().expect("held");
    assert!(acknowledged.len() > 5_000, "{}", acknowledged.len());
    let late = late
        .iter()
        .filter(|number| acknowledged.contains(number))
        .count();
    assert_eq!(late, 20, "the stopped producer has gone on");
    let lost: Vec<_> = acknowledged.difference(handled).collect();
    assert!(
        lost.is_empty(),
        "{} of {}: {lost:?}",
        lost.len(),
        acknowledged.len()
    );
    for account in &accounts {
        for name in account.list_queues("orders-s").await.expect("listed") {
            let properties = account.properties(&name).await.expect("properties");
            assert_eq!(properties.approximate_count, 0, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_submitted_once_while_the_number_of_shards_changes() {
    let world = World::new(1);
    let (one, other) = (world.service(4).await, world.service(4).await);
    let shards = one.shards().expect("it has shards");
    let order = |customer| Order {
        customer,
        number: 0,
    };
    for customer in 0..30 {
        match customer {
            10 => drop(shards.resize(8).await.expect("grown")),
            20 => drop(shards.resize(2).await.expect("shrunk")),
            _ => {}
        }
        let hour = Duration::from_secs(3600);
        let first = one.submit(order(customer)).unique_for(hour).await;
        assert!(!first.expect("submitted").duplicate);
        for earlier in [0, customer / 2, customer] {
            let again = other.submit(order(earlier)).unique_for(hour).await;
            assert!(
                again.expect("found").duplicate,
                "{earlier} after {customer}"
            );
        }
    }
    let properties = one.any_queue("orders").expect("a name").properties().await;
    assert_eq!(properties.expect("properties").approximate_count, 30);
}

//! Changes of the number of shards, while programs use them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::error::Operation;
use queue_runtime::recurring::Missed;
use queue_runtime::sharded::Shards;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{ErrorKind, QueueName, QueueService, Received};
use tokio::time::sleep;

use crate::schedules::fixture::{expected, memory, schedule, ticks, until};
use crate::support::shards::{CustomerOrder, World, drain, once, orders};

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
        let service = QueueService::sharded(accounts, Shards::new(4))
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
        let listener = program
            .service
            .listener(move |order: Received<CustomerOrder>| {
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
                if service
                    .submit(CustomerOrder { customer, number })
                    .await
                    .is_ok()
                {
                    seen.acknowledged(number);
                }
                sleep(Duration::from_millis(100)).await;
            }
        });
    }
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
async fn the_number_changes_when_versions_have_reached_their_last() {
    let world = World::new(2);
    let (one, other) = (world.service(4).await, world.service(4).await);
    let name = QueueName::from_static("shards");
    let account = &world.accounts[0];
    let mut metadata = account.metadata(&name).await.expect("read");
    metadata
        .insert("shardsepoch", &u64::MAX.to_string())
        .expect("valid");
    account.set_metadata(&name, &metadata).await.expect("set");
    let late = world.service(4).await;
    for (number, programs) in [
        (8, [&one, &other]),
        (2, [&late, &other]),
        (4, [&other, &one]),
    ] {
        let by = programs[0].shards().expect("it has shards");
        assert_eq!(by.resize(number).await.expect("resized").shards, number);
        sleep(Duration::from_secs(61)).await;
        for service in [&one, &other, &late] {
            service.submit_all(orders(0..50)).await.expect("submitted");
            let known = service.shards().expect("it has shards").shards();
            assert_eq!(known, number);
        }
        let handled = drain(programs[1]).await;
        assert_eq!(handled.values().sum::<u32>(), 150);
    }
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
        .submit(CustomerOrder {
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
    // The first holds the lock while it writes.
    world.accounts[0].fail_next(
        1,
        Operation::SetMetadata,
        Fault::Delayed(Duration::from_secs(5)),
    );
    let later = async {
        sleep(Duration::from_secs(1)).await;
        other.resize(8).await
    };
    let (first, second) = tokio::join!(one.resize(4), later);
    assert_eq!(first.expect("it was the first").epoch, 2);
    let refused = second.expect_err("the first is not done");
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(other.resize(8).await.expect("it is free again").before, 4);
    for number in [0, 257] {
        let refused = one.resize(number).await.expect_err("out of range");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test(start_paused = true)]
async fn two_programs_that_make_the_lock_at_once_do_not_both_hold_it() {
    let world = World::new(1);
    let (one, other) = (world.service(2).await, world.service(2).await);
    let (one, other) = (
        one.shards().expect("shards"),
        other.shards().expect("shards"),
    );
    // The other finds no lock, and is slow to make it; the first makes one meanwhile, and is slow to write.
    for (operation, seconds) in [(Operation::Put, 2), (Operation::SetMetadata, 5)] {
        let delayed = Fault::Delayed(Duration::from_secs(seconds));
        world.accounts[0].fail_next(1, operation, delayed);
    }
    let (second, first) = tokio::join!(other.resize(8), one.resize(4));
    assert_eq!(first.expect("it was the first").shards, 4);
    let refused = second.expect_err("the first is not done");
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(other.resize(8).await.expect("it is free again").before, 4);
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
            let order = CustomerOrder {
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
    let left = drain(&last.service).await;
    let (acknowledged, mut handled) = std::mem::take(&mut *seen.0.lock().expect("held"));
    handled.extend(left.into_keys());
    assert!(acknowledged.len() > 5_000, "{}", acknowledged.len());
    let late = late
        .iter()
        .filter(|number| acknowledged.contains(number))
        .count();
    assert_eq!(late, 20, "the stopped producer has gone on");
    let lost: Vec<_> = acknowledged.difference(&handled).collect();
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
    let order = |customer| CustomerOrder {
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

#[tokio::test(start_paused = true)]
async fn each_tick_is_submitted_once_while_the_number_of_shards_changes() {
    let clock = TokioClock::new();
    let backend: Arc<dyn Backend> = memory(&clock);
    let connect = || {
        let service = QueueService::sharded([Arc::clone(&backend)], Shards::new(4));
        let service = service.clock(Arc::new(clock.clone()));
        service.on_current_runtime().connect()
    };
    let (one, other) = tokio::join!(connect(), connect());
    let services = [one.expect("connects"), other.expect("connects")];
    let running = services
        .each_ref()
        .map(|service| schedule(service, Missed::Once));
    for (time, number) in [("08", 8), ("16", 2)] {
        until(&clock, &format!("2026-01-01T{time}:02:00Z")).await;
        let shards = services[0].shards().expect("shards");
        shards.resize(number).await.expect("resized");
    }
    until(&clock, "2026-01-02T00:00:00Z").await;
    for schedule in running {
        schedule.stop().await;
    }
    let mut submitted = ticks(&services[1]).await;
    submitted.sort();
    let day = expected("2026-01-01T00:05:00Z", "2026-01-02T00:00:00Z");
    assert_eq!(submitted, day);
}

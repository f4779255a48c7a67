//! A queue that an operator pauses for everybody, by a mark in its metadata.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{Backend, MemoryBackend, Metadata};
use queue_runtime::listener::{DrainEnd, ListenerPhase, Route};
use queue_runtime::notify::{LocalNotifier, Writers};
use queue_runtime::policy::{ExponentialIdle, TaskRange};
use queue_runtime::settings::{PAUSED, PAUSED_REASON, POISON_THRESHOLD, Paused, paused};
use queue_runtime::testing::{self, Fault, FaultInjector, TokioClock};
use queue_runtime::{
    AnyQueue, Batch, ErrorKind, ListenerBuilder, ListenerEvent, ListenerEventKind, ListenerHandle,
    Operation, QueueName, QueueService, Received, Result, batch, blocking,
};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, sleep, timeout};

use crate::support::jobs::{Job, completed, submit_jobs};
use crate::support::shards::{Order, World};
use crate::support::{NEVER, count, events, stop};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// Of storage where reading the metadata costs little.
const LAG: Duration = Duration::from_secs(5);
const REASON: Option<&str> = Some("the warehouse is closed");

/// Two services on one storage: one that listens, and that of the operator and of those who submit.
struct Pair {
    worker: QueueService,
    /// The calls of the worker.
    faults: FaultInjector,
    office: QueueService,
    jobs: AnyQueue,
}

impl Pair {
    /// The office announces to the worker what it submits.
    async fn new() -> Self {
        Self::announced_by(None).await
    }

    /// The worker finds by polling what the office submits.
    async fn silent() -> Self {
        let other = LocalNotifier::new(Writers::OtherProcesses);
        Self::announced_by(Some(Arc::new(other))).await
    }

    async fn announced_by(office: Option<Arc<LocalNotifier>>) -> Self {
        let memory = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
        let faults = FaultInjector::new(memory.clone());
        let worker = connect(Arc::new(faults.clone())).await;
        let office = match office {
            None => connect(memory).await,
            Some(notifier) => connect(Arc::new(Unheard(memory, notifier))).await,
        };
        submit_jobs(&office, 0).await;
        let jobs = office.any_queue("jobs").expect("a name");
        Self {
            worker,
            faults,
            office,
            jobs,
        }
    }

    async fn submit(&self, jobs: usize) {
        submit_jobs(&self.office, jobs).await;
    }

    async fn pause(&self) {
        self.jobs.pause(REASON).await.expect("paused");
    }

    async fn resume(&self) {
        let was = self.jobs.resume().await.expect("resumed");
        assert!(was.is_some(), "it was paused");
    }

    /// The numbers of receives, and of reads of properties or metadata, of the worker.
    fn calls(&self) -> (usize, usize) {
        let calls = [Operation::Receive, Operation::Properties];
        let [receives, reads] = calls.map(|operation| self.faults.calls(operation));
        (receives, reads)
    }
}

async fn connect(backend: Arc<dyn Backend>) -> QueueService {
    let service = QueueService::with_backend(backend).clock(Arc::new(TokioClock::new()));
    let service = service.on_current_runtime().connect();
    service.await.expect("connects")
}

/// The same storage with another notifier.
#[derive(Debug)]
struct Unheard(Arc<MemoryBackend>, Arc<LocalNotifier>);

#[async_trait]
impl Backend for Unheard {
    forward_backend!(self => self.0;
        capabilities queue_uri partition results payload_store transactions create_queue delete_queue list_queues properties
        metadata set_metadata put put_if receive peek attachment browse update delete clear apply);

    fn notifier(&self) -> Option<Arc<dyn queue_runtime::notify::Notifier>> {
        let notifier: Arc<LocalNotifier> = Arc::clone(&self.1);
        Some(notifier)
    }
}

/// A listener whose handler takes a second, and accepts first attempts only.
fn listen(service: &QueueService, tasks: impl Into<TaskRange>) -> ListenerBuilder<Job> {
    let listener = service.listener(async |job: Received<Job>| {
        assert_eq!(job.attempt(), 1);
        sleep(SECOND).await;
    });
    // Few polls, so that their events do not push out the others.
    let idle = ExponentialIdle::up_to(30 * SECOND);
    listener.idle(idle).tasks(tasks).handler_timeout(NEVER)
}

fn start(listener: ListenerBuilder<Job>) -> (ListenerHandle, Receiver<ListenerEvent>) {
    let events = listener.events();
    (listener.start().expect("starts"), events)
}

/// The events of the pause that have been published.
fn told(events: &mut Receiver<ListenerEvent>) -> Vec<Option<Paused>> {
    let kinds = std::iter::from_fn(|| Some(events.try_recv().ok()?.kind));
    let told = kinds.filter_map(|kind| match kind {
        ListenerEventKind::QueuePaused(paused) => Some(Some(paused)),
        ListenerEventKind::QueueResumed => Some(None),
        _ => None,
    });
    told.collect()
}

fn metadata(entries: &[(&str, &str)]) -> Metadata {
    let mut metadata = Metadata::new();
    for (name, value) in entries {
        metadata.insert(name, value).expect("allowed");
    }
    metadata
}

#[tokio::test(start_paused = true)]
async fn a_mark_keeps_its_first_time_and_the_other_entries() {
    let service = testing::service().await;
    let jobs = service.any_queue("jobs").expect("a name");
    let missing = jobs.pause(None).await.expect_err("there is no queue");
    assert_eq!(missing.kind(), ErrorKind::QueueNotFound);
    jobs.create().await.expect("created");
    let others = metadata(&[(POISON_THRESHOLD, "3"), (PAUSED_REASON, "left behind")]);
    jobs.set_metadata(&others).await.expect("set");
    assert_eq!(jobs.paused().await.expect("read"), None);

    let first = jobs.pause(None).await.expect("paused");
    assert!(first.since.is_some() && first.reason.is_none(), "{first:?}");
    sleep(MINUTE).await;
    assert_eq!(jobs.pause(None).await.expect("is paused"), first);
    let again = jobs.pause(REASON).await.expect("is paused");
    assert_eq!(
        (again.since, again.reason.as_deref()),
        (first.since, REASON)
    );
    assert_eq!(jobs.pause(Some("")).await.expect("is paused"), again);
    assert_eq!(jobs.paused().await.expect("read"), Some(again.clone()));
    let properties = jobs.properties().await.expect("read");
    assert_eq!(paused(&properties.metadata), Some(again.clone()));
    assert_eq!(properties.metadata.find(POISON_THRESHOLD), Some("3"));
    let since = first.since.expect("a time");
    assert_eq!(
        again.to_string(),
        format!("paused since {since}: the warehouse is closed")
    );

    let refused = jobs.pause(Some("Überlauf")).await.expect_err("not ASCII");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.is_unsent(), "{refused}");

    assert_eq!(jobs.resume().await.expect("resumed"), Some(again));
    assert_eq!(jobs.resume().await.expect("is not paused"), None);
    let left = jobs.properties().await.expect("read").metadata;
    assert_eq!(left, metadata(&[(POISON_THRESHOLD, "3")]));

    let unreadable = metadata(&[(PAUSED, "yes")]);
    jobs.set_metadata(&unreadable).await.expect("set");
    let unknown = jobs.pause(None).await.expect("is paused");
    assert_eq!(
        (unknown.since, unknown.to_string()),
        (None, "paused".into())
    );
}

/// Whose metadata is overwritten by somebody else a number of times.
#[derive(Debug)]
struct Overwritten(MemoryBackend, std::sync::atomic::AtomicUsize);

#[async_trait]
impl Backend for Overwritten {
    forward_backend!(self => self.0;
        capabilities queue_uri partition notifier results payload_store transactions create_queue delete_queue list_queues
        properties metadata put put_if receive peek attachment browse update delete clear apply);

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let left = self.1.load(Relaxed);
        self.1.store(left.saturating_sub(1), Relaxed);
        match left {
            0 => self.0.set_metadata(queue, metadata).await,
            _ => Ok(()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_others_overwrite_is_written_again_and_given_up_after_three_times() {
    for overwritten in [2, 3] {
        let memory = MemoryBackend::new(Arc::new(TokioClock::new()));
        let storage = Overwritten(memory, overwritten.into());
        let service = connect(Arc::new(storage)).await;
        let jobs = service.any_queue("jobs").expect("a name");
        jobs.create().await.expect("created");
        let result = jobs.pause(None).await;
        let is_paused = jobs.paused().await.expect("read").is_some();
        match overwritten {
            2 => assert!(result.is_ok() && is_paused, "{result:?}"),
            _ => {
                let error = result.expect_err("it is never there");
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_service_obeys_within_the_lag_finishes_what_is_in_flight_and_goes_on_by_itself() {
    let world = Pair::new().await;
    world.submit(100).await;
    let (listener, mut seen) = start(listen(&world.worker, 2).max_in_flight(4));
    sleep(SECOND / 2).await;
    assert_eq!(listener.info().in_flight, 4);
    world.pause().await;
    // Its metadata was read less than the lag ago.
    sleep(LAG).await;
    let (receives, _) = world.calls();
    let received = listener.info().completed + listener.info().in_flight as u64;
    assert!((4..=24).contains(&received), "{received}");
    sleep(SECOND).await;
    let info = listener.info();
    assert_eq!((info.in_flight, info.completed), (0, received), "{info:?}");
    assert_eq!(info.released + info.unsettled, 0, "{info:?}");
    assert!(told(&mut seen).len() == 1 && info.queue_paused.is_some());

    world.submit(10).await;
    let (_, reads) = world.calls();
    sleep(10 * MINUTE).await;
    assert_eq!(world.calls().0, receives, "no receive is sent");
    // One of both tasks, each five seconds.
    let reads = world.calls().1 - reads;
    assert!((118..=121).contains(&reads), "{reads}");
    assert_eq!(listener.info().completed, received);

    world.resume().await;
    sleep(LAG).await;
    assert!(listener.info().in_flight > 0, "{:?}", listener.info());
    assert_eq!(listener.info().queue_paused, None);
    sleep(MINUTE).await;
    assert_eq!(listener.info().completed, 110);
    assert_eq!(told(&mut seen), [None]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_listener_that_is_woken_by_a_message_does_not_receive_it() {
    for tasks in [TaskRange::from(1), TaskRange::from(0..=2)] {
        let world = Pair::new().await;
        let (listener, mut seen) = start(listen(&world.worker, tasks));
        sleep(MINUTE).await;
        let active = tasks.min;
        assert_eq!(listener.info().tasks, active, "it is idle");
        world.pause().await;
        world.submit(3).await;
        // Also if it polls meanwhile, it is the announcement that comes first.
        sleep(SECOND / 100).await;
        assert_eq!(told(&mut seen).len(), 1);
        let (receives, _) = world.calls();
        for _ in 0..10 {
            world.submit(1).await;
            sleep(MINUTE).await;
        }
        assert_eq!(world.calls().0, receives, "no receive is sent");
        let info = listener.info();
        assert_eq!((info.completed, info.released), (0, 0), "{info:?}");
        // Somebody else may receive.
        let job = world.office.accept::<Job>().await.expect("accepted");
        let job = job.expect("there are some");
        job.complete().await.expect("completed");

        world.resume().await;
        sleep(LAG + 2 * SECOND).await;
        assert_eq!(listener.info().completed, 12);
        assert_eq!(told(&mut seen), [None]);
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_poll_that_nobody_announced_are_handed_back_once_and_uncounted() {
    let world = Pair::silent().await;
    let (listener, mut seen) = start(listen(&world.worker, 1));
    sleep(MINUTE).await;
    world.pause().await;
    world.submit(3).await;
    sleep(10 * MINUTE).await;
    let info = listener.info();
    assert_eq!((info.completed, info.released), (0, 3), "{info:?}");
    assert_eq!(told(&mut seen).len(), 1);
    world.resume().await;
    sleep(LAG + 2 * SECOND).await;
    // The handler has checked that each attempt was the first.
    let info = listener.info();
    assert_eq!((info.completed, info.retried), (3, 0), "{info:?}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn the_own_service_obeys_at_once() {
    let service = testing::service().await;
    submit_jobs(&service, 0).await;
    let jobs = service.any_queue("jobs").expect("a name");
    for tasks in [TaskRange::from(2), TaskRange::from(0..=2)] {
        let idle = ExponentialIdle::up_to(10 * MINUTE);
        let (listener, mut seen) = start(listen(&service, tasks).idle(idle).max_in_flight(1));
        sleep(10 * MINUTE).await;
        let before = Instant::now();
        let marked = jobs.pause(REASON).await.expect("paused");
        let is_marked = |event: &_| matches!(event, ListenerEventKind::QueuePaused(paused) if *paused == marked);
        events(&mut seen, 1, is_marked).await;
        assert_eq!(listener.info().queue_paused, Some(marked.clone()));
        submit_jobs(&service, 1).await;
        jobs.resume().await.expect("resumed");
        let resumed = |event: &_| matches!(event, ListenerEventKind::QueueResumed);
        events(&mut seen, 1, resumed).await;
        assert!(before.elapsed() < SECOND / 10, "{:?}", before.elapsed());
        // There is no room while this one is handled, and that is told too.
        sleep(SECOND / 2).await;
        assert_eq!(listener.info().in_flight, 1);
        jobs.pause(None).await.expect("paused");
        let paused = |event: &_| matches!(event, ListenerEventKind::QueuePaused(_));
        events(&mut seen, 1, paused).await;
        assert_eq!(listener.info().in_flight, 1);
        jobs.resume().await.expect("resumed");
        events(&mut seen, 1, resumed).await;
        sleep(SECOND).await;
        assert_eq!(listener.info().in_flight, 0);
        assert_eq!(listener.info().completed, 1);
        assert_eq!(told(&mut seen), []);
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn both_pauses_have_to_end() {
    let world = Pair::new().await;
    let jobs = world.worker.any_queue("jobs").expect("a name");
    let (listener, mut seen) = start(listen(&world.worker, 2));
    sleep(SECOND).await;
    for queue_first in [true, false] {
        jobs.pause(None).await.expect("paused");
        listener.pause();
        world.submit(1).await;
        let (receives, reads) = world.calls();
        sleep(10 * MINUTE).await;
        // Whatever the mark says, it would not receive.
        assert_eq!(world.calls(), (receives, reads));
        assert_eq!(listener.phase(), ListenerPhase::Paused);
        if queue_first {
            jobs.resume().await.expect("resumed");
        } else {
            listener.resume();
            assert_eq!(listener.phase(), ListenerPhase::Running);
        }
        let completed = listener.info().completed;
        sleep(10 * MINUTE).await;
        assert_eq!(world.calls().0, receives);
        listener.resume();
        jobs.resume().await.expect("resumed");
        sleep(2 * SECOND).await;
        assert_eq!(listener.info().completed, completed + 1);
        let told: Vec<_> = told(&mut seen).iter().map(Option::is_some).collect();
        assert_eq!(told, [true, false]);
    }
    stop(listener).await;
}

/// Several tasks, and several listeners of a service.
#[tokio::test(start_paused = true)]
async fn each_listener_tells_each_change_once() {
    let world = Pair::new().await;
    let mut listeners: Vec<_> = (0..2).map(|_| start(listen(&world.worker, 4))).collect();
    sleep(MINUTE).await;
    for _ in 0..3 {
        world.pause().await;
        world.submit(20).await;
        sleep(MINUTE).await;
        world.resume().await;
        sleep(MINUTE).await;
    }
    for (listener, seen) in &mut listeners {
        let told: Vec<_> = told(seen).iter().map(Option::is_some).collect();
        assert_eq!(told, [true, false, true, false, true, false]);
        stop(listener.clone()).await;
    }
    assert_eq!(count(&world.office, "jobs").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_is_healthy_and_said() {
    let service = testing::service().await;
    submit_jobs(&service, 0).await;
    let jobs = service.any_queue("jobs").expect("a name");
    let (listener, _seen) = start(listen(&service, 1));
    sleep(SECOND).await;
    let mark = jobs.pause(REASON).await.expect("paused");
    sleep(SECOND).await;
    let health = service.health();
    assert!(health.is_healthy() && !health.needs_restart(), "{health}");
    assert_eq!(health.listeners[0].queue_paused.as_ref(), Some(&mark));
    let since = mark.since.expect("a time");
    let sentence = format!("queue `jobs` is paused since {since}: the warehouse is closed");
    assert_eq!(
        health.problems().as_slice(),
        std::slice::from_ref(&sentence)
    );
    assert_eq!(health.to_string(), sentence);
    let json = serde_json::to_value(listener.info()).expect("serializable");
    assert_eq!(json["queue_paused"]["reason"], "the warehouse is closed");
    jobs.resume().await.expect("resumed");
    sleep(SECOND).await;
    assert_eq!(service.health().to_string(), "healthy");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_read_last_holds_while_the_metadata_cannot_be_read() {
    let outages = [
        Fault::Refused(ErrorKind::Unreachable),
        Fault::RequestLost,
        Fault::Stalled,
    ];
    for fault in outages {
        let world = Pair::new().await;
        let (listener, mut seen) = start(listen(&world.worker, 2));
        sleep(MINUTE).await;
        // Not paused, it goes on; and does not learn that it is.
        world
            .faults
            .fail_every(Operation::Properties, fault.clone());
        world.pause().await;
        world.submit(1).await;
        sleep(MINUTE).await;
        assert!(world.faults.injected(Operation::Properties) > 0);
        assert_eq!(listener.info().completed, 1, "{fault:?}");
        world.faults.heal();
        world.submit(1).await;
        sleep(MINUTE).await;
        assert_eq!(listener.info().completed, 1, "{fault:?}");
        // Paused, it stays so; also if what is cached is cleared.
        world
            .faults
            .fail_every(Operation::Properties, fault.clone());
        world.resume().await;
        let before = world.faults.injected(Operation::Properties);
        let (receives, _) = world.calls();
        sleep(MINUTE).await;
        world.worker.refresh_metadata();
        sleep(10 * MINUTE).await;
        let failed = world.faults.injected(Operation::Properties) - before;
        assert!((10..=300).contains(&failed), "{failed} {fault:?}");
        assert_eq!(world.calls().0, receives, "{fault:?}");
        world.faults.heal();
        sleep(MINUTE).await;
        assert_eq!(listener.info().completed, 2, "{fault:?}");
        let told: Vec<_> = told(&mut seen).iter().map(Option::is_some).collect();
        assert_eq!(told, [true, false], "{fault:?}");
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_that_is_deleted_is_not_paused() {
    let world = Pair::new().await;
    // Nobody creates it again.
    let jobs = world.worker.queue_named::<Job>("jobs").expect("a name");
    let (listener, mut seen) = start(jobs.listener(async |_: Received<Job>| ()));
    world.pause().await;
    sleep(SECOND).await;
    world.worker.refresh_metadata();
    world.submit(1).await;
    sleep(MINUTE).await;
    assert!(listener.info().queue_paused.is_some());
    world.jobs.delete().await.expect("deleted");
    sleep(MINUTE).await;
    assert_eq!(listener.info().queue_paused, None);
    world.submit(1).await;
    events(&mut seen, 1, completed).await;
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_runs_until_its_queue_is_empty_ends_when_it_is_paused() {
    let world = Pair::new().await;
    world.submit(10).await;
    let listener = listen(&world.worker, 1).max_in_flight(1).until_empty();
    let (listener, mut seen) = start(listener);
    sleep(SECOND / 2).await;
    world.pause().await;
    let report = timeout(MINUTE, listener.drained()).await.expect("it ends");
    assert_eq!(report.end, DrainEnd::QueuePaused);
    assert_eq!(report.exit_code(), std::process::ExitCode::from(1));
    assert!((1..=6).contains(&report.info.completed), "{report:?}");
    assert_eq!(report.info.in_flight, 0);
    assert_eq!(told(&mut seen).len(), 1);
    // Also from the start, without a receive.
    let (receives, _) = world.calls();
    let again = listen(&world.worker, 1).until_empty();
    let again = again.start().expect("starts").drained().await;
    assert_eq!(again.end, DrainEnd::QueuePaused);
    assert_eq!(world.calls().0, receives);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_starts_on_a_paused_queue_receives_nothing() {
    let world = Pair::new().await;
    world.submit(1).await;
    world.pause().await;
    let (listener, mut seen) = start(listen(&world.worker, 2));
    sleep(10 * MINUTE).await;
    assert_eq!(world.calls().0, 0, "no receive is sent");
    assert_eq!(told(&mut seen).len(), 1);
    assert_eq!(listener.info().in_flight, 0);
    world.resume().await;
    sleep(LAG + 2 * SECOND).await;
    assert_eq!(listener.info().completed, 1);
    stop(listener).await;
}

/// After its handle has resumed it, the metadata is old.
#[tokio::test(start_paused = true)]
async fn a_listener_that_was_paused_by_its_handle_meanwhile_obeys() {
    for world in [Pair::new().await, Pair::silent().await] {
        let (listener, _seen) = start(listen(&world.worker, 1));
        sleep(SECOND).await;
        listener.pause();
        sleep(MINUTE).await;
        world.pause().await;
        world.submit(1).await;
        listener.resume();
        sleep(10 * MINUTE).await;
        assert_eq!(listener.info().completed, 0);
        world.resume().await;
        sleep(LAG + 2 * SECOND).await;
        assert_eq!(listener.info().completed, 1);
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_listener_obeys() {
    type Start = fn(&QueueService) -> ListenerHandle;
    let kinds: [(&str, Start); 4] = [
        ("a router", |service| {
            let router = service
                .router("jobs")
                .route(Route::new(async |_: Received<Job>| ()));
            router.start().expect("starts")
        }),
        ("of batches", |service| {
            let jobs = batch(async |_: Batch<Job>| ());
            service.listener(jobs).start().expect("starts")
        }),
        ("that blocks", |service| {
            let listener = service.listener(blocking(|_: Received<Job>| ()));
            listener.handler_timeout(NEVER).start().expect("starts")
        }),
        ("one at a time", |service| {
            let listener = service.listener(async |_: Received<Job>| ());
            let listener = listener.one_at_a_time_by(|_: &Job| 1);
            listener.tasks(2).start().expect("starts")
        }),
    ];
    for (kind, start) in kinds {
        let world = Pair::new().await;
        let listener = start(&world.worker);
        sleep(MINUTE).await;
        world.pause().await;
        world.submit(5).await;
        sleep(10 * MINUTE).await;
        assert_eq!(listener.info().completed, 0, "{kind}");
        world.resume().await;
        let drained = testing::drain([&listener]).await.expect("drained");
        assert_eq!(drained.completed(), 5, "{kind}");
        stop(listener).await;
    }
}

/// The metadata of a queue with shards is that of its first.
#[tokio::test(start_paused = true)]
async fn a_queue_with_shards_is_paused_as_a_whole() {
    let world = World::new(2);
    let (worker, office) = (world.service(4).await, world.service(4).await);
    let orders = office.queue::<Order>();
    orders.any().create().await.expect("created");
    let listener = worker.listener(async |_: Received<Order>| ());
    let listener = listener.start().expect("starts");
    sleep(MINUTE).await;
    let mark = orders.any().pause(REASON).await.expect("paused");
    let submit = |number| {
        orders.submit(Order {
            customer: number,
            number,
        })
    };
    for number in 0..20 {
        submit(number).await.expect("submitted");
    }
    sleep(10 * MINUTE).await;
    assert_eq!(listener.info().completed, 0);
    assert_eq!(listener.info().queue_paused, Some(mark));
    orders.any().resume().await.expect("resumed");
    sleep(MINUTE).await;
    assert_eq!(listener.info().completed, 20);
    stop(listener).await;
}

//! Listeners of a queue that is paused for everybody: in outages, while they start or end, and of every kind.

use queue_runtime::error::Operation;
use queue_runtime::listener::{DrainEnd, Route};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{Batch, ErrorKind, ListenerHandle, QueueService, Received, batch, blocking};
use queue_tests::{MINUTE, SECOND};
use tokio::time::{sleep, timeout};

use crate::pausing::fixture::{LAG, Pair, REASON, listen, start, told};
use crate::support::jobs::{Job, completed};
use crate::support::shards::{CustomerOrder, World};
use crate::support::{NEVER, events, stop};

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
                .expect("a name")
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
    let orders = office.queue::<CustomerOrder>();
    orders.any().create().await.expect("created");
    let listener = worker.listener(async |_: Received<CustomerOrder>| ());
    let listener = listener.start().expect("starts");
    sleep(MINUTE).await;
    let mark = orders.any().pause(REASON).await.expect("paused");
    let submit = |number| {
        orders.submit(CustomerOrder {
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

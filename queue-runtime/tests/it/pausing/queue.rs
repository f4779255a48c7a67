//! A queue that an operator pauses for everybody, by a mark in its metadata.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{Backend, MemoryBackend, Metadata};
use queue_runtime::listener::ListenerPhase;
use queue_runtime::policy::{ExponentialIdle, TaskRange};
use queue_runtime::settings::{PAUSED, PAUSED_REASON, POISON_THRESHOLD, paused};
use queue_runtime::testing::{self, TokioClock};
use queue_runtime::{ErrorKind, ListenerEventKind, QueueName, Result};
use queue_tests::{MINUTE, SECOND};
use tokio::time::{Instant, sleep};

use crate::pausing::fixture::{LAG, Pair, REASON, connect, listen, start, told};
use crate::support::jobs::{Job, submit_jobs};
use crate::support::{count, events, stop};

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

    let overflow = " Überlauf: 100 % in 倉庫\n";
    let last = jobs.pause(Some(overflow)).await.expect("is paused");
    assert_eq!(last.reason.as_deref(), Some(overflow.trim()));
    let stored = jobs.properties().await.expect("read").metadata;
    let stored = stored.find(PAUSED_REASON).expect("a reason");
    assert_eq!(stored, "%C3%9Cberlauf: 100 %25 in %E5%80%89%E5%BA%AB");

    assert_eq!(jobs.resume().await.expect("resumed"), Some(last));
    assert_eq!(jobs.resume().await.expect("is not paused"), None);
    let left = jobs.properties().await.expect("read").metadata;
    assert_eq!(left, metadata(&[(POISON_THRESHOLD, "3")]));

    let foreign = metadata(&[(PAUSED, "yes"), (PAUSED_REASON, "at 50 %, %1B[31m, %FF")]);
    let foreign = paused(&foreign).expect("it is paused").reason;
    assert_eq!(foreign.as_deref(), Some("at 50 %, %1B[31m, %FF"));
    let hostile = metadata(&[(PAUSED, "yes"), (PAUSED_REASON, "%1B[31m")]);
    let hostile = paused(&hostile).expect("it is paused").reason;
    assert_eq!(hostile.as_deref(), Some(r"\u{1b}[31m"));

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
struct Overwritten(MemoryBackend, AtomicUsize);

#[async_trait]
impl Backend for Overwritten {
    forward_backend!(self => self.0; all but set_metadata);

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let left = self.1.load(Ordering::Relaxed);
        self.1.store(left.saturating_sub(1), Ordering::Relaxed);
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
    let received = listener.info().completed + listener.info().in_flight;
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

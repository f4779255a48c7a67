//! Schedules that are paused, resumed and run from another process, and ticks that overlap.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::recurring::{
    Missed, Overlap, RecordedSchedule, ScheduleErrorKind, ScheduleHandle, every,
};
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{Delivery, ErrorKind, Message, QueueService, Timestamp};
use queue_tests::{HOUR, MINUTE};
use serde::{Deserialize, Serialize};

use crate::schedules::fixture::{Tick, at, connect, expected, memory, schedule, ticks, until};
use crate::support::storage::Storage;

async fn known(service: &QueueService) -> RecordedSchedule {
    let page = service.recorded_schedules(None, 10).await;
    let [known] = page.expect("a page").schedules.try_into().expect("one");
    known
}

/// Ticks whose messages are handled one at a time, or not at all, as the schedule says.
fn overlapping(service: &QueueService, overlap: Overlap) -> ScheduleHandle {
    let schedule = service.schedule("five", every(5 * MINUTE), |at| Tick { at });
    schedule.overlap(overlap).start().expect("starts")
}

async fn accept(service: &QueueService) -> Option<Delivery<Tick>> {
    let accepted = service.accept::<Tick>().create_queue().await;
    accepted.expect("accepts")
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_in_all_processes_and_through_restarts_until_it_is_ended() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let [one, other, operator] = [(); 3].map(|()| connect(Arc::clone(&backend), &clock));
    let (one, other, operator) = (one.await, other.await, operator.await);
    let first = schedule(&one, Missed::All { limit: 100 });
    let _second = schedule(&other, Missed::All { limit: 100 });
    until(&clock, "2026-01-01T00:07:00Z").await;
    let before = known(&operator).await;
    assert_eq!(before.next_tick, Some(at("2026-01-01T00:10:00Z")));
    assert!(!before.is_paused);

    assert!(operator.pause_schedule("five").await.expect("paused"));
    assert!(operator.pause_schedule("five").await.expect("paused again"));
    until(&clock, "2026-01-01T00:21:00Z").await;
    first.stop().await;
    let _first = schedule(&one, Missed::All { limit: 100 });
    until(&clock, "2026-01-01T00:31:00Z").await;
    let paused = known(&operator).await;
    assert!(paused.is_paused, "{paused:?}");
    assert_eq!(ticks(&operator).await, [at("2026-01-01T00:05:00Z")]);

    // A reset is about the tick alone.
    assert!(operator.reset_schedule("five").await.expect("reset"));
    assert!(known(&operator).await.is_paused);
    assert!(operator.resume_schedule("five").await.expect("resumed"));
    assert!(
        operator
            .resume_schedule("five")
            .await
            .expect("resumed again")
    );
    until(&clock, "2026-01-01T00:46:00Z").await;
    let after = expected("2026-01-01T00:35:00Z", "2026-01-01T00:45:00Z");
    assert_eq!(ticks(&operator).await, after, "none is made up for");
}

#[tokio::test(start_paused = true)]
async fn no_tick_is_submitted_after_a_pause_has_returned() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let operator = connect(Arc::clone(&backend), &clock).await;
    let mut services = Vec::new();
    for _ in 0..3 {
        let service = connect(Arc::clone(&backend), &clock).await;
        let every_second =
            service.schedule("five", every(Duration::from_secs(1)), |at| Tick { at });
        drop(every_second.start().expect("starts"));
        services.push(service);
    }
    // At the very time of a tick, and between two.
    for part in 0..20 {
        let pause = Duration::from_millis(3000 + part * 50);
        tokio::time::sleep(pause).await;
        assert!(operator.pause_schedule("five").await.expect("paused"));
        let submitted = ticks(&operator).await;
        assert_ne!(submitted, [], "in {pause:?}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(ticks(&operator).await, []);
        assert!(operator.resume_schedule("five").await.expect("resumed"));
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_submitted_once_by_one_process_also_of_a_paused_schedule() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let (one, other) = (
        connect(Arc::clone(&backend), &clock).await,
        connect(backend, &clock).await,
    );
    let first = schedule(&one, Missed::Once);
    let second = schedule(&other, Missed::Once);
    until(&clock, "2026-01-01T00:06:00Z").await;
    assert!(other.run_schedule("five").await.expect("asked"));
    assert!(one.run_schedule("five").await.expect("asked again"));
    assert!(known(&one).await.run_asked_at.is_some());
    until(&clock, "2026-01-01T00:07:00Z").await;
    assert_eq!(known(&one).await.run_asked_at, None);
    let submitted = ticks(&one).await;
    assert_eq!(submitted.len(), 2, "{submitted:?}");
    assert_eq!(submitted[0], at("2026-01-01T00:05:00Z"));
    assert!(submitted[1] > at("2026-01-01T00:06:00Z"), "{submitted:?}");

    assert!(one.pause_schedule("five").await.expect("paused"));
    assert!(other.run_schedule("five").await.expect("asked"));
    until(&clock, "2026-01-01T00:12:00Z").await;
    assert_eq!(ticks(&one).await.len(), 1);
    assert!(one.resume_schedule("five").await.expect("resumed"));
    until(&clock, "2026-01-01T00:16:00Z").await;
    assert_eq!(ticks(&one).await, [at("2026-01-01T00:15:00Z")]);

    // Nobody runs it: the next one that does submits the message, and then goes on with the ticks.
    first.stop().await;
    second.stop().await;
    assert!(one.run_schedule("five").await.expect("asked"));
    until(&clock, "2026-01-01T00:18:00Z").await;
    assert_eq!(ticks(&one).await, []);
    let _third = schedule(&other, Missed::Once);
    until(&clock, "2026-01-01T00:21:00Z").await;
    assert_eq!(ticks(&one).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn names_that_are_not_known_and_storages_without_records_are_told() {
    let clock = TokioClock::new();
    let service = connect(memory(&clock), &clock).await;
    assert!(!service.pause_schedule("fiev").await.expect("asked"));
    assert!(!service.resume_schedule("fiev").await.expect("asked"));
    assert!(!service.run_schedule("fiev").await.expect("asked"));

    let (service, _) = Storage::new().connect().await;
    for refused in [
        service.pause_schedule("five").await,
        service.resume_schedule("five").await,
        service.run_schedule("five").await,
    ] {
        let refused = refused.expect_err("it records none");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("`recorded_in`"), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_skipped_while_an_earlier_message_is_not_settled() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let (one, other) = (
        connect(Arc::clone(&backend), &clock).await,
        connect(backend, &clock).await,
    );
    let _schedules = [&one, &other].map(|service| overlapping(service, Overlap::Skip));
    until(&clock, "2026-01-01T00:16:00Z").await;
    let held = accept(&one).await.expect("the first");
    assert_eq!(held.at, at("2026-01-01T00:05:00Z"));
    assert!(accept(&one).await.is_none(), "two ticks were skipped");
    // A run that is asked for is no exception.
    assert!(other.run_schedule("five").await.expect("asked"));
    until(&clock, "2026-01-01T00:21:00Z").await;
    assert!(accept(&one).await.is_none());
    held.complete().await.expect("completed");
    until(&clock, "2026-01-01T00:26:00Z").await;
    let next = accept(&one).await.expect("another");
    assert_eq!(next.at, at("2026-01-01T00:25:00Z"));
    next.reject("no good").await.expect("moved");
    until(&clock, "2026-01-01T00:31:00Z").await;
    assert_eq!(ticks(&one).await, [at("2026-01-01T00:30:00Z")]);
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_may_be_skipped_is_submitted_once_whatever_answers_are_lost() {
    let clock = TokioClock::new();
    let faults = FaultInjector::new(memory(&clock));
    let service = QueueService::with_backend(Arc::new(faults.clone()));
    let service = service.clock(Arc::new(clock.clone())).on_current_runtime();
    let service = service.connect().await.expect("connects");
    let _schedule = overlapping(&service, Overlap::Skip);
    until(&clock, "2026-01-01T00:01:00Z").await;
    for minute in [5, 10, 15, 20] {
        faults.fail_next(minute / 5, Operation::Apply, Fault::AnswerLost);
        until(&clock, &format!("2026-01-01T00:{:02}:00Z", minute + 4)).await;
        let tick = at(&format!("2026-01-01T00:{minute:02}:00Z"));
        assert_eq!(ticks(&service).await, [tick]);
    }
}

#[tokio::test(start_paused = true)]
async fn ticks_of_one_group_are_handled_one_after_the_other() {
    let clock = TokioClock::new();
    let service = connect(memory(&clock), &clock).await;
    let _schedule = overlapping(&service, Overlap::Wait);
    until(&clock, "2026-01-01T00:16:00Z").await;
    for tick in expected("2026-01-01T00:05:00Z", "2026-01-01T00:15:00Z") {
        let first = accept(&service).await.expect("a tick");
        assert_eq!(first.at, tick);
        assert!(accept(&service).await.is_none(), "one at a time");
        first.complete().await.expect("completed");
    }
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(wire = "bare")]
struct Bare {}

#[tokio::test(start_paused = true)]
async fn what_an_overlap_needs_is_told_at_the_start() {
    let clock = TokioClock::new();
    let able = connect(memory(&clock), &clock).await;
    let (unable, _) = Storage::new().connect().await;
    let store = able.results().expect("memory has one");
    let bare = |overlap| {
        able.schedule("bare", every(HOUR), |_| Bare {})
            .overlap(overlap)
            .start()
    };
    let in_store = |service: &QueueService, overlap| {
        let schedule = service.schedule("five", every(HOUR), |at| Tick { at });
        schedule.recorded_in(&store).overlap(overlap).start()
    };
    for (started, needed) in [
        (bare(Overlap::Skip), "messages that are events"),
        (bare(Overlap::Wait), "messages that are events"),
        (in_store(&able, Overlap::Skip), "without `recorded_in`"),
        (in_store(&unable, Overlap::Skip), "without `recorded_in`"),
    ] {
        let error = started.expect_err("refused");
        assert!(matches!(error.kind, ScheduleErrorKind::Overlap(_)));
        assert!(error.to_string().contains(needed), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn ticks_that_a_store_records_are_handled_one_after_the_other_too() {
    let clock = TokioClock::new();
    let service = connect(memory(&clock), &clock).await;
    let store = service.results().expect("memory has one");
    let schedule = service.schedule("five", every(5 * MINUTE), |at| Tick { at });
    let schedule = schedule.recorded_in(&store).overlap(Overlap::Wait);
    let _running = schedule.start().expect("starts");
    until(&clock, "2026-01-01T00:11:00Z").await;
    let first = accept(&service).await.expect("a tick");
    assert!(accept(&service).await.is_none(), "one at a time");
    first.complete().await.expect("completed");
    accept(&service)
        .await
        .expect("another")
        .complete()
        .await
        .expect("completed");
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_message_cannot_be_made_holds_up_no_tick() {
    let clock = TokioClock::new();
    let service = connect(memory(&clock), &clock).await;
    let only_ticks = |at: Timestamp| {
        assert_eq!(at.as_second() % 300, 0, "no tick");
        Tick { at }
    };
    let schedule = service.schedule("five", every(5 * MINUTE), only_ticks);
    let _running = schedule.start().expect("starts");
    until(&clock, "2026-01-01T00:06:00Z").await;
    assert!(service.run_schedule("five").await.expect("asked"));
    until(&clock, "2026-01-01T00:21:00Z").await;
    let all = expected("2026-01-01T00:05:00Z", "2026-01-01T00:20:00Z");
    assert_eq!(ticks(&service).await, all);
    assert!(known(&service).await.run_asked_at.is_some());
}

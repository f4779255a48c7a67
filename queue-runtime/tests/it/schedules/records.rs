//! The schedules that a storage knows.

use std::sync::Arc;

use queue_runtime::backend::{BackendExt as _, Swap};
use queue_runtime::idempotency::WorkKey;
use queue_runtime::recurring::{Missed, RecordedSchedule, every};
use queue_runtime::testing::TokioClock;
use queue_runtime::{ErrorKind, QueueName, QueueService};
use queue_tests::{HOUR, MINUTE};

use crate::schedules::fixture::{Tick, at, connect, expected, memory, schedule, ticks, until};
use crate::support::storage::Storage;

async fn recorded(service: &QueueService, max: usize) -> Vec<RecordedSchedule> {
    let (mut schedules, mut from) = (Vec::new(), None);
    loop {
        let page = service.recorded_schedules(from.as_ref(), max).await;
        let page = page.expect("a page");
        schedules.extend(page.schedules);
        from = page.next;
        if from.is_none() {
            return schedules;
        }
    }
}

fn names(schedules: &[RecordedSchedule]) -> Vec<&str> {
    schedules.iter().map(|known| known.name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn schedules_are_listed_with_their_last_ticks_whether_or_not_they_run() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let service = connect(Arc::clone(&backend), &clock).await;
    assert_eq!(recorded(&service, 10).await.len(), 0);
    let five = schedule(&service, Missed::Once);
    for name in ["daily", "hourly"] {
        let period = if name == "daily" { 24 * HOUR } else { HOUR };
        let started = service.schedule(name, every(period), |at| Tick { at });
        drop(started.start().expect("starts"));
    }
    until(&clock, "2026-01-01T01:07:00Z").await;
    five.stop().await;
    until(&clock, "2026-01-01T03:30:00Z").await;

    let operator = connect(backend, &clock).await;
    for max in [1, 2, 1000] {
        let found = recorded(&operator, max).await;
        assert_eq!(names(&found), ["daily", "five", "hourly"]);
        let last = found.iter().map(|known| known.last_tick.clone());
        let last: Vec<_> = last.map(|tick| tick.expect("readable")).collect();
        // The first has not ticked since it began.
        assert!(last[0] < at("2026-01-01T00:01:00Z"), "{last:?}");
        let ticked = ["2026-01-01T01:05:00Z", "2026-01-01T03:00:00Z"].map(at);
        assert_eq!(last[1..], ticked);
    }
    let page = operator.recorded_schedules(None, 10).await.expect("a page");
    let now = queue_runtime::clock::Clock::now(&clock);
    assert!(page.now.duration_since(now).unsigned_abs() < MINUTE);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_told_in_its_place() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let service = connect(Arc::clone(&backend), &clock).await;
    for name in ["a", "z"] {
        let started = service.schedule(name, every(HOUR), |at| Tick { at });
        drop(started.start().expect("starts"));
    }
    let swap = Swap::new(WorkKey::new("schedule ticks", "b"), "no tick", HOUR);
    let queue = QueueName::from_static("none");
    let swapped = backend.put_if(&queue, None, &swap).await;
    swapped.expect("swapped");
    until(&clock, "2026-01-01T00:01:00Z").await;

    let found = recorded(&service, 10).await;
    assert_eq!(names(&found), ["a", "b", "z"]);
    let readable = found.iter().map(|known| known.last_tick.is_ok());
    assert_eq!(readable.collect::<Vec<_>>(), [true, false, true]);
    let error = found[1].last_tick.as_ref().expect_err("it is no tick");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(service.forget_schedule("b").await.expect("forgotten"));
    assert_eq!(names(&recorded(&service, 10).await), ["a", "z"]);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_damaged_record_is_told_and_can_be_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    let url = format!("sqlite:{}", path.display());
    let service = QueueService::connect(&url).await.expect("connects");
    let started = service.schedule("hourly", every(HOUR), |at| Tick { at });
    let schedule = started.start().expect("starts");
    while recorded(&service, 10).await.is_empty() {
        tokio::task::yield_now().await;
    }
    schedule.stop().await;
    let connection = rusqlite::Connection::open(&path).expect("open");
    let alter = "UPDATE queue_results SET result = x'00' WHERE scope = 'schedule ticks'";
    assert_eq!(connection.execute(alter, []), Ok(1));
    let found = recorded(&service, 10).await;
    assert_eq!(names(&found), ["hourly"]);
    let error = found[0].last_tick.as_ref().expect_err("it is damaged");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(service.forget_schedule("hourly").await.expect("forgotten"));
    assert!(!service.forget_schedule("hourly").await.expect("asked"));
    assert_eq!(recorded(&service, 10).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_was_forgotten_begins_anew() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let service = connect(Arc::clone(&backend), &clock).await;
    let running = schedule(&service, Missed::Once);
    until(&clock, "2026-01-01T00:11:00Z").await;
    running.stop().await;
    until(&clock, "2026-01-01T00:57:00Z").await;
    assert!(service.forget_schedule("five").await.expect("forgotten"));
    assert!(!service.forget_schedule("five").await.expect("asked"));
    let running = schedule(&service, Missed::Once);
    until(&clock, "2026-01-01T01:06:00Z").await;
    // While it runs.
    assert!(service.forget_schedule("five").await.expect("forgotten"));
    until(&clock, "2026-01-01T01:21:00Z").await;
    running.stop().await;
    let submitted = ticks(&service).await;
    let before = expected("2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z");
    let after = expected("2026-01-01T01:00:00Z", "2026-01-01T01:20:00Z");
    assert_eq!(submitted, [before, after].concat(), "none is made up for");
}

#[tokio::test(start_paused = true)]
async fn where_no_ticks_are_recorded_the_error_says_where_they_are() {
    let (service, _) = Storage::new().connect().await;
    let listed = service.recorded_schedules(None, 10).await.map(drop);
    let forgotten = service.forget_schedule("five").await.map(drop);
    for refused in [listed, forgotten] {
        let refused = refused.expect_err("it records none");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("`recorded_in`"), "{refused}");
    }
}

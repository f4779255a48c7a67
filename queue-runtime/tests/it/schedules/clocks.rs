//! Schedules whose wall clocks are wrong for a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queue_runtime::clock::Clock as _;
use queue_runtime::idempotency::MemoryResults;
use queue_runtime::recurring::{Missed, every};
use queue_runtime::testing::{self, TokioClock};
use queue_runtime::{ErrorKind, QueueService, Timestamp};
use queue_tests::{HOUR, MINUTE, SECOND};
use tokio::time::sleep;

use crate::schedules::fixture::{Tick, at, connect, expected, memory, schedule, ticks, until};
use crate::support::log::Log;
use crate::support::storage::Storage;

const FAR: &str = "is far ahead of the clock";
const REPLACED: &str = "replaced the last tick";

/// Sets the clock a year ahead, and right again two seconds later.
async fn a_year_ahead(clock: &TokioClock) {
    a_year_ahead_from_now(clock);
    two_seconds_later_right(clock).await;
}

fn a_year_ahead_from_now(clock: &TokioClock) {
    clock.set_wall_clock(clock.now() + 365 * 24 * HOUR);
}

async fn two_seconds_later_right(clock: &TokioClock) {
    sleep(2 * SECOND).await;
    clock.set_wall_clock(clock.now() - 365 * 24 * HOUR);
}

/// The ticks in order, without those of the wrong year.
async fn ticks_of_2026(service: &QueueService) -> Vec<Timestamp> {
    let mut ticks = ticks(service).await;
    ticks.retain(|tick| *tick < at("2027-01-01T00:00:00Z"));
    ticks
}

/// Two processes run the schedule. It was a year ahead until now, five seconds after midnight: within a minute, both
/// warn, and in ten more the ticks go on.
async fn goes_on(log: &Log, clock: &TokioClock, services: [&QueueService; 2]) {
    sleep(MINUTE - 5 * SECOND).await;
    assert_eq!(log.count(FAR), 2, "each process says so");
    until(clock, "2026-01-01T01:00:00Z").await;
    assert_eq!((log.count(FAR), log.count(REPLACED)), (2, 1));
    let ticks = ticks_of_2026(services[0]).await;
    // Those of the first ten minutes were missed, and one is made up for.
    assert_eq!(
        ticks,
        expected("2026-01-01T00:10:00Z", "2026-01-01T01:00:00Z")
    );
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_a_year_ahead_at_the_start_stops_no_schedule() {
    let (log, _guard) = Log::start();
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let first = connect(Arc::clone(&backend), &clock).await;
    a_year_ahead_from_now(&clock);
    schedule(&first, Missed::Once);
    two_seconds_later_right(&clock).await;
    let second = connect(backend, &clock).await;
    schedule(&second, Missed::Once);
    sleep(3 * SECOND).await;
    goes_on(&log, &clock, [&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_a_year_ahead_before_the_first_tick_stops_no_schedule() {
    let (log, _guard) = Log::start();
    let clock = TokioClock::new();
    clock.set_wall_clock(at("2025-12-31T23:59:32Z"));
    let backend = memory(&clock);
    let services = [
        connect(Arc::clone(&backend), &clock).await,
        connect(backend, &clock).await,
    ];
    for service in &services {
        schedule(service, Missed::Once);
    }
    // Each looks at the clock after 28 seconds for the tick at midnight.
    sleep(27 * SECOND).await;
    a_year_ahead(&clock).await;
    sleep(4 * SECOND).await;
    goes_on(&log, &clock, [&services[0], &services[1]]).await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_a_year_ahead_while_a_tick_is_submitted_stops_no_schedule() {
    let (log, _guard) = Log::start();
    let clock = TokioClock::new();
    clock.set_wall_clock(at("2025-12-31T23:59:32Z"));
    let backend = memory(&clock);
    let first = connect(Arc::clone(&backend), &clock).await;
    let second = connect(backend, &clock).await;
    let (stepped, steps) = (Arc::new(AtomicBool::new(false)), clock.clone());
    let once = Arc::clone(&stepped);
    let stepping = first.schedule("five", every(5 * MINUTE), move |at| {
        if !once.swap(true, Ordering::SeqCst) {
            a_year_ahead_from_now(&steps);
        }
        Tick { at }
    });
    stepping.start().expect("starts");
    while !stepped.load(Ordering::SeqCst) {
        sleep(SECOND).await;
    }
    two_seconds_later_right(&clock).await;
    assert_eq!(ticks_of_2026(&first).await, [at("2026-01-01T00:00:00Z")]);
    schedule(&second, Missed::Once);
    sleep(2 * SECOND).await;
    goes_on(&log, &clock, [&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_keeps_no_schedule_waiting_for_a_year_either() {
    let (log, _guard) = Log::start();
    let clock = TokioClock::new();
    let service =
        QueueService::with_backend(Arc::new(Storage::new())).clock(Arc::new(clock.clone()));
    let service = service.on_current_runtime().connect().await;
    let service = service.expect("connects");
    let store = MemoryResults::new(Arc::new(clock.clone()));
    let schedule = service.schedule("five", every(5 * MINUTE), |at| Tick { at });
    let schedule = schedule.recorded_in(&store).start().expect("starts");
    until(&clock, "2026-01-01T00:04:59Z").await;
    a_year_ahead(&clock).await;
    sleep(MINUTE).await;
    assert_eq!(log.count(FAR), 1);
    until(&clock, "2026-01-01T01:00:00Z").await;
    let ticks = ticks_of_2026(&service).await;
    assert_eq!(
        ticks,
        expected("2026-01-01T00:15:00Z", "2026-01-01T01:00:00Z")
    );
    schedule.stop().await;

    let reset = service
        .reset_schedule("five")
        .await
        .expect_err("in a store");
    assert_eq!(reset.kind(), ErrorKind::Unsupported);
}

/// Runs the schedule in two processes, of which one has a clock that is a day behind for a while. Returns how often each
/// tick was submitted.
async fn a_day_behind(interval: std::time::Duration, minutes: u32) -> BTreeMap<Timestamp, usize> {
    let (right, wrong) = (TokioClock::new(), TokioClock::new());
    let backend = memory(&right);
    let services = [
        connect(Arc::clone(&backend), &right).await,
        connect(backend, &wrong).await,
    ];
    for service in &services {
        let schedule = service.schedule("ticks", every(interval), |at| Tick { at });
        let all = Missed::All { limit: 1000 };
        schedule.missed(all).start().expect("starts");
    }
    let (day, hours) = (24 * HOUR, 30 * HOUR);
    sleep(hours + SECOND).await;
    wrong.set_wall_clock(wrong.now() - day);
    sleep(minutes * MINUTE).await;
    wrong.set_wall_clock(wrong.now() + day);
    sleep(hours).await;
    let (mut submitted, mut ids) = (BTreeMap::new(), BTreeMap::new());
    while let Some(tick) = services[0].accept::<Tick>().await.expect("accepts") {
        let id = ids
            .entry(tick.at)
            .or_insert_with(|| tick.envelope().id.clone());
        assert_eq!(*id, tick.envelope().id, "a duplicate by its id");
        *submitted.entry(tick.at).or_default() += 1;
        tick.complete().await.expect("completed");
    }
    let ticks: Vec<_> = submitted.keys().copied().collect();
    let first = at("2026-01-01T00:00:00Z") + interval;
    let all = std::iter::successors(Some(first), |tick| Some(*tick + interval));
    assert_eq!(
        ticks,
        all.take(ticks.len()).collect::<Vec<_>>(),
        "none is left out"
    );
    assert!(*ticks.last().expect("some") > at("2026-01-03T11:00:00Z"));
    submitted
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_a_day_behind_replaces_no_record_that_others_move_on() {
    for minutes in [30, 3 * 60] {
        let submitted = a_day_behind(5 * MINUTE, minutes).await;
        assert!(submitted.values().all(|times| *times == 1), "{submitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_a_day_behind_for_nine_minutes_replaces_nothing() {
    let submitted = a_day_behind(HOUR, 9).await;
    assert!(submitted.values().all(|times| *times == 1), "{submitted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_a_day_behind_for_longer_repeats_ticks_with_the_same_ids() {
    let submitted = a_day_behind(HOUR, 30).await;
    let repeated = submitted.iter().filter(|(_, times)| **times > 1);
    let repeated: Vec<_> = repeated.map(|(tick, times)| (*tick, *times)).collect();
    // Those of the day that the clock was behind.
    assert_eq!(repeated.len(), 24, "{repeated:?}");
    assert_eq!(repeated[0], (at("2026-01-01T07:00:00Z"), 2));
    assert_eq!(repeated[23], (at("2026-01-02T06:00:00Z"), 2));
}

/// The right clock notices the record of the wrong one, which has ended, at its next tick.
#[tokio::test(start_paused = true)]
async fn the_tick_at_which_a_record_far_ahead_is_noticed_is_not_lost() {
    for missed in [Missed::Once, Missed::All { limit: 10 }] {
        let (right, wrong) = (TokioClock::new(), TokioClock::new());
        let backend = memory(&right);
        let hourly = |service: &QueueService| {
            let schedule = service.schedule("hourly", every(HOUR), |at| Tick { at });
            schedule.missed(missed).start().expect("starts")
        };
        let service = connect(Arc::clone(&backend), &right).await;
        let schedule = hourly(&service);
        sleep(30 * MINUTE).await;
        a_year_ahead_from_now(&wrong);
        let other = connect(backend, &wrong).await;
        let ended = hourly(&other);
        sleep(SECOND).await;
        ended.stop().await;
        until(&right, "2026-01-01T03:00:01Z").await;
        let hours = ["01", "02", "03"].map(|hour| at(&format!("2026-01-01T{hour}:00:00Z")));
        let mut ticks = ticks(&service).await;
        // Those of the wrong clock.
        ticks.retain(|tick| *tick < at("2026-02-01T00:00:00Z"));
        assert_eq!(ticks, hours, "{missed:?}");
        schedule.stop().await;
    }
}

#[test]
fn a_schedule_whose_runtime_ends_says_so() {
    let (log, _guard) = Log::start();
    let lines = |stop| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().expect("a runtime");
        let service = runtime.block_on(async {
            let service = QueueService::connect("memory:").await.expect("connects");
            let schedule = service.schedule("hourly", every(HOUR), |at| Tick { at });
            let schedule = schedule.start().expect("starts");
            if stop {
                schedule.stop().await;
            }
            service
        });
        drop((runtime, service));
        log.count("the schedule ends")
    };
    assert_eq!(lines(true), 0);
    assert_eq!(lines(false), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reset_has_a_schedule_go_on_in_all_processes() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let services = [
        connect(Arc::clone(&backend), &clock).await,
        connect(backend, &clock).await,
    ];
    let [service, operator] = &services;
    schedule(service, Missed::Once);
    until(&clock, "2026-01-01T00:04:59Z").await;
    a_year_ahead(&clock).await;
    until(&clock, "2026-01-01T00:06:00Z").await;
    assert!(!operator.reset_schedule("fiev").await.expect("asked"));
    assert!(operator.reset_schedule("five").await.expect("reset"));
    until(&clock, "2026-01-01T00:20:00Z").await;
    let ticks = ticks_of_2026(service).await;
    assert_eq!(
        ticks,
        expected("2026-01-01T00:10:00Z", "2026-01-01T00:20:00Z")
    );
    // What is not known was not recorded either.
    assert!(!operator.reset_schedule("fiev").await.expect("asked"));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_described_in_a_line() {
    let service = testing::service().await;
    let describe = |recurrence| {
        let schedule = service.schedule("s", recurrence, |at| Tick { at });
        format!("{schedule:?}")
    };
    let five = describe(every(5 * MINUTE));
    assert!(
        five.contains("recurrence: Every(5m)") && five.len() < 200,
        "{five}"
    );
    #[cfg(feature = "cron")]
    {
        use queue_runtime::recurring::cron_in;

        let nightly = describe(cron_in("Europe/Berlin", "30 3 * * MON"));
        let named = nightly.contains("30 3 * * MON") && nightly.contains("Europe/Berlin");
        assert!(named && nightly.len() < 200, "{nightly}");
    }
}

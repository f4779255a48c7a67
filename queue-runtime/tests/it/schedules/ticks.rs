//! Messages that are submitted at set times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::idempotency::MemoryResults;
use queue_runtime::recurring::{Missed, ScheduleError, ScheduleErrorKind, every};
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{ErrorKind, QueueName, QueueService, testing};
use queue_tests::{DAY, HOUR, MINUTE, SECOND};
use tokio::time::sleep;

use crate::schedules::fixture::{Tick, at, connect, expected, memory, schedule, ticks, until};
use crate::support::storage::Storage;

#[tokio::test(start_paused = true)]
async fn two_services_submit_each_tick_of_a_day_once() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let services = [
        connect(Arc::clone(&backend), &clock).await,
        connect(Arc::clone(&backend), &clock).await,
    ];
    let running = services
        .each_ref()
        .map(|service| schedule(service, Missed::Once));
    until(&clock, "2026-01-02T00:00:00Z").await;
    for schedule in running {
        schedule.stop().await;
    }
    let submitted = ticks(&services[0]).await;
    assert_eq!(
        submitted,
        expected("2026-01-01T00:05:00Z", "2026-01-02T00:00:00Z")
    );
    sleep(HOUR).await;
    assert!(ticks(&services[0]).await.is_empty(), "they were stopped");
}

#[tokio::test(start_paused = true)]
async fn ticks_that_were_missed_are_up_to_the_policy() {
    for (missed, expected) in [
        (Missed::Skip, vec!["10:20:00"]),
        (Missed::Once, vec!["10:15:00", "10:20:00"]),
        (
            Missed::All { limit: 2 },
            vec!["10:10:00", "10:15:00", "10:20:00"],
        ),
        (
            Missed::All { limit: 9 },
            vec!["10:05:00", "10:10:00", "10:15:00", "10:20:00"],
        ),
    ] {
        let clock = TokioClock::new();
        clock.set_wall_clock(at("2026-01-01T09:57:00Z"));
        let service = connect(memory(&clock), &clock).await;
        let first = schedule(&service, missed);
        until(&clock, "2026-01-01T10:00:00Z").await;
        first.stop().await;
        assert_eq!(
            ticks(&service).await,
            [at("2026-01-01T10:00:00Z")],
            "{missed:?}"
        );

        until(&clock, "2026-01-01T10:17:00Z").await;
        let second = schedule(&service, missed);
        until(&clock, "2026-01-01T10:20:00Z").await;
        second.stop().await;
        let expected: Vec<_> = expected
            .iter()
            .map(|time| at(&format!("2026-01-01T{time}Z")))
            .collect();
        assert_eq!(ticks(&service).await, expected, "{missed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_storage_ends_no_schedule() {
    let clock = TokioClock::new();
    let faults = FaultInjector::new(memory(&clock));
    let service =
        QueueService::with_backend(Arc::new(faults.clone())).clock(Arc::new(clock.clone()));
    let service = service
        .on_current_runtime()
        .connect()
        .await
        .expect("connects");
    // Also at its very start.
    for fault in [
        Fault::Refused(ErrorKind::Unreachable),
        Fault::AnswerLost,
        Fault::Panics,
    ] {
        faults.fail_every(Operation::Put, fault.clone());
        let running = schedule(&service, Missed::All { limit: 1000 });
        sleep(12 * MINUTE).await;
        faults.heal();
        sleep(30 * MINUTE).await;
        faults.fail_every(Operation::Put, fault.clone());
        sleep(12 * MINUTE).await;
        faults.heal();
        sleep(30 * MINUTE).await;
        running.stop().await;
        let now = queue_runtime::clock::Clock::now(&clock);
        let submitted = ticks(&service).await;
        let (first, last) = (submitted[0], submitted[submitted.len() - 1]);
        assert_eq!(
            submitted,
            expected(&first.to_string(), &last.to_string()),
            "{fault:?}"
        );
        assert!(
            submitted.len() > 10 && now.duration_since(last).unsigned_abs() < 5 * MINUTE,
            "{fault:?}: {submitted:?}"
        );
        assert!(faults.injected(Operation::Put) > 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_panics_ends_no_schedule() {
    let service = testing::service().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let message = move |at| {
        assert!(counted.fetch_add(1, Ordering::Relaxed) > 2, "injected");
        Tick { at }
    };
    let schedule = service.schedule("panics", every(HOUR), message);
    let schedule = schedule.start().expect("starts");
    sleep(HOUR + MINUTE).await;
    schedule.stop().await;
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    assert_eq!(
        service.submitted::<Tick>().len(),
        1,
        "the tick was tried again"
    );
}

#[tokio::test(start_paused = true)]
async fn clocks_that_differ_submit_no_tick_twice() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let ahead = TokioClock::new();
    ahead.set_wall_clock(at("2026-01-01T00:12:00Z"));
    let slow = connect(Arc::clone(&backend), &clock).await;
    let fast = connect(backend, &ahead).await;
    let running = [
        schedule(&slow, Missed::All { limit: 99 }),
        schedule(&fast, Missed::All { limit: 99 }),
    ];
    sleep(2 * HOUR).await;
    // A clock is stepped back, and the other one goes on.
    ahead.set_wall_clock(at("2026-01-01T01:00:00Z"));
    until(&clock, "2026-01-01T04:00:00Z").await;
    for schedule in running {
        schedule.stop().await;
    }
    let submitted = ticks(&slow).await;
    assert_eq!(
        submitted,
        expected("2026-01-01T00:05:00Z", "2026-01-01T04:00:00Z")
    );
}

#[tokio::test(start_paused = true)]
async fn a_schedule_runs_on_without_its_handle_and_its_service() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let service = connect(Arc::clone(&backend), &clock).await;
    let _ = schedule(&service, Missed::Once);
    let name = |service: &QueueService| {
        let schedules = service.schedules();
        let names = schedules.iter().map(|schedule| schedule.name().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(name(&service), ["five"]);
    drop(service);
    until(&clock, "2026-01-01T00:10:00Z").await;
    let service = connect(backend, &clock).await;
    let expected = expected("2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z");
    assert_eq!(ticks(&service).await, expected);
    assert_eq!(name(&service), [""; 0], "it is of another service");
}

#[tokio::test(start_paused = true)]
async fn a_schedule_stops_with_its_guard_and_by_any_handle() {
    let clock = TokioClock::new();
    let service = connect(memory(&clock), &clock).await;
    let guard = schedule(&service, Missed::Once).stop_on_drop();
    until(&clock, "2026-01-01T00:05:00Z").await;
    drop(guard);
    until(&clock, "2026-01-01T00:12:00Z").await;
    let _ = schedule(&service, Missed::Skip);
    until(&clock, "2026-01-01T00:15:00Z").await;
    for schedule in service.schedules() {
        schedule.stop().await;
    }
    until(&clock, "2026-01-01T00:20:00Z").await;
    assert_eq!(
        ticks(&service).await,
        ["05", "15"].map(|minute| at(&format!("2026-01-01T00:{minute}:00Z")))
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_schedule_of_a_name_is_refused_while_the_first_runs() {
    let clock = TokioClock::new();
    let backend = memory(&clock);
    let service = connect(Arc::clone(&backend), &clock).await;
    let start = |service: &QueueService, name| {
        let schedule = service.schedule(name, every(HOUR), |at| Tick { at });
        schedule.start()
    };
    let first = start(&service, "hourly").expect("starts");
    let second = start(&service.clone(), "hourly").expect_err("it would never tick");
    assert!(
        matches!(second.kind, ScheduleErrorKind::Runs) && second.schedule == "hourly",
        "{second:?}"
    );
    assert_eq!(
        second.to_string(),
        "failed to start the schedule `hourly`: a schedule of this name runs on this service; stop it first, or name this one \
         differently"
    );
    start(&service, "Hourly").expect("it has another name");
    // As in another process.
    let other = connect(backend, &clock).await;
    start(&other, "hourly").expect("they share the ticks");

    first.stop().await;
    drop(start(&service, "hourly").expect("the name is free").stop());
    start(&service, "hourly").expect("it submits nothing any more");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_of_the_service_stops_its_schedules() {
    let clock = TokioClock::new();
    let faults = FaultInjector::new(memory(&clock));
    let service =
        QueueService::with_backend(Arc::new(faults.clone())).clock(Arc::new(clock.clone()));
    let service = service.on_current_runtime().connect().await;
    let service = service.expect("connects");
    schedule(&service, Missed::Once).stop().await;
    let hourly = service.schedule("hourly", every(HOUR), |at| Tick { at });
    hourly.start().expect("starts");
    let busy = service.schedule("busy", every(HOUR), |at| Tick { at });
    busy.to("busy").expect("a name").start().expect("starts");
    sleep(SECOND).await;
    // The submissions under way last longer than the grace period.
    faults.fail_every(Operation::Put, Fault::Stalled);
    until(&clock, "2026-01-01T01:00:00Z").await;
    let begun = tokio::time::Instant::now();
    let report = service.shutdown(5 * SECOND).await;
    assert_eq!(report.schedules, ["hourly", "busy"]);
    assert!(begun.elapsed() <= 5 * SECOND, "{:?}", begun.elapsed());
    faults.heal();
    faults.release();
    sleep(3 * HOUR).await;
    assert_eq!(ticks(&service).await, []);

    let refused = service.schedule("hourly", every(HOUR), |at| Tick { at });
    let refused = refused.start().expect_err("it was shut down");
    assert!(
        matches!(refused.kind, ScheduleErrorKind::ShutDown),
        "{refused:?}"
    );
    assert_eq!(
        refused.to_string(),
        "failed to start the schedule `hourly`: the service was shut down"
    );
    assert!(service.schedules().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_records_ticks_where_the_storage_cannot() {
    let (service, faults) = Storage::new().connect().await;
    let refused = service
        .schedule("five", every(5 * MINUTE), |at| Tick { at })
        .start();
    assert!(
        matches!(
            refused,
            Err(ScheduleError {
                kind: ScheduleErrorKind::Unsupported,
                ..
            })
        ),
        "{refused:?}"
    );

    let store = MemoryResults::new(Arc::new(TokioClock::new()));
    let other =
        QueueService::with_backend(Arc::new(faults.clone())).clock(Arc::new(TokioClock::new()));
    let other = other.on_current_runtime().connect().await;
    let running = [&service, &other.expect("connects")].map(|service| {
        let schedule = service.schedule("five", every(5 * MINUTE), |at| Tick { at });
        let schedule = schedule.missed(Missed::All { limit: 99 });
        schedule.recorded_in(&store).start().expect("starts")
    });
    sleep(HOUR).await;
    faults.fail_every(Operation::Put, Fault::Refused(ErrorKind::Unreachable));
    sleep(HOUR).await;
    faults.heal();
    sleep(HOUR + MINUTE).await;
    for schedule in running {
        schedule.stop().await;
    }
    let submitted = ticks(&service).await;
    assert_eq!(
        submitted,
        expected("2026-01-01T00:05:00Z", "2026-01-01T03:00:00Z")
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_scheduled_is_refused() {
    let service = testing::service().await;
    let start = |name: &str, interval, missed| {
        let schedule = service.schedule(name, every(interval), |at| Tick { at });
        let started = schedule.missed(missed).start();
        started.expect_err("it must be refused").to_string()
    };
    let long = "x".repeat(129);
    for name in ["", "a\nb", &long] {
        let error = start(name, HOUR, Missed::Skip);
        assert!(error.contains("1 to 128 bytes"), "{error}");
    }
    for interval in [Duration::ZERO, Duration::from_millis(999), 367 * DAY] {
        let error = start("report", interval, Missed::Skip);
        assert!(
            error.contains(&format!("{interval:?}")) && error.contains("`report`"),
            "{error}"
        );
    }
    for limit in [0, 1001] {
        let error = start("report", HOUR, Missed::All { limit });
        assert!(error.contains(&format!("{limit} missed")), "{error}");
    }
    let queue: QueueName = "elsewhere".parse().expect("a name");
    let schedule = service
        .schedule("report", every(HOUR), |at| Tick { at })
        .to(queue.clone())
        .expect("a name");
    let schedule = schedule.start().expect("starts");
    sleep(HOUR + MINUTE).await;
    assert_eq!(service.submitted::<Tick>()[0].queue(), &queue);
    schedule.stop().await;
}

#[cfg(feature = "cron")]
mod cron {
    use queue_runtime::recurring::{cron, cron_in};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cron_expression_ticks_in_utc() {
        let clock = TokioClock::new();
        let service = connect(memory(&clock), &clock).await;
        let schedule = service.schedule("nightly", cron("30 3,15 * * *"), |at| Tick { at });
        let schedule = schedule.start().expect("starts");
        until(&clock, "2026-01-03T00:00:00Z").await;
        schedule.stop().await;
        let expected =
            ["01T03", "01T15", "02T03", "02T15"].map(|hour| at(&format!("2026-01-{hour}:30:00Z")));
        assert_eq!(ticks(&service).await, expected);
    }

    #[test]
    fn a_change_to_summer_time_moves_the_ticks() {
        let morning = cron_in("Europe/Berlin", "0 8 * * *");
        let next = |moment| morning.next_after(at(moment)).expect("valid");
        assert_eq!(
            next("2026-03-28T12:00:00Z"),
            Some(at("2026-03-29T06:00:00Z"))
        );
        assert_eq!(
            next("2026-03-27T12:00:00Z"),
            Some(at("2026-03-28T07:00:00Z"))
        );
        // Skipped in spring, and twice in autumn.
        let night = cron_in("Europe/Berlin", "30 2 * * *");
        let next = |moment| night.next_after(at(moment)).expect("valid");
        assert_eq!(
            next("2026-03-28T12:00:00Z"),
            Some(at("2026-03-29T01:00:00Z"))
        );
        assert_eq!(
            next("2026-10-24T12:00:00Z"),
            Some(at("2026-10-25T00:30:00Z"))
        );
        assert_eq!(
            next("2026-10-25T00:30:00Z"),
            Some(at("2026-10-26T01:30:00Z"))
        );
    }

    #[test]
    fn a_day_that_the_time_zone_skips_has_no_ticks_and_ends_none() {
        // Samoa had no 30 December 2011: after 23:59:59 -10:00 came 00:00:00 +14:00 of the 31st.
        let noon = cron_in("Pacific/Apia", "0 12 * * *");
        let next = |moment| noon.next_after(at(moment)).expect("valid");
        let before = "2011-12-29T22:00:00Z";
        assert_eq!(next("2011-12-29T20:00:00Z"), Some(at(before)));
        for moment in [before, "2011-12-30T09:59:59Z", "2011-12-30T10:00:00Z"] {
            assert_eq!(next(moment), Some(at("2011-12-30T22:00:00Z")), "{moment}");
        }
        let yearly = cron_in("Pacific/Apia", "0 12 30 12 *");
        let next = yearly.next_after(at("2011-01-01T00:00:00Z"));
        assert_eq!(next, Ok(Some(at("2012-12-29T22:00:00Z"))));
        let over = cron_in("Pacific/Apia", "0 0 12 30 12 * 2010");
        assert_eq!(over.next_after(at("2011-01-01T00:00:00Z")), Ok(None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_invalid_expression_is_named() {
        let service = testing::service().await;
        let start = |recurrence| {
            let schedule = service.schedule("nightly", recurrence, |at| Tick { at });
            schedule.start().expect_err("refused").to_string()
        };
        for expression in ["", "* * *", "61 * * * *", "0 3 * * Funday", "0 0 30 2 *"] {
            let error = start(cron(expression));
            assert!(error.contains(&format!("`{expression}`")), "{error}");
            println!("{error}");
        }
        let error = start(cron_in("Europe/Berlim", "0 3 * * *"));
        assert!(error.contains("`Europe/Berlim`"), "{error}");
        println!("{error}");
    }
}

//! Handlers that block their thread, or take too long.

use std::sync::mpsc;
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{ErrorKind, ListenerEventKind, Received, blocking};
use queue_tests::SECOND;

use crate::handlers::fixture::Apart;
use crate::support::jobs::{Job, Mood, completed, submit_jobs};
use crate::support::{GUARD, NEVER, count, events, gate, poison, stop};

/// A handler timeout that idle dequeue tasks do not reach, well within the lease.
const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn no_handler_starts_on_a_lease_that_has_ended() {
    let (apart, faults) = Apart::with_faults();
    apart.submit(Mood::Blocks);
    apart.submit(Mood::Blocks);
    let (started, starts) = mpsc::channel();
    let (release, released) = gate();
    let listener = apart
        .service
        .listener(move |_: Received<Job>| {
            let (started, released) = (started.clone(), released.clone());
            async move {
                started.send(()).expect("the test listens");
                // The listener's only worker, so that the other message waits for it.
                released.wait();
            }
        })
        .tasks(1)
        .max_in_flight(2);
    let (listener, mut seen) = apart.start(listener);
    starts
        .recv_timeout(GUARD)
        .expect("one of the handlers runs");
    listener.pause();
    faults.fail_every(Operation::Update, Fault::Refused(ErrorKind::Denied));
    let lost = |event: &ListenerEventKind| {
        matches!(
            event,
            ListenerEventKind::NotSettled {
                error: SettleErrorKind::LeaseLost(_),
                ..
            }
        )
    };
    apart.events_as_time_passes(&mut seen, 1, lost);
    drop(release);
    apart.events_as_time_passes(&mut seen, 1, lost);
    assert!(starts.try_recv().is_err(), "the other handler ran, too");
    faults.heal();
    apart.within_guard(stop(listener));
}

#[test]
fn the_watchdog_tells_an_unpolled_handler_from_a_stuck_one() {
    let apart = Apart::new();
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let (release, released) = gate();
    let listener = apart
        .service
        .listener(move |job: Received<Job>| {
            let (started, released) = (started.clone(), released.clone());
            async move {
                started.send(()).expect("the test listens");
                match job.mood {
                    // The listener's only worker.
                    Mood::Blocks => released.wait(),
                    _ => std::future::pending().await,
                }
            }
        })
        .poison_threshold(1)
        .visibility_timeout(NEVER)
        .handler_timeout(DAY);
    apart.submit(Mood::Hangs);
    let (listener, mut seen) = apart.start(listener);
    apart.within_guard(starts.recv()).expect("a handler runs");
    apart.submit(Mood::Blocks);
    let blocking = async {
        while starts.try_recv().is_err() {
            apart.pass_time();
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(blocking);

    apart.clock.advance(DAY);
    let found = apart.events_as_time_passes(&mut seen, 3, |_| true);
    let count = |wanted: fn(&ListenerEventKind) -> bool| found.iter().filter(|e| wanted(e)).count();
    let stuck = count(|event| matches!(event, ListenerEventKind::HandlerStuck { .. }));
    let poisoned = count(|event| matches!(event, ListenerEventKind::Poisoned { .. }));
    let released = count(|event| matches!(event, ListenerEventKind::Released { .. }));
    assert_eq!((stuck, poisoned, released), (1, 1, 1), "{found:?}");
    let poison = apart.within_guard(poison(&apart.service, "jobs-poison"));
    let errors = poison.into_iter().filter_map(|(record, _)| record.error);
    let errors: Vec<_> = errors.collect();
    let [error] = errors.as_slice() else {
        panic!("{errors:?}")
    };
    assert!(error.contains("timed out after"), "{error}");
    assert!(error.contains("blocks its thread"), "{error}");
    assert_eq!((listener.info().in_flight, listener.info().stuck), (0, 1));

    drop(release);
    let returned = async {
        while listener.info().stuck > 0 {
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(returned);
    // The other message is back, and hangs again.
    let report = apart.within_guard(listener.shutdown(Duration::ZERO));
    assert_eq!((report.stuck, report.info.in_flight), (0, 0), "{report:?}");
}

#[test]
fn stuck_handlers_hold_up_no_other_until_all_room_is_theirs() {
    let apart = Apart::new();
    let (blocks, blocked) = mpsc::channel();
    let (release, released) = gate();
    let listener = apart
        .service
        .listener(blocking(move |job: Received<Job>| {
            if job.mood == Mood::Blocks {
                blocks.send(()).expect("the test listens");
                released.wait();
            }
        }))
        .poison_threshold(1)
        .visibility_timeout(NEVER)
        .handler_timeout(DAY)
        .max_in_flight(2);
    let stuck = |event: &ListenerEventKind| matches!(event, ListenerEventKind::HandlerStuck { .. });
    apart.submit(Mood::Blocks);
    let (listener, mut seen) = apart.start(listener);
    blocked.recv_timeout(GUARD).expect("the handler runs");
    apart.clock.advance(DAY);
    apart.events_as_time_passes(&mut seen, 1, stuck);
    apart.submit(Mood::Good);
    apart.events_as_time_passes(&mut seen, 1, completed);

    apart.submit(Mood::Blocks);
    let running = async {
        while blocked.try_recv().is_err() {
            apart.pass_time();
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(running);
    apart.clock.advance(DAY);
    let all_stuck =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::AllHandlersStuck { .. });
    let found = apart.events_as_time_passes(&mut seen, 1, all_stuck);
    assert!(
        matches!(found[0], ListenerEventKind::AllHandlersStuck { stuck: 2 }),
        "{found:?}"
    );
    let all_settled = async {
        while listener.info().in_flight > 0 {
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(all_settled);
    apart.submit(Mood::Good);
    for _ in 0..100 {
        apart.pass_time();
        apart.within_guard(tokio::task::yield_now());
    }
    assert_eq!(apart.within_guard(count(&apart.service, "jobs")), 1);
    assert_eq!((listener.info().in_flight, listener.info().stuck), (0, 2));
    assert_eq!(listener.info().completed, 1);

    drop(release);
    apart.events_as_time_passes(&mut seen, 1, completed);
    apart.within_guard(stop(listener));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_told_to_stop_may_still_answer() {
    let service = testing::service().await;
    submit_jobs(&service, 1).await;
    let listener = service
        .listener(async |job: Received<Job>| job.cancelled().await)
        .handler_timeout(5 * SECOND);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    assert!(completed(&found[0]), "{found:?}");
    stop(listener).await;
}

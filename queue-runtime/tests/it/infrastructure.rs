//! Failures of what a message is received and handled with. None of them counts as an attempt.

use std::future::IntoFuture;
use std::time::Duration;

use queue_runtime::testing::{self, Fault};
use queue_runtime::{ListenerEvent, Operation, QueueService, Received};
use tokio::time::{advance, sleep, timeout};

use crate::listener::{Job, completed};
use crate::support::{NEVER, count, events, stop, submit_jobs};

const SECOND: Duration = Duration::from_secs(1);

/// Receives the only job and lets its lease end, until all of its attempts are unexplained.
async fn use_up_attempts(service: &QueueService) {
    for _ in 0..3 {
        let crashed = service.accept::<Job>().await.expect("no error");
        drop(crashed.expect("a message"));
        advance(31 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_accept_that_is_dropped_while_it_marks_the_last_chance_is_no_attempt() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    use_up_attempts(&service).await;
    for fault in [Fault::Stalled, Fault::AnswerStalled] {
        for round in 1..=4 {
            faults.fail_next(1, Operation::Update, fault.clone());
            let accept = service.accept::<Job>().into_future();
            let dropped = timeout(SECOND, accept).await;
            assert!(dropped.is_err(), "{fault:?} {round}: the mark is answered");
            faults.release();
            sleep(SECOND).await;
        }
    }
    assert_eq!(faults.injected(Operation::Update), 8);
    let last = service.accept::<Job>().await.expect("no error");
    let last = last.expect("no poison");
    assert_eq!((last.attempt(), last.dequeue_count()), (4, 12));
    let attempts = &last.envelope().attempts;
    assert_eq!((attempts.last_chance, attempts.forgiven), (true, 8));
}

#[tokio::test(start_paused = true)]
async fn what_an_accept_gets_beyond_its_message_is_handed_back_at_once() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 3).await;
    faults.fail_next(1, Operation::Receive, Fault::Surplus(1));
    let first = service.accept::<Job>().await.expect("no error");
    let first = first.expect("a message");
    sleep(SECOND).await;
    let mut forgiven = Vec::new();
    for _ in 0..2 {
        let next = service.accept::<Job>().await.expect("no error");
        let next = next.expect("it is visible");
        assert_eq!(next.attempt(), 1);
        forgiven.push(next.envelope().attempts.forgiven);
        next.complete().await.expect("completed");
    }
    forgiven.sort_unstable();
    assert_eq!(forgiven, [0, 1]);
    first.complete().await.expect("completed");
    assert_eq!(count(&service, "jobs").await, 0);
    assert_eq!(faults.injected(Operation::Receive), 1);
}

#[tokio::test(start_paused = true)]
async fn a_listener_hands_back_what_it_has_no_room_for() {
    const JOBS: u64 = 50;

    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, JOBS as usize).await;
    faults.fail_every(Operation::Receive, Fault::Surplus(5));
    let listener = service
        .listener(async |job: Received<Job>| assert_eq!(job.attempt(), 1))
        .handler_timeout(NEVER)
        .max_in_flight(3);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let ended = |event: &ListenerEvent| !matches!(event, ListenerEvent::Released { .. });
    let ended = events(&mut seen, JOBS as usize, ended).await;
    assert!(ended.iter().all(completed), "{ended:?}");
    let info = listener.info();
    assert_eq!((info.tasks, info.completed, info.unsettled), (2, JOBS, 0));
    assert!(info.peak_in_flight <= 3, "{info:?}");
    assert!(faults.injected(Operation::Receive) > 1);
    assert_eq!(count(&service, "jobs").await, 0);
    stop(listener).await;
}

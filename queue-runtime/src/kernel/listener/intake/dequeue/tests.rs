//! Pauses of idle dequeue tasks, and dequeue tasks without threads for their handlers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::Operation;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;

use super::{ALIGNMENT, aligned};
use crate::kernel::listener::ReceiveErrorKind;
use crate::kernel::listener::capacity::threads::{StartThread, start_thread};
use crate::{ListenerEvent, ListenerEventKind, Received, blocking, testing};

#[derive(Debug, Serialize, Deserialize, queue_derive::Message)]
#[message(crate = crate, queue = "jobs", kind = "job", poison_threshold = 1)]
struct Job;

const JOBS: usize = 60;

/// No handler times out while its thread is scheduled, although time is paused.
const NEVER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Starts a thread if `allowed` says so of the number of threads asked for before.
fn limited(allowed: impl Fn(usize) -> bool + Send + Sync + 'static) -> StartThread {
    let (start, asked) = (start_thread(), AtomicUsize::new(0));
    Arc::new(move |job| {
        if allowed(asked.fetch_add(1, Ordering::Relaxed)) {
            start(job)
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    })
}

/// Returns the next event that is not about polling.
async fn next(events: &mut Receiver<ListenerEvent>) -> ListenerEventKind {
    loop {
        let event = events.recv().await.expect("the listener runs").kind;
        if !matches!(
            event,
            ListenerEventKind::QueueEmpty { .. } | ListenerEventKind::WorkDetected
        ) {
            return event;
        }
    }
}

#[test]
fn long_pauses_end_at_common_times_and_short_ones_are_as_asked() {
    let ms = Duration::from_millis;
    for (now, pause, lengthened) in [
        (0, 499, 499),
        (1, 499, 499),
        (0, 500, 500),
        (1, 500, 749),
        (249, 1000, 1001),
        (250, 30_001, 30_250),
    ] {
        assert_eq!(aligned(ms(pause), ms(now)), ms(lengthened), "{now} {pause}");
    }
    assert!(aligned(Duration::MAX, ms(1)) >= Duration::MAX - ALIGNMENT);
}

#[tokio::test(start_paused = true)]
async fn without_a_thread_nothing_is_received_and_no_attempt_is_counted() {
    const FAILURES: usize = 8;

    let (service, faults) = testing::service_with_faults().await;
    let jobs = (0..JOBS).map(|_| Job);
    service.submit_all(jobs).await.expect("submitted");
    let mut listener = service
        .listener(blocking(|job: Received<Job>| assert_eq!(job.attempt(), 1)))
        .handler_timeout(NEVER)
        .tasks(1);
    listener.start_thread = limited(|asked| asked >= FAILURES);
    let mut events = listener.events();
    let started = tokio::time::Instant::now();
    let listener = listener.start().expect("starts");
    let mut pauses = Vec::new();
    for _ in 0..FAILURES {
        match next(&mut events).await {
            ListenerEventKind::NoThread { after, .. } => pauses.push(after),
            other => panic!("{other:?} without a thread"),
        }
        assert_eq!(faults.calls(Operation::Receive), 0);
        let error = listener.info().failure.map(|failure| failure.error.kind);
        assert!(matches!(error, Some(ReceiveErrorKind::NoThread(_))));
    }
    assert!(pauses[0] >= Duration::from_millis(100), "{pauses:?}");
    for _ in 0..JOBS {
        let event = next(&mut events).await;
        assert!(
            matches!(event, ListenerEventKind::Completed { .. }),
            "{event:?}"
        );
    }
    assert!(started.elapsed() >= pauses.iter().sum::<Duration>());
    assert_eq!(
        (listener.info().completed, listener.info().poisoned),
        (JOBS, 0)
    );
    assert!(listener.shutdown(NEVER).await.graceful);
}

#[tokio::test(start_paused = true)]
async fn with_fewer_threads_than_room_fewer_messages_are_received() {
    let service = testing::service().await;
    let jobs = (0..JOBS).map(|_| Job);
    service.submit_all(jobs).await.expect("submitted");
    let mut listener = service
        .listener(blocking(|job: Received<Job>| assert_eq!(job.attempt(), 1)))
        .tasks(2)
        .handler_timeout(NEVER);
    listener.start_thread = limited(|asked| asked < 3);
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    let mut completed = 0;
    while completed < JOBS {
        match next(&mut events).await {
            ListenerEventKind::Completed { .. } => completed += 1,
            ListenerEventKind::NoThread { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let info = listener.info();
    // A thread is free before its message is settled, so a few more may be in flight.
    assert!(info.peak_in_flight < 16, "{info:?}");
    assert!(listener.shutdown(NEVER).await.graceful);
}

//! Starting, pausing and stopping a listener, and the room that it has.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::{Disposition, ListenerEvent, Received};
use tokio::sync::Semaphore;

use crate::listener::{Job, Mood, completed};
use crate::support::{GUARD, count, events, memory, stop};

#[tokio::test]
async fn shutdown_hands_back_what_does_not_finish_and_forgives_it() {
    let service = memory().await;
    let started = Arc::new(Semaphore::new(0));
    let start = Arc::clone(&started);
    let listener = service
        .listener(move |_: Received<Job>| {
            start.add_permits(1);
            std::future::pending::<()>()
        })
        .create_queue()
        .start()
        .expect("starts");
    service
        .submit(Job { mood: Mood::Hangs })
        .await
        .expect("submitted");
    let _running = started.acquire().await.expect("open");
    let report = listener.shutdown(Duration::ZERO).await;
    assert!(!report.graceful);
    assert_eq!(report.released, 1);
    let delivery = service
        .accept::<Job>()
        .await
        .expect("no error")
        .expect("handed back at once");
    assert_eq!(delivery.attempt(), 1);
    assert_eq!(delivery.envelope().attempts.forgiven, 1);
}

#[tokio::test]
async fn shutdown_lets_handlers_finish() {
    let service = memory().await;
    let (started, finish) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (Arc::clone(&started), Arc::clone(&finish));
    let listener = service
        .listener(move |_: Received<Job>| {
            let (started, finish) = gates.clone();
            async move {
                started.add_permits(1);
                let _ = finish.acquire().await;
            }
        })
        .create_queue()
        .start()
        .expect("starts");
    service
        .submit(Job { mood: Mood::Good })
        .await
        .expect("submitted");
    let _running = started.acquire().await.expect("open");
    let shutdown = tokio::spawn(listener.shutdown(GUARD));
    finish.add_permits(1);
    let report = shutdown.await.expect("no panic");
    assert!(report.graceful, "{report:?}");
    assert_eq!(count(&service, "jobs").await, 0);
}

#[tokio::test]
async fn nothing_waits_leased_and_unhandled() {
    let service = memory().await;
    let gate = Arc::new(Semaphore::new(0));
    let gated = Arc::clone(&gate);
    let (running, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let listener = service
        .listener(move |_: Received<Job>| {
            let (gate, running) = (Arc::clone(&gated), running.clone());
            async move {
                running.send(()).expect("the test listens");
                let _ = gate.acquire().await;
            }
        })
        .tasks(4)
        .max_in_flight(3)
        .create_queue()
        .start()
        .expect("starts");
    let mut seen = listener.events();
    service
        .submit_all((0..10).map(|_| Job { mood: Mood::Good }))
        .await
        .expect("submitted");
    for _ in 0..3 {
        runs.recv().await.expect("three run");
    }
    let visible = service
        .queue_at("jobs")
        .expect("a name")
        .peek(32)
        .await
        .expect("peeks")
        .len();
    assert_eq!(visible, 7);
    gate.add_permits(10);
    events(&mut seen, 10, completed).await;
    assert_eq!(listener.info().peak_in_flight, 3);
    stop(listener).await;
}

#[tokio::test]
async fn a_pause_holds_for_tasks_that_wait_for_room() {
    let service = memory().await;
    service
        .submit_all((0..2).map(|_| Job { mood: Mood::Good }))
        .await
        .expect("submitted");
    let gate = Arc::new(Semaphore::new(0));
    let gated = Arc::clone(&gate);
    let listener = service
        .listener(move |_: Received<Job>| {
            let gate = Arc::clone(&gated);
            async move { gate.acquire().await.expect("open").forget() }
        })
        .tasks(1)
        .max_in_flight(1);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    while listener.info().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    listener.pause();
    gate.add_permits(2);
    events(&mut seen, 1, completed).await;
    let visible = service
        .queue_at("jobs")
        .expect("a name")
        .peek(2)
        .await
        .expect("peeks")
        .len();
    assert_eq!((visible, listener.info().in_flight), (1, 0));
    listener.resume();
    events(&mut seen, 1, completed).await;
    stop(listener).await;
}

#[tokio::test]
async fn pause_and_resume() {
    let service = memory().await;
    let listener = service
        .listener(async |_: Received<Job>| Disposition::complete())
        .create_queue()
        .start()
        .expect("starts");
    let mut seen = listener.events();
    service
        .submit(Job { mood: Mood::Good })
        .await
        .expect("submitted");
    events(&mut seen, 1, completed).await;
    listener.pause();
    listener.resume();
    service
        .submit(Job { mood: Mood::Good })
        .await
        .expect("submitted");
    events(&mut seen, 1, completed).await;
    assert_eq!(listener.info().completed, 2);
    stop(listener).await;
}

#[tokio::test]
async fn a_missing_queue_is_reported_and_waited_for() {
    let service = memory().await;
    let listener = service.listener(async |_: Received<Job>| ());
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    events(&mut seen, 1, |event| {
        matches!(event, ListenerEvent::QueueMissing)
    })
    .await;
    service
        .submit(Job { mood: Mood::Good })
        .await
        .expect("submitted");
    events(&mut seen, 1, completed).await;
    stop(listener).await;
}

#[tokio::test]
async fn settings_are_checked() {
    let service = memory().await;
    let listener = || service.listener(async |_: Received<Job>| ());
    for (started, part) in [
        (listener().tasks(0).start(), "number of tasks is 0"),
        (listener().max_in_flight(0).start(), "in flight is 0"),
        (
            listener().poison_threshold(0).start(),
            "poison threshold is 0",
        ),
        (
            listener().visibility_timeout(Duration::ZERO).start(),
            "visibility timeout is 0ns",
        ),
        (listener().poison_queue("No").start(), "\"No\""),
    ] {
        let error = started.expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}

//! The number of dequeue tasks and of messages in flight: ranges, policies, limits, and changes by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::listener::ListenerInfo;
use queue_runtime::policy::{Idle, IdlePolicy, Load, ScalePolicy, TaskRange};
use queue_runtime::settings::ConsumerConfig;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{ErrorKind, ListenerEventKind, QueueService, Received};
use queue_tests::SECOND;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::support::jobs::{Job, completed, submit_jobs};
use crate::support::{NEVER, count, events, stop};

/// Runs a listener with this configuration until a thousand jobs of one second each are done. Returns how long
/// that took, and the figures.
async fn drain(config: &str) -> (Duration, ListenerInfo) {
    let service = testing::service().await;
    submit_jobs(&service, 1_000).await;
    let config: ConsumerConfig = toml::from_str(config).expect("valid");
    let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
    let listener = listener.config(&config).until_empty();
    let started = Instant::now();
    let listener = listener.start().expect("starts");
    let report = listener.drained().await;
    assert_eq!((report.info.completed, report.info.retried), (1_000, 0));
    (started.elapsed(), report.info)
}

#[tokio::test(start_paused = true)]
async fn a_range_of_tasks_shortens_a_drain() {
    let (one, few) = drain("tasks = { min = 1, max = 1 }\nmax_in_flight = 4").await;
    assert_eq!((few.peak_tasks, few.peak_in_flight), (1, 4));
    assert!(one >= 250 * SECOND, "{one:?}");
    let (range, many) = drain("tasks = { min = 1, max = 16 }\nmax_in_flight = 64").await;
    assert_eq!((many.peak_tasks, many.peak_in_flight), (16, 64));
    assert!(range <= one / 10, "{range:?} of {one:?}");
    assert!(many.started_tasks >= 16);
}

#[tokio::test(start_paused = true)]
async fn one_task_fills_all_the_room_in_flight() {
    let (took, info) = drain("tasks = { min = 1, max = 1 }\nmax_in_flight = 100").await;
    assert_eq!((info.peak_tasks, info.peak_in_flight), (1, 100));
    assert!(took < 12 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn by_default_one_task_polls_and_more_come_with_work() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    faults.fail_every(Operation::Receive, Fault::Delayed(SECOND / 10));
    let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
    let listener = listener.batch(1).start().expect("starts");
    sleep(60 * SECOND).await;
    assert_eq!((listener.info().tasks, listener.info().peak_tasks), (1, 1));
    submit_jobs(&service, 500).await;
    sleep(60 * SECOND).await;
    let info = listener.info();
    assert_eq!((info.tasks, info.completed), (1, 500));
    assert!(info.peak_tasks > 1, "{info:?}");
    // Idle, it receives and does nothing else.
    let (receives, others) = (
        faults.calls(Operation::Receive),
        faults.calls(Operation::Properties),
    );
    sleep(3600 * SECOND).await;
    assert!(faults.calls(Operation::Receive) > receives + 3600);
    assert_eq!(faults.calls(Operation::Properties), others);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn tasks_end_on_an_empty_queue_except_the_last_ones_and_come_again() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
    let listener = listener
        .tasks(2..=12)
        .max_in_flight(12)
        .handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    for _ in 0..2 {
        submit_jobs(&service, 200).await;
        events(&mut seen, 200, completed).await;
        sleep(60 * SECOND).await;
        let info = listener.info();
        assert_eq!((info.tasks, info.in_flight_limit), (2, 12), "{info:?}");
        assert_eq!((info.peak_tasks, info.peak_in_flight), (12, 12), "{info:?}");
    }
    // Idle, it asks neither for the depth nor for the metadata.
    let asked = faults.calls(Operation::Properties);
    sleep(3600 * SECOND).await;
    assert_eq!(faults.calls(Operation::Properties), asked);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_no_task_and_changes_no_number() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 600).await;
    let listener = service.listener(async |_: Received<Job>| sleep(30 * SECOND).await);
    let listener = listener
        .tasks(1..=8)
        .max_in_flight(8)
        .handler_timeout(NEVER);
    let listener = listener.start().expect("starts");
    sleep(10 * SECOND).await;
    assert_eq!(listener.info().tasks, 8);
    let outage = Fault::Refused(ErrorKind::Unreachable);
    faults.fail_every(Operation::Receive, outage.clone());
    faults.fail_every(Operation::Properties, outage);
    sleep(3600 * SECOND).await;
    assert!(faults.injected(Operation::Receive) > 0 && faults.injected(Operation::Properties) > 0);
    assert_eq!(listener.info().tasks, 8);
    faults.heal();
    sleep(3000 * SECOND).await;
    assert_eq!(listener.info().completed, 600);
    assert_eq!((listener.info().unsettled, listener.info().retried), (0, 0));
    assert_eq!(listener.info().started_tasks, 8);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_added_and_removed_by_hand() {
    let service = testing::service().await;
    submit_jobs(&service, 10_000).await;
    let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
    let listener = listener.tasks(4).max_in_flight(8).handler_timeout(NEVER);
    let listener = listener.start().expect("starts");
    for tasks in [1, 3, 4, 16, 2] {
        listener.scale(tasks).expect("in range");
        sleep(5 * SECOND).await;
        let info = listener.info();
        assert_eq!((info.tasks, info.in_flight_limit), (tasks, 8));
        assert_eq!(info.in_flight, 8, "{info:?}");
    }
    // The policy chooses again.
    listener.scale(1..=6).expect("a range");
    sleep(5 * SECOND).await;
    assert_eq!(listener.info().tasks, 6);
    let error = listener.scale(0).expect_err("no task");
    assert_eq!(
        error.to_string(),
        "the number of tasks is 0; allowed is 1 to 1024"
    );
    assert_eq!(listener.info().tasks, 6);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn bytes_in_flight_are_limited() {
    let service = testing::service().await;
    submit_jobs(&service, 100).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let gate = Arc::new(Semaphore::new(0));
    let gated = Arc::clone(&gate);
    let listener = service.listener(move |_: Received<Job>| {
        let (now, peak, gate) = (Arc::clone(&now), Arc::clone(&peak), Arc::clone(&gated));
        async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.acquire().await.expect("open").forget();
            now.fetch_sub(1, Ordering::SeqCst);
        }
    });
    // Room for one message of the largest size, and then for the rest of one: about three kilobytes.
    let most_bytes = 51 * 1024;
    let listener = listener
        .max_bytes_in_flight(most_bytes)
        .max_in_flight(64)
        .handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    sleep(60 * SECOND).await;
    let held = running.load(Ordering::SeqCst);
    assert!((2..=20).contains(&held), "{held} in flight");
    gate.add_permits(100);
    events(&mut seen, 100, completed).await;
    assert!(most.load(Ordering::SeqCst) <= 20, "{most:?}");
    assert_eq!(listener.info().completed, 100);
    stop(listener).await;
    assert_eq!(count(&service, "jobs").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_the_most_that_one_receive_brings() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 60).await;
    let listener = service.listener(async |_: Received<Job>| ());
    let listener = listener
        .batch(3)
        .tasks(1)
        .until_empty()
        .start()
        .expect("starts");
    let report = listener.drained().await;
    assert_eq!(report.info.completed, 60);
    let receives = faults.calls(Operation::Receive) - report.info.empty_receives;
    assert!(receives >= 20, "{receives}");
}

/// Panics, and counts that it was asked.
#[derive(Debug, Default, Clone)]
struct Panicking(Arc<AtomicUsize>);

impl ScalePolicy for Panicking {
    fn tasks(&self, _: &Load) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("no idea")
    }
}

impl IdlePolicy for Panicking {
    fn delay(&self, _: Idle) -> Duration {
        SECOND
    }

    fn ends(&self, _: Idle) -> bool {
        panic!("no idea")
    }
}

#[tokio::test(start_paused = true)]
async fn policies_that_panic_change_nothing() {
    let service = testing::service().await;
    submit_jobs(&service, 100).await;
    let policy = Panicking::default();
    let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
    let listener = listener.tasks(1..=4).max_in_flight(4).scale(policy.clone());
    let listener = listener.idle(policy.clone()).handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let panicked =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::PolicyPanicked { .. });
    events(&mut seen, 3, panicked).await;
    assert_eq!(listener.info().tasks, 1);
    let asked = policy.0.load(Ordering::Relaxed);
    assert!((3..100).contains(&asked), "{asked}");
    // As by default, a task ends after three empty receives.
    listener.scale(4).expect("in range");
    sleep(200 * SECOND).await;
    listener.scale(1..=4).expect("a range");
    sleep(200 * SECOND).await;
    assert_eq!((listener.info().completed, listener.info().tasks), (100, 1));
    stop(listener).await;
}

#[tokio::test]
async fn settings_outside_their_range_are_refused() {
    let service = QueueService::connect("memory:").await.expect("up");
    let listener = || service.listener(async |_: Received<Job>| ());
    for (started, text) in [
        (
            listener().tasks(0).start(),
            "the number of tasks is 0; allowed is 1 to 1024",
        ),
        (
            listener().tasks(TaskRange { min: 4, max: 2 }).start(),
            "the maximum number of tasks is 2; allowed is 4 to 1024",
        ),
        (
            listener().batch(0).start(),
            "the number of messages per receive is 0; allowed is 1 or more",
        ),
        (
            listener().max_bytes_in_flight(100).start(),
            "the number of bytes in flight is 100; allowed is 49152 to ",
        ),
    ] {
        let error = started.expect_err("refused").to_string();
        assert!(error.contains(text), "{error}");
    }
    drop(
        listener()
            .batch(1_000)
            .start()
            .expect("clamped to what the backend allows"),
    );
}

#[test]
fn a_configuration_says_what_is_wrong_with_it() {
    let error = |text: &str| {
        toml::from_str::<ConsumerConfig>(text)
            .expect_err("refused")
            .to_string()
    };
    assert!(error("task = 1").contains("unknown field `task`"));
    assert!(
        error("idle_cap = \"soon\"").contains("soon"),
        "{}",
        error("idle_cap = \"soon\"")
    );
    let policy = error("scale = { policy = \"magic\" }");
    assert!(
        policy.contains("magic") && policy.contains("depth"),
        "{policy}"
    );
    assert!(error("retry = { base = \"1s\" }").contains("cap"));
}

//! Panics: of a handler, a policy, a backend, or a subscriber of the log. No task of a listener ends by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::policy::{Idle, IdlePolicy};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{ListenerEventKind, Received, RetryPolicy};
use queue_tests::SECOND;
use tokio::time::{Instant, sleep};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::jobs::{Job, Mood, completed, submit_jobs};
use crate::support::{GUARD, NEVER, count, events, poison, stop};

#[tokio::test(start_paused = true)]
async fn a_panic_says_what_and_where() {
    queue_runtime::panic::capture_locations();
    let service = testing::service().await;
    service
        .submit(Job { mood: Mood::Panics })
        .await
        .expect("submitted");
    let listener = service.listener(async |_: Received<Job>| -> () { panic!("out of cheese") });
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    let [ListenerEventKind::HandlerPanicked { panic, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(panic.message(), "out of cheese");
    let location = panic.location().expect("known");
    assert!(location.starts_with(file!()), "{location}");
    stop(listener).await;
}

#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("no words")
    }
}

impl std::error::Error for Unspeakable {}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_as_it_is_written_is_a_failed_attempt() {
    let service = testing::service().await;
    let submitted = service.submit(Job { mood: Mood::Fails }).await;
    submitted.expect("submitted");
    let listener = service
        .listener(async |_: Received<Job>| Err::<(), _>(Unspeakable))
        .poison_threshold(1);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    events(&mut seen, 1, |event| {
        matches!(event, ListenerEventKind::Poisoned { .. })
    })
    .await;
    let (record, _) = poison(&service, "jobs-poison").await.remove(0);
    let error = record.error.expect("it says why");
    assert!(
        error.starts_with("the text of the error panicked: no words"),
        "{error}"
    );
    stop(listener).await;
}

#[derive(Debug)]
struct Panicking;

impl IdlePolicy for Panicking {
    fn delay(&self, _: Idle) -> Duration {
        panic!("no policy")
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_policy_that_panics_is_replaced_by_the_default() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let listener = service
        .listener(async |_: Received<Job>| ())
        .idle(Panicking)
        .tasks(2);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let panicked = |event: &ListenerEventKind| match event {
        ListenerEventKind::PolicyPanicked { panic } => panic.message() == "no policy",
        _ => false,
    };
    events(&mut seen, 3, panicked).await;
    let receives = faults.calls(Operation::Receive);
    sleep(60 * SECOND).await;
    let polls = faults.calls(Operation::Receive) - receives;
    // It neither stops nor asks without a pause.
    assert!((60..=6_000).contains(&polls), "{polls}");
    submit_jobs(&service, 1).await;
    events(&mut seen, 1, completed).await;
    assert_eq!(listener.info().tasks, 2);
    assert!(listener.shutdown(GUARD).await.graceful);
}

/// Asks for no pause, but not for ever, so that time passes in any case.
#[derive(Debug)]
struct Sleepless;

impl IdlePolicy for Sleepless {
    fn delay(&self, idle: Idle) -> Duration {
        match idle.count {
            ..2000 => Duration::ZERO,
            _ => NEVER,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_policy_without_a_pause_gets_a_millisecond() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let listener = service
        .listener(async |_: Received<Job>| ())
        .idle(Sleepless)
        .tasks(1);
    let listener = listener.start().expect("starts");
    sleep(SECOND).await;
    let polls = faults.calls(Operation::Receive);
    assert!((1..=1000).contains(&polls), "{polls}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_queue_counts_as_empty() {
    #[derive(Debug, Clone, Default)]
    struct Counting(Arc<AtomicUsize>);

    impl IdlePolicy for Counting {
        fn delay(&self, idle: Idle) -> Duration {
            let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            assert_eq!(idle.count, count);
            SECOND
        }
    }

    let service = testing::service().await;
    let counting = Counting::default();
    let jobs = service.queue_named("jobs").expect("a name");
    let listener = jobs
        .listener(async |_: Received<Job>| ())
        .idle(counting.clone())
        .tasks(1);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    sleep(10 * SECOND).await;
    let found = seen.try_recv().expect("an event");
    assert!(
        matches!(found.kind, ListenerEventKind::QueueMissing),
        "{found:?}"
    );
    assert!(seen.is_empty(), "the policy was asked with another count");
    assert!(counting.0.load(Ordering::Relaxed) >= 10);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_dequeue_task_that_panics_starts_again() {
    const PANICS: usize = 6;

    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    faults.fail_next(PANICS, Operation::Receive, Fault::Panics);
    let listener = service.listener(async |job: Received<Job>| assert_eq!(job.attempt(), 1));
    let listener = listener.tasks(2);
    let mut seen = listener.events();
    let started = Instant::now();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, PANICS + 1, |_| true).await;
    let mut pauses = found.iter().filter_map(|event| match event {
        ListenerEventKind::TaskPanicked { panic, after } => {
            assert!(panic.message().contains("injected fault"), "{panic}");
            Some(*after)
        }
        _ => None,
    });
    let shortest = pauses.next().expect("the first");
    assert!(shortest >= SECOND / 10, "{shortest:?}");
    assert!(pauses.any(|pause| pause > shortest), "{found:?}");
    assert!(completed(&found[PANICS]), "{found:?}");
    assert!(started.elapsed() > SECOND / 2, "{:?}", started.elapsed());
    assert_eq!(listener.info().tasks, 2);
    assert!(listener.shutdown(GUARD).await.graceful);
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_settlement_panics_is_left_to_its_lease() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    faults.fail_next(1, Operation::Delete, Fault::Panics);
    let listener = service.listener(async |_: Received<Job>| ()).tasks(2);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    assert!(
        matches!(found[0], ListenerEventKind::MessageTaskPanicked { .. }),
        "{found:?}"
    );
    let info = listener.info();
    assert_eq!((info.tasks, info.in_flight, info.unsettled), (2, 0, 1));
    let left = Instant::now();
    let found = events(&mut seen, 1, |_| true).await;
    let again = matches!(found[0], ListenerEventKind::Completed { attempt: 2, .. });
    assert!(again, "{found:?}");
    assert!(left.elapsed() > 29 * SECOND, "{:?}", left.elapsed());
    assert_eq!(count(&service, "jobs").await, 0);
    assert!(listener.shutdown(GUARD).await.graceful);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_loses_no_lease() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    faults.fail_next(3, Operation::Update, Fault::Panics);
    let listener = service.listener(async |_: Received<Job>| sleep(200 * SECOND).await);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    let once = matches!(found[0], ListenerEventKind::Completed { attempt: 1, .. });
    assert!(once, "{found:?}");
    assert_eq!(faults.injected(Operation::Update), 3);
    stop(listener).await;
}

/// A log whose warnings and errors panic.
struct PanickingLog;

impl Subscriber for PanickingLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("no log")
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_of_the_log_that_panics_ends_no_task() {
    let _log = tracing::subscriber::set_default(PanickingLog);
    let (service, faults) = testing::service_with_faults().await;
    let listener = service
        .listener(async |job: Received<Job>| match job.mood {
            Mood::Good => Ok(()),
            Mood::Panics => panic!("out of cheese"),
            _ => Err("no luck"),
        })
        .retry(RetryPolicy::fixed(SECOND))
        .tasks(2)
        .handler_timeout(NEVER);
    let mut seen = listener.events();
    // The queue is missing, which is a warning.
    let listener = listener.start().expect("starts");
    sleep(SECOND).await;
    for mood in [Mood::Panics, Mood::Fails] {
        service.submit(Job { mood }).await.expect("submitted");
    }
    faults.fail_next(3, Operation::Receive, Fault::RequestLost);
    sleep(1000 * SECOND).await;
    submit_jobs(&service, 1).await;
    events(&mut seen, 1, completed).await;
    assert_eq!(count(&service, "jobs").await, 0);
    assert_eq!(poison(&service, "jobs-poison").await.len(), 2);
    assert_eq!(faults.injected(Operation::Receive), 3);
    assert_eq!(listener.info().tasks, 2);
    let report = listener.shutdown(GUARD).await;
    assert!(report.graceful, "{report:?}");
}

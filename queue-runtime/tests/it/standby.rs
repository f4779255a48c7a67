//! With `tasks(0..=n)` no task polls an empty queue while a notifier announces what is put on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::notify::{
    LocalNotifier, Notification, Notifier, Subscriber, Subscription, Writers,
};
use queue_runtime::testing::{Fault, FaultInjector};
use queue_runtime::{
    ErrorKind, ListenerEvent, ListenerEventKind, ListenerHandle, QueueName, QueueService, Received,
};
use queue_tests::{HOUR, MINUTE, SECOND};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, sleep};

use crate::support::jobs::{Job, completed, submit_jobs};
use crate::support::storage::Storage;
use crate::support::{NEVER, events, stop};

/// The notifier of a process, which the test breaks.
#[derive(Debug)]
struct Line {
    local: LocalNotifier,
    armed: Arc<AtomicBool>,
    loses: AtomicBool,
}

struct Tapped(Box<dyn Subscription>, Arc<AtomicBool>);

impl Notifier for Line {
    fn publish(&self, notification: &Notification<'_>) {
        if !self.loses.load(Ordering::Relaxed) {
            self.local.publish(notification);
        }
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        let subscription = self.local.subscribe(account, queue, subscriber);
        Box::new(Tapped(subscription, Arc::clone(&self.armed)))
    }
}

impl Subscription for Tapped {
    fn is_armed(&self) -> bool {
        self.0.is_armed() && self.1.load(Ordering::Relaxed)
    }
}

impl Line {
    fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
    }

    fn lose(&self, loses: bool) {
        self.loses.store(loses, Ordering::Relaxed);
    }
}

struct Idle {
    service: QueueService,
    faults: FaultInjector,
    line: Arc<Line>,
    listener: ListenerHandle,
    events: Receiver<ListenerEvent>,
}

impl Idle {
    /// Starts a listener on an empty queue.
    async fn start() -> Self {
        let line = Arc::new(Line {
            local: LocalNotifier::new(Writers::ThisProcess),
            armed: Arc::new(AtomicBool::new(true)),
            loses: AtomicBool::new(false),
        });
        let storage = Storage::new().announced_by(line.clone());
        let (service, faults) = storage.connect().await;
        submit_jobs(&service, 0).await;
        let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
        let listener = listener
            .tasks(0..=4)
            .max_in_flight(8)
            .handler_timeout(NEVER);
        let events = listener.events();
        let listener = listener.start().expect("starts");
        assert_eq!(listener.info().tasks, 1, "it looks at the queue first");
        Self {
            service,
            faults,
            line,
            listener,
            events,
        }
    }

    fn tasks(&self) -> usize {
        self.listener.info().tasks
    }

    fn receives(&self) -> usize {
        self.faults.calls(Operation::Receive)
    }

    /// Waits until this many messages are completed, and returns how long it took.
    async fn complete(&mut self, jobs: usize) -> Duration {
        let started = Instant::now();
        events(&mut self.events, jobs, completed).await;
        started.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_listener_costs_a_safety_poll_in_five_minutes() {
    let idle = Idle::start().await;
    sleep(10 * SECOND).await;
    assert_eq!(idle.tasks(), 0);
    let (receives, asked) = (idle.receives(), idle.faults.calls(Operation::Properties));
    assert!(receives <= 3, "{receives}");
    sleep(22 * HOUR).await;
    assert_eq!(idle.receives(), receives);
    let asked = idle.faults.calls(Operation::Properties) - asked;
    // One in 4 to 6 minutes.
    assert!((220..=330).contains(&asked), "{asked}");
    let info = idle.listener.info();
    assert_eq!(
        (info.tasks, info.started_tasks, info.depth),
        (0, 1, Some(0))
    );
    stop(idle.listener).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_put_is_handled_at_once_and_scales_the_tasks() {
    let mut idle = Idle::start().await;
    for _ in 0..3 {
        sleep(HOUR).await;
        assert_eq!(idle.tasks(), 0);
        submit_jobs(&idle.service, 1).await;
        assert_eq!(idle.complete(1).await, SECOND, "the time of the handler");
    }
    sleep(HOUR).await;
    submit_jobs(&idle.service, 200).await;
    let took = idle.complete(200).await;
    assert!(took < 60 * SECOND, "{took:?}");
    let info = idle.listener.info();
    assert_eq!((info.peak_tasks, info.peak_in_flight), (4, 8));
    sleep(MINUTE).await;
    assert_eq!(idle.tasks(), 0);
    stop(idle.listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_polls_while_nobody_announces_messages() {
    let mut idle = Idle::start().await;
    sleep(MINUTE).await;
    assert_eq!(idle.tasks(), 0);

    idle.line.arm(false);
    idle.line.lose(true);
    sleep(10 * SECOND).await;
    assert_eq!(idle.tasks(), 1);
    submit_jobs(&idle.service, 1).await;
    let took = idle.complete(1).await;
    assert!(took <= 2 * SECOND, "found by polling, not after {took:?}");
    sleep(HOUR).await;
    assert_eq!(idle.tasks(), 1);

    idle.line.arm(true);
    sleep(MINUTE).await;
    assert_eq!(idle.tasks(), 0);
    stop(idle.listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_announcement_is_lost_is_found_by_the_safety_poll() {
    let mut idle = Idle::start().await;
    sleep(MINUTE).await;
    idle.line.lose(true);
    submit_jobs(&idle.service, 1).await;
    let took = idle.complete(1).await;
    assert!(took <= 6 * MINUTE + 2 * SECOND, "{took:?}");
    stop(idle.listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_polls_while_a_message_is_invisible() {
    let mut idle = Idle::start().await;
    sleep(MINUTE).await;
    let leased = idle.service.accept::<Job>().visibility_timeout(HOUR);
    idle.line.lose(true);
    submit_jobs(&idle.service, 1).await;
    let leased = leased.await.expect("accepted").expect("there is one");
    let end = Instant::now() + HOUR;
    sleep(6 * MINUTE).await;
    assert_eq!(idle.tasks(), 1, "the safety poll counts it");
    let receives = idle.receives();
    let asked = idle.faults.calls(Operation::Properties);
    sleep(10 * MINUTE).await;
    assert_eq!(idle.tasks(), 1);
    let (receives, asked) = (
        idle.receives() - receives,
        idle.faults.calls(Operation::Properties) - asked,
    );
    // The depth with every tenth receive, and the metadata once a minute.
    assert!(asked <= receives / 10 + 12, "{asked} of {receives}");
    drop(leased);
    idle.complete(1).await;
    let late = end.elapsed();
    assert!(late <= 2 * SECOND, "{late:?} after the end of the lease");
    stop(idle.listener).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_makes_a_task_poll_until_it_is_over() {
    let mut idle = Idle::start().await;
    sleep(MINUTE).await;
    let outage = Fault::Refused(ErrorKind::Unreachable);
    idle.faults
        .fail_every(Operation::Properties, outage.clone());
    idle.faults.fail_every(Operation::Receive, outage);
    let failed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::ReceiveFailed { .. });
    events(&mut idle.events, 3, failed).await;
    assert_eq!(idle.tasks(), 1);
    idle.faults.heal();
    sleep(MINUTE).await;
    assert_eq!(idle.tasks(), 0);
    stop(idle.listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_it_stands_by_is_survived() {
    let mut idle = Idle::start().await;
    sleep(MINUTE).await;
    idle.faults
        .fail_next(1, Operation::Properties, Fault::Panics);
    let panicked =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::TaskPanicked { .. });
    events(&mut idle.events, 1, panicked).await;
    sleep(MINUTE).await;
    assert_eq!(idle.tasks(), 0, "it stands by again");
    submit_jobs(&idle.service, 200).await;
    idle.complete(200).await;
    assert_eq!(idle.listener.info().peak_tasks, 4);
    stop(idle.listener).await;
}

/// Its queue is empty before its last handler has ended.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_although_no_task_needs_to_poll() {
    let service = queue_runtime::testing::service().await;
    submit_jobs(&service, 1).await;
    let listener = service.listener(async |_: Received<Job>| sleep(HOUR).await);
    let listener = listener.tasks(0..=2).handler_timeout(NEVER).until_empty();
    let listener = listener.start().expect("starts");
    sleep(SECOND).await;
    assert_eq!(listener.info().in_flight, 1);
    let jobs = service.any_queue("jobs").expect("a name");
    jobs.clear().await.expect("cleared");
    let drained = tokio::time::timeout(2 * HOUR, listener.drained()).await;
    assert_eq!(drained.expect("it ends").info.in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn it_can_be_paused_scaled_and_stopped() {
    let mut idle = Idle::start().await;
    sleep(MINUTE).await;
    idle.listener.pause();
    submit_jobs(&idle.service, 1).await;
    sleep(HOUR).await;
    assert_eq!((idle.tasks(), idle.listener.info().completed), (0, 0));
    idle.listener.resume();
    assert_eq!(idle.complete(1).await, SECOND);

    sleep(MINUTE).await;
    assert_eq!(idle.tasks(), 0);
    idle.listener.scale(2).expect("in range");
    assert_eq!(idle.tasks(), 2);
    sleep(HOUR).await;
    assert_eq!(idle.tasks(), 2);
    idle.listener.scale(0..=2).expect("in range");
    sleep(MINUTE).await;
    assert_eq!(idle.tasks(), 0);
    submit_jobs(&idle.service, 1).await;
    assert_eq!(idle.complete(1).await, SECOND);
    sleep(MINUTE).await;
    let report = idle.listener.shutdown(SECOND).await;
    assert!(report.graceful, "{report:?}");
}

//! Consumers that wait are woken as soon as there is a message, and not by what is no message.
//!
//! Idle consumers poll once an hour here, in paused time: what is handled earlier was announced.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::notify::{Notification, Notifier, Subscriber, Subscription};
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::{
    Disposition, Message, MessageId, QueueName, QueueService, Received, RetryPolicy,
};
use queue_tests::{HOUR, SECOND};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};

use crate::support::{Hourly, guarded, stop};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Then {
    Complete,
    FollowUp,
    Retry,
    Reject,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "steps", kind = "step")]
struct Step {
    then: Then,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "ends", kind = "end")]
struct End;

/// The kinds and attempts of handled messages, in order.
struct Handled {
    sender: UnboundedSender<(&'static str, usize)>,
    receiver: UnboundedReceiver<(&'static str, usize)>,
}

impl Handled {
    fn none() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver }
    }

    /// Waits for the next message, and returns how long it took in paused time.
    async fn expect(&mut self, kind: &'static str, attempt: usize) -> Duration {
        let started = Instant::now();
        let next = guarded(self.receiver.recv()).await.expect("it comes");
        assert_eq!(next, Some((kind, attempt)));
        started.elapsed()
    }
}

fn step(then: Then) -> Step {
    Step { then }
}

async fn create(service: &QueueService, queues: &[&str]) {
    for queue in queues {
        let queue = service.any_queue(*queue).expect("a name");
        queue.create().await.expect("created");
    }
}

fn listen(service: &QueueService, handled: &Handled) -> [queue_runtime::ListenerHandle; 2] {
    let (steps, ends) = (handled.sender.clone(), handled.sender.clone());
    let steps = service.listener(move |step: Received<Step>| {
        let _ = steps.send(("step", step.attempt()));
        async move {
            match (step.then, step.attempt()) {
                (Then::Complete, _) | (Then::Retry, 2) => Disposition::complete(),
                (Then::FollowUp, _) => Disposition::complete().then(&End),
                (Then::Retry, _) => Disposition::retry("not yet"),
                (Then::Reject, _) => Disposition::reject("never"),
            }
        }
    });
    let steps = steps.retry(RetryPolicy::fixed(100 * SECOND));
    let ends = service.listener(move |end: Received<End>| {
        let _ = ends.send(("end", end.attempt()));
        async {}
    });
    [
        steps.idle(Hourly).start().expect("starts"),
        ends.idle(Hourly).start().expect("starts"),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_idle_listener_handles_what_is_put_at_once() {
    let service = testing::service().await;
    create(&service, &["steps", "ends"]).await;
    let mut handled = Handled::none();
    let listeners = listen(&service, &handled);
    sleep(SECOND).await;

    service.submit(End).await.expect("submitted");
    assert_eq!(handled.expect("end", 1).await, Duration::ZERO);
    sleep(SECOND).await;
    let many = service.submit_all([End, End]).await;
    assert_eq!(many.expect("submitted").len(), 2);
    assert_eq!(handled.expect("end", 1).await, Duration::ZERO);
    assert_eq!(handled.expect("end", 1).await, Duration::ZERO);

    sleep(SECOND).await;
    let parent = service.submit(step(Then::FollowUp)).await;
    parent.expect("submitted");
    assert_eq!(handled.expect("step", 1).await, Duration::ZERO);
    assert_eq!(handled.expect("end", 1).await, Duration::ZERO);
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn more_messages_than_one_receive_takes_are_handled_without_a_pause() {
    let service = testing::service().await;
    create(&service, &["steps", "ends"]).await;
    let mut handled = Handled::none();
    let listeners = listen(&service, &handled);
    sleep(SECOND).await;
    let started = Instant::now();
    let many = service.submit_all((0..500).map(|_| End)).await;
    many.expect("submitted");
    for _ in 0..500 {
        handled.expect("end", 1).await;
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn delayed_and_retried_messages_are_handled_when_they_become_visible() {
    let service = testing::service().await;
    create(&service, &["steps", "ends"]).await;
    let mut handled = Handled::none();
    let listeners = listen(&service, &handled);
    sleep(SECOND).await;
    let on_time = |elapsed: Duration, delay: Duration| {
        assert!(elapsed >= delay, "{elapsed:?} is before {delay:?}");
        assert!(
            elapsed <= delay + delay / 64,
            "{elapsed:?} is after {delay:?}"
        );
    };

    service.submit(End).delay(600 * SECOND).await.expect("ok");
    on_time(handled.expect("end", 1).await, 600 * SECOND);
    let delayed = service.submit_all([End]).delay(60 * SECOND).await;
    assert_eq!(delayed.expect("ok").len(), 1);
    on_time(handled.expect("end", 1).await, 60 * SECOND);

    service.submit(step(Then::Retry)).await.expect("ok");
    handled.expect("step", 1).await;
    on_time(handled.expect("step", 2).await, 100 * SECOND);
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn poisoned_released_and_redriven_messages_wake_their_consumers() {
    let service = testing::service().await;
    create(&service, &["steps", "ends", "steps-poison"]).await;
    let mut handled = Handled::none();
    let listeners = listen(&service, &handled);
    let poison = service.queue_named::<Step>("steps-poison").expect("a name");
    let waiting = poison
        .accept()
        .poison_queue("worse")
        .expect("a name")
        .wait(HOUR);
    let waiting = tokio::spawn(waiting.into_future());
    sleep(SECOND).await;

    let started = Instant::now();
    service.submit(step(Then::Reject)).await.expect("ok");
    handled.expect("step", 1).await;
    let poisoned = guarded(waiting).await.expect("it ends").expect("no panic");
    let poisoned = poisoned.expect("no error").expect("a poison message");
    assert_eq!(started.elapsed(), Duration::ZERO);

    let waiting = poison
        .accept()
        .poison_queue("worse")
        .expect("a name")
        .wait(HOUR);
    let waiting = tokio::spawn(waiting.into_future());
    sleep(SECOND).await;
    let started = Instant::now();
    poisoned.release().await.expect("released");
    let again = guarded(waiting).await.expect("it ends").expect("no panic");
    let again = again.expect("no error").expect("the released message");
    again.release().await.expect("released");
    assert_eq!(started.elapsed(), Duration::ZERO);

    let redriven = poison.any().redrive().run().await.expect("ok");
    assert_eq!(redriven.redriven, 1);
    assert_eq!(handled.expect("step", 1).await, Duration::ZERO);
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_submission_of_unknown_outcome_is_announced() {
    let (service, faults) = testing::service_with_faults().await;
    create(&service, &["ends"]).await;
    for operation in [Operation::Put, Operation::Apply] {
        let waiting = tokio::spawn(service.accept::<End>().wait(HOUR).into_future());
        sleep(100 * SECOND).await;
        let started = Instant::now();
        faults.fail_next(1, operation, Fault::AnswerLost);
        match operation {
            Operation::Put => drop(service.submit(End).await.expect_err("unknown")),
            _ => drop(service.submit_all([End, End]).await.expect_err("unknown")),
        }
        let end = guarded(waiting).await.expect("it ends").expect("no panic");
        let end = end.expect("no error").expect("it was stored");
        end.complete().await.expect("completed");
        assert_eq!(started.elapsed(), Duration::ZERO, "{operation:?}");
        assert_eq!(faults.injected(operation), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn services_of_one_named_memory_wake_each_other() {
    let connect = || {
        let service = QueueService::builder("memory:wakeups")
            .clock(Arc::new(TokioClock::new()))
            .on_current_runtime();
        service.connect()
    };
    let (web, worker) = (connect().await.expect("ok"), connect().await.expect("ok"));
    create(&web, &["steps", "ends"]).await;
    let mut handled = Handled::none();
    let listeners = listen(&worker, &handled);
    sleep(SECOND).await;
    web.submit(End).await.expect("submitted");
    assert_eq!(handled.expect("end", 1).await, Duration::ZERO);
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_wakes_for_a_queue_that_was_missing_and_not_while_it_is_paused() {
    let service = testing::service().await;
    let mut handled = Handled::none();
    let [steps, ends] = listen(&service, &handled);
    sleep(SECOND).await;
    service.submit(End).await.expect("submitted");
    assert_eq!(handled.expect("end", 1).await, Duration::ZERO);

    let other = Handled::none();
    let others = listen(&service, &other);
    sleep(SECOND).await;
    let mut other = other;
    ends.pause();
    // Its tasks notice.
    sleep(SECOND).await;
    for _ in 0..4 {
        service.submit(End).await.expect("submitted");
        assert_eq!(other.expect("end", 1).await, Duration::ZERO);
    }
    for listener in others.into_iter().chain([steps, ends]) {
        stop(listener).await;
    }
}

/// A notifier whose notifications the test forges.
#[derive(Debug, Default)]
struct Forger {
    subscribers: Arc<Mutex<Vec<Hidden>>>,
}

struct Hidden(String, QueueName, Arc<dyn Subscriber>);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.1.fmt(f)
    }
}

struct Forgotten;

impl Subscription for Forgotten {
    fn is_armed(&self) -> bool {
        false
    }
}

impl Notifier for Forger {
    fn publish(&self, _: &Notification<'_>) {}

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        let subscriber = Hidden(account.to_owned(), queue.clone(), subscriber);
        self.subscribers.lock().expect("free").push(subscriber);
        Box::new(Forgotten)
    }
}

impl Forger {
    fn forge(&self, messages: usize, visible_in: Duration) {
        for Hidden(account, queue, subscriber) in &*self.subscribers.lock().expect("free") {
            let forged = Notification::new(account, queue).with_messages(messages, 0);
            subscriber.notified(&forged.with_visible_in(visible_in));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn forged_notifications_cost_a_receive_a_second_at_most() {
    const MINUTE: usize = 60;

    let clock = Arc::new(TokioClock::new());
    let memory = queue_runtime::backend::MemoryBackend::new(clock.clone());
    let faults = testing::FaultInjector::new(Arc::new(memory));
    let forger = Arc::new(Forger::default());
    let service = QueueService::with_backend(Arc::new(faults.clone()))
        .clock(clock)
        .notifier(forger.clone())
        .on_current_runtime();
    let service = service.connect().await.expect("connects");
    create(&service, &["ends", "steps"]).await;
    let mut handled = Handled::none();
    let [steps, ends] = listen(&service, &handled);
    stop(steps).await;
    sleep(SECOND).await;

    let before = faults.calls(Operation::Receive);
    forger.forge(usize::MAX, Duration::ZERO);
    sleep(SECOND).await;
    let one = faults.calls(Operation::Receive) - before;
    assert!((1..=2).contains(&one), "one forged notification: {one}");

    let before = faults.calls(Operation::Receive);
    for millisecond in 0..MINUTE as u64 * 1000 {
        forger.forge(usize::MAX, Duration::ZERO);
        forger.forge(1, Duration::from_millis(millisecond % 7919));
        forger.forge(usize::MAX, Duration::MAX);
        sleep(Duration::from_millis(1)).await;
    }
    let flood = faults.calls(Operation::Receive) - before;
    assert!((MINUTE - 1..=MINUTE + 10).contains(&flood), "{flood}");

    let id = MessageId::random();
    let put = service.submit(End).id(id.as_str()).await;
    put.expect("submitted");
    let late = handled.expect("end", 1).await;
    assert!(late <= SECOND, "{late:?} after the flood");
    service.submit(End).await.expect("submitted");
    assert_eq!(handled.expect("end", 1).await, Duration::ZERO);
    stop(ends).await;
}

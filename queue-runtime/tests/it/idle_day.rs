//! What a day beside idle listeners costs while Tokio's time is paused: a number of wake-ups and of requests, since the
//! time that they take is the machine's.

use std::time::Duration;

use queue_runtime::policy::TaskRange;
use queue_runtime::testing::{self, TestService};
use queue_runtime::{ListenerHandle, Message, QueueService, Received};
use queue_tests::{DAY, HOUR, MINUTE, SECOND};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep};

#[derive(Debug, Serialize, Deserialize, Message)]
struct Reminder {
    number: u32,
}

fn wakeups() -> u64 {
    Handle::current().metrics().worker_park_count(0)
}

/// Creates a queue, and submits a message that becomes visible after each delay.
async fn queue(service: &TestService, number: usize, delays: &[Duration]) {
    let queue = service.queue_named::<Reminder>(format!("reminders-{number}"));
    let queue = queue.expect("a name");
    queue.any().create().await.expect("created");
    for delay in delays {
        let submitted = queue.submit(Reminder { number: 7 }).delay(*delay).await;
        submitted.expect("submitted");
    }
}

fn listen(service: &QueueService, number: usize, tasks: impl Into<TaskRange>) -> ListenerHandle {
    let queue = service.queue_named::<Reminder>(format!("reminders-{number}"));
    let listener = queue
        .expect("a name")
        .listener(async |_: Received<Reminder>| ());
    listener.tasks(tasks).start().expect("starts")
}

/// The wake-ups and the requests of a day.
async fn day(service: &QueueService) -> (u64, usize) {
    let (before, used) = (wakeups(), service.meter());
    sleep(DAY).await;
    let requests = service.meter().since(&used).total().total();
    (wakeups() - before, requests)
}

/// A look at the queue every 30 seconds, or 5 minutes by a task that stands by, and a second one for the depth if messages
/// are delayed. A wake-up parks the runtime several times.
#[tokio::test(start_paused = true)]
async fn idle_listeners_poll_once_in_a_visibility_timeout_each() {
    for (listeners, fewest, delays, most) in [
        (1, 1, &[][..], 4_000),
        (10, 1, &[], 40_000),
        (10, 0, &[], 4_000),
        (10, 1, &[2 * DAY], 80_000),
    ] {
        let service = testing::service().await;
        for number in 0..listeners {
            queue(&service, number, delays).await;
            listen(&service, number, fewest..=8);
        }
        let (wakeups, requests) = day(&service).await;
        let case = format!("{listeners} listeners, {fewest} tasks, {delays:?}");
        assert!(wakeups <= 20 * 20_000, "{wakeups} wake-ups of {case}");
        assert!(requests <= most, "{requests} requests of {case}");
        service.shutdown(Duration::ZERO).await;
    }
}

/// More delays than are kept exactly, of messages that were put before the listener starts and after; and the lease of a
/// consumer that has crashed, which nobody announces.
#[tokio::test(start_paused = true)]
async fn what_becomes_visible_is_handled_at_once_though_nobody_polls() {
    for before in [true, false] {
        let service = testing::service().await;
        let delays: Vec<_> = (1..=100).map(|number| number * 7 * MINUTE).collect();
        let started = Instant::now();
        queue(&service, 0, &[Duration::ZERO]).await;
        let name = "reminders-0".parse().expect("a name");
        let leased = service.backend().receive(&name, 1, 13 * HOUR).await;
        assert_eq!(leased.expect("received").len(), 1);
        if before {
            queue(&service, 0, &delays).await;
        }
        let (handled, mut times) = unbounded_channel();
        let reminders = service.queue_named::<Reminder>(name).expect("a name");
        let listener = reminders.listener(move |_: Received<Reminder>| {
            let told = handled.send(started.elapsed());
            async move { told.expect("the test listens") }
        });
        listener.start().expect("starts");
        // The listener is idle by then, and sleeps for minutes.
        sleep(MINUTE).await;
        if !before {
            queue(&service, 0, &delays).await;
        }
        let put_at = if before { Duration::ZERO } else { MINUTE };
        let mut expected: Vec<_> = delays.iter().map(|delay| put_at + *delay).collect();
        expected.push(13 * HOUR);
        expected.sort();
        for expected in expected {
            let at = times.recv().await.expect("the listener runs");
            assert!(at >= expected, "{at:?} is before {expected:?}");
            let late = at - expected;
            assert!(
                late <= SECOND / 100,
                "{late:?} after {expected:?}, {before}"
            );
        }
        service.shutdown(Duration::ZERO).await;
    }
}

/// The lease of the message is renewed every 15 seconds, at each of which the queue may be looked at.
#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_for_a_day_costs_its_renewals() {
    let service = testing::service().await;
    queue(&service, 0, &[Duration::ZERO]).await;
    let reminders = service.queue_named::<Reminder>("reminders-0");
    let waits = async |_: Received<Reminder>| sleep(2 * DAY).await;
    let listener = reminders.expect("a name").listener(waits);
    listener.handler_timeout(7 * DAY).start().expect("starts");
    let (_, requests) = day(&service).await;
    assert!((5_760..=4 * 5_760).contains(&requests), "{requests}");
    service.shutdown(Duration::ZERO).await;
}

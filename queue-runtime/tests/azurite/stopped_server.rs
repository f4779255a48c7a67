//! A service that is stopped under the load of a listener, and started again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{Backend, QueueProperties};
use queue_core::internal::forward_backend;
use queue_core::{QueueName, Result};
use queue_runtime::policy::{DepthRules, ExponentialIdle};
use queue_runtime::{
    ListenerEvent, ListenerEventKind, ListenerHandle, Queue, QueueService, Received,
};
use queue_tests::azurite::Azurite;
use queue_tests::orders::ShopOrder;
use tokio::sync::broadcast::Receiver;
use tokio::sync::{Semaphore, watch};

use crate::case::{PATIENCE, connect, run};
use crate::proxy::GUARD;
use crate::server::ACCOUNT;
use crate::stage::{LEASE, changed, durable, next, until_empty};

const ROUNDS: usize = 3;
const TASKS: usize = 4;
const IN_FLIGHT: usize = 4 * TASKS;
/// The number of messages that are completed before each stop, that may be completed while it stops, and that are
/// completed after each start.
const BETWEEN: usize = 40;
/// The number of failed receives in each outage. At least one task has three in a row then: if they were empty ones, it
/// would end.
const FAILURES: usize = 2 * TASKS + 1;
/// More than are handled in all rounds, so that no receive finds the queue empty.
const MESSAGES: u32 = (ROUNDS * (3 * BETWEEN + IN_FLIGHT) + 4 * IN_FLIGHT) as u32;

#[test]
fn an_outage_under_load_ends_no_task_and_loses_no_message() {
    run(async {
        let mut server = durable();
        let url = server.connection_string(ACCOUNT);
        let backend = Arc::new(Questions::of(Arc::new(connect(&url, PATIENCE).await)));
        let service = QueueService::with_backend(Arc::clone(&backend) as _).connect();
        let service = service.await.expect("connect");
        let queue = service.queue_named::<ShopOrder>("stopped-orders");
        let queue = queue.expect("a name");
        let orders = (0..MESSAGES).map(|number| ShopOrder { number });
        queue.submit_all(orders).await.expect("submitted");

        let mut load = Load::start(&queue).await;
        for _ in 0..ROUNDS {
            // The number of tasks is not chosen without the depth, which is asked for only while messages are in flight.
            let unanswered = backend.hold().await;
            // It stops in the middle of receives, handlers and deletions.
            load.allow(2 * BETWEEN);
            load.until(BETWEEN, is_completed).await;
            server = changed(server, Azurite::stop).await;
            // If messages that cannot be deleted take all room, tasks receive when the leases have ended.
            load.allow(IN_FLIGHT);
            load.until(FAILURES, is_failed_receive).await;
            backend.release_unanswered(unanswered).await;
            load.check();
            server = changed(server, Azurite::start_again).await;
            load.check();
            load.allow(BETWEEN);
            let failed = load.until(BETWEEN, is_completed).await;
            assert!(failed <= TASKS, "{failed} receives failed after the outage");
        }
        load.finish(&queue).await;
        let queues = service.queues().await.expect("queues");
        let queues: Vec<_> = queues.iter().map(|queue| queue.as_str()).collect();
        assert_eq!(queues, ["stopped-orders"], "there is no poison queue");
    });
}

/// A listener whose handlers wait until they are allowed to end.
struct Load {
    listener: ListenerHandle,
    events: Receiver<ListenerEvent>,
    allowed: Arc<Semaphore>,
    handled: Arc<Mutex<BTreeSet<u32>>>,
}

impl Load {
    /// Starts the listener, and waits until it has all its tasks.
    async fn start(queue: &Queue<ShopOrder>) -> Self {
        let allowed = Arc::new(Semaphore::new(0));
        let handled = Arc::new(Mutex::new(BTreeSet::new()));
        let (may_end, noted) = (Arc::clone(&allowed), Arc::clone(&handled));
        let handler = move |received: Received<ShopOrder>| {
            let (may_end, noted) = (Arc::clone(&may_end), Arc::clone(&noted));
            async move {
                may_end.acquire().await.expect("never closed").forget();
                let mut handled = noted.lock().unwrap_or_else(PoisonError::into_inner);
                handled.insert(received.number);
            }
        };
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let listener = listener.tasks(1..=TASKS).max_in_flight(IN_FLIGHT);
        // A queue that is taken for empty would do with one task.
        let listener = listener.scale(DepthRules::new([(1, 1)], TASKS));
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let listener = listener.handler_timeout(100 * GUARD);
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let scaled = |event: &ListenerEventKind| matches!(event, ListenerEventKind::Scaled { .. });
        next(&mut events, scaled).await;
        let load = Self {
            listener,
            events,
            allowed,
            handled,
        };
        load.check_tasks();
        load
    }

    /// Allows so many more handlers to end.
    fn allow(&self, handlers: usize) {
        self.allowed.add_permits(handlers);
    }

    /// Waits for a number of events. Returns how many receives failed meanwhile.
    async fn until(&mut self, count: usize, wanted: fn(&ListenerEventKind) -> bool) -> usize {
        let (mut found, mut failed) = (0, 0);
        while found < count {
            let event = next(&mut self.events, |_| true).await;
            check_event(&event);
            found += usize::from(wanted(&event));
            failed += usize::from(is_failed_receive(&event));
        }
        self.check_tasks();
        failed
    }

    /// Checks the events until now, and the number of tasks.
    fn check(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            check_event(&event.kind);
        }
        self.check_tasks();
    }

    fn check_tasks(&self) {
        let info = self.listener.info();
        let tasks = (info.tasks, info.started_tasks, info.empty_receives);
        assert_eq!(tasks, (TASKS, TASKS, 0), "{info:?}");
    }

    /// Has all messages handled.
    async fn finish(self, queue: &Queue<ShopOrder>) {
        self.allow(MESSAGES as usize);
        until_empty(queue).await;
        self.listener.shutdown(GUARD).await;
        let handled = self.handled.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(handled.iter().copied().eq(0..MESSAGES), "{handled:?}");
    }
}

/// No task has ended, and no message is poison or has failed.
fn check_event(event: &ListenerEventKind) {
    let expected = matches!(
        event,
        ListenerEventKind::Completed { .. }
            | ListenerEventKind::NotSettled { .. }
            | ListenerEventKind::ReceiveFailed { .. }
            | ListenerEventKind::Released { .. }
    );
    assert!(expected, "{event:?}");
}

fn is_completed(event: &ListenerEventKind) -> bool {
    matches!(event, ListenerEventKind::Completed { .. })
}

fn is_failed_receive(event: &ListenerEventKind) -> bool {
    matches!(event, ListenerEventKind::ReceiveFailed { .. })
}

/// A backend that holds the questions for the properties of a queue when it is told to.
#[derive(Debug)]
struct Questions {
    inner: Arc<dyn Backend>,
    state: watch::Sender<Asked>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    are_held: bool,
    /// The number of questions that have no answer yet.
    open: usize,
    /// The number of questions that failed, or were given up.
    unanswered: usize,
}

/// A question, which is unanswered when it is dropped before its answer.
struct Question<'a> {
    state: &'a watch::Sender<Asked>,
    is_answered: bool,
}

impl Questions {
    fn of(inner: Arc<dyn Backend>) -> Self {
        let state = watch::Sender::default();
        Self { inner, state }
    }

    /// Holds the next question, and waits for it. Returns how many were not answered before.
    async fn hold(&self) -> usize {
        let unanswered = self.state.borrow().unanswered;
        self.state.send_modify(|asked| asked.are_held = true);
        self.until(|asked| asked.open > 0 || asked.unanswered > unanswered)
            .await;
        unanswered
    }

    /// Goes on with the question that is held, and waits until more than so many were not answered.
    async fn release_unanswered(&self, unanswered: usize) {
        self.state.send_modify(|asked| asked.are_held = false);
        self.until(|asked| asked.unanswered > unanswered).await;
    }

    async fn until(&self, wanted: impl Fn(&Asked) -> bool) {
        let mut state = self.state.subscribe();
        let reached = tokio::time::timeout(GUARD, state.wait_for(wanted)).await;
        reached.expect("in time").expect("this has the sender");
    }
}

impl<'a> Question<'a> {
    fn of(state: &'a watch::Sender<Asked>) -> Self {
        state.send_modify(|asked| asked.open += 1);
        let is_answered = false;
        Self { state, is_answered }
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.state.send_modify(|asked| {
            asked.open -= 1;
            asked.unanswered += usize::from(!self.is_answered);
        });
    }
}

#[async_trait]
impl Backend for Questions {
    forward_backend!(self => self.inner; all but properties);

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let mut question = Question::of(&self.state);
        let mut state = self.state.subscribe();
        let released = state.wait_for(|asked| !asked.are_held).await;
        drop(released.expect("this has the sender"));
        let answer = self.inner.properties(queue).await;
        question.is_answered = answer.is_ok();
        answer
    }
}

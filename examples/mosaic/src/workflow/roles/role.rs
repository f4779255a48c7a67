use std::future::Future;
use std::ops::AddAssign;
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::envelope::{PoisonReason, PoisonRecord};
use queue_runtime::listener::{ListenerInfo, ShutdownReport};
use queue_runtime::policy::ExponentialIdle;
use queue_runtime::receive::{Accept, OnError};
use queue_runtime::service::StopOnDrop;
use queue_runtime::{
    Failure, ListenerBuilder, ListenerHandle, Message, MessageId, QueueName, QueueService,
    Received, RetryPolicy,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::storage::libraries::LibraryError;
use crate::storage::store::StoreError;
use pictures::PictureError;

/// The settings of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of messages in flight per queue.
    pub tasks: usize,
    /// The visibility timeout of received messages; by default that of the queue.
    pub visibility_timeout: Option<Duration>,
    /// The number of attempts after which a message is moved to the poison queue; by default that of the queue.
    pub poison_threshold: Option<usize>,
    /// The minimum time that a processor takes for a slice, with which tests prolong small jobs.
    pub pace: Duration,
}

/// A running role: dropping it stops it at once.
#[derive(Debug)]
#[must_use = "dropping a role stops it"]
pub struct Role {
    name: &'static str,
    listeners: Vec<StopOnDrop<ListenerHandle>>,
    accepting: Option<Accepting>,
}

/// A loop that accepts messages.
#[derive(Debug)]
struct Accepting {
    stop: watch::Sender<bool>,
    running: JoinSet<Totals>,
}

/// The counts of messages that a role handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Messages handled and acknowledged.
    pub completed: usize,
    /// Attempts that failed and were retried, and leases that were lost.
    pub retried: usize,
    /// Messages moved to the poison queue.
    pub poisoned: usize,
    /// Messages handed back at shutdown, because their handlers did not finish.
    pub released: usize,
}

/// The timeout of handlers, which may exceed the visibility timeout, since leases are renewed.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The pause between two polls of an empty queue whose messages are announced.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Applies settings to a consumer, a listener or what accepts one message: it rejects messages whose blobs or settings are at
/// fault, and retries after other errors. Handlers return errors by `?`, and the consumers classify them by type.
macro_rules! configured {
    ($settings:expr, $service:expr, $consumer:expr) => {{
        let mut consumer = $consumer
            .classify(on_store_error)
            .classify(on_picture_error)
            .classify(|error: &LibraryError| match error {
                LibraryError::Store(error) => on_store_error(error),
                LibraryError::Library(error) => on_picture_error(error),
                _ => OnError::Retry,
            })
            .retry(RetryPolicy::exponential(
                Duration::from_millis(250),
                Duration::from_secs(10),
            ));
        if let Some(timeout) = $settings.visibility_timeout {
            consumer = consumer.visibility_timeout(timeout);
        }
        if let Some(attempts) = $settings.poison_threshold {
            consumer = consumer.poison_threshold(attempts);
        }
        if let Some(policy) = idle_policy($service) {
            consumer = consumer.idle(policy);
        }
        consumer
    }};
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tasks: 2,
            visibility_timeout: None,
            poison_threshold: None,
            pace: Duration::ZERO,
        }
    }
}

impl Settings {
    /// Applies the settings to a listener of a service, with up to this many dequeue tasks.
    pub(super) fn listen<M: Message>(
        &self,
        service: &QueueService,
        listener: ListenerBuilder<M>,
        tasks: usize,
    ) -> ListenerBuilder<M> {
        configured!(self, service, listener)
            .tasks(0..=tasks)
            .max_in_flight(self.tasks)
            .handler_timeout(HANDLER_TIMEOUT)
    }

    /// Returns what accepts one message of a service.
    pub(super) fn accept<M: Message>(&self, service: &QueueService) -> Accept<M> {
        configured!(self, service, service.accept::<M>())
    }
}

fn on_picture_error(error: &PictureError) -> OnError {
    if error.is_permanent() {
        OnError::Reject
    } else {
        OnError::Retry
    }
}

fn on_store_error(error: &StoreError) -> OnError {
    match error {
        StoreError::Missing(_) | StoreError::TooLarge { .. } | StoreError::Record { .. } => {
            OnError::Reject
        }
        _ => OnError::Retry,
    }
}

/// How consumers poll an empty queue where the storage has wake-ups of its own: rarely, since these find almost all
/// messages; elsewhere, as by default.
fn idle_policy(service: &QueueService) -> Option<ExponentialIdle> {
    let wakes = service.backend().notifier().is_some();
    wakes.then(|| ExponentialIdle::new(POLL_INTERVAL, Duration::ZERO, POLL_INTERVAL))
}

impl Role {
    /// A role of listeners.
    pub(super) fn listening(
        name: &'static str,
        listeners: Vec<StopOnDrop<ListenerHandle>>,
    ) -> Self {
        Self {
            listeners,
            ..Self::new(name)
        }
    }

    /// A role with a loop that accepts messages until it is told to stop, and returns what it handled.
    pub(super) fn accepting<F>(
        name: &'static str,
        accept: impl FnOnce(watch::Receiver<bool>) -> F,
    ) -> Self
    where
        F: Future<Output = Totals> + Send + 'static,
    {
        let mut role = Self::new(name);
        let stop = watch::Sender::new(false);
        let mut running = JoinSet::new();
        running.spawn(accept(stop.subscribe()));
        role.accepting = Some(Accepting { stop, running });
        role
    }

    fn new(name: &'static str) -> Self {
        tracing::info!(role = name, "started");
        Self {
            name,
            listeners: Vec::new(),
            accepting: None,
        }
    }

    /// Waits until the role has failed: its loop has panicked.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn failed(&mut self) -> Failure {
        if let Some(accepting) = &mut self.accepting
            && let Some(Err(error)) = accepting.running.join_next().await
        {
            return format!("the {} has failed: {error}", self.name).into();
        }
        std::future::pending().await
    }

    /// Stops receiving, waits up to `grace` for handlers to finish, then hands back the messages of listeners. A message
    /// that the broker handles for longer comes again when its lease ends, and is in no totals.
    /// Returns the totals of the role.
    ///
    /// # Cancel safety
    /// If the future is dropped, call `shutdown` again, with another `grace`.
    pub async fn shutdown(&mut self, grace: Duration) -> Totals {
        let listeners = self.listeners.iter();
        let reports = listeners.map(|one| ListenerHandle::clone(one).shutdown(grace));
        let accepting = self.accepting.as_mut();
        let ended = async {
            match accepting {
                Some(accepting) => accepting.end(grace).await,
                None => Totals::default(),
            }
        };
        let (reports, mut totals) = tokio::join!(join_all(reports), ended);
        for ShutdownReport { released, info, .. } in &reports {
            totals += Totals {
                released: *released,
                ..Totals::of(info)
            };
        }
        tracing::info!(role = self.name, ?totals, "stopped");
        totals
    }
}

impl Accepting {
    /// Waits up to `grace` for the message that is handled, then drops it, so that it comes again when its lease expires.
    async fn end(&mut self, grace: Duration) -> Totals {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(grace, self.running.join_next()).await;
        self.running.abort_all();
        match ended {
            Ok(Some(Ok(totals))) => return totals,
            Ok(Some(Err(error))) => tracing::error!(%error, "a role has failed"),
            Ok(None) | Err(_) => {}
        }
        Totals::default()
    }
}

impl Totals {
    fn of(info: &ListenerInfo) -> Self {
        Self {
            completed: info.completed,
            retried: info.retried + info.unsettled,
            poisoned: info.poisoned,
            released: info.released,
        }
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.retried += other.retried;
        self.poisoned += other.poisoned;
        self.released += other.released;
    }
}

/// Logs the start and the end of a handler.
#[derive(Debug)]
pub(super) struct Handling {
    queue: QueueName,
    id: MessageId,
}

impl Handling {
    pub(super) fn of<M: Message>(received: &Received<M>) -> Self {
        let (queue, id) = (M::TYPE.queue(), received.envelope().id.clone());
        let request = &received.envelope().request_id;
        tracing::info!(%queue, %id, %request, attempt = received.attempt(), "handling");
        Self { queue, id }
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        tracing::info!(queue = %self.queue, id = %self.id, "handled");
    }
}

/// Describes why a message was moved to the poison queue: the error and its causes.
pub(super) fn reason(record: &PoisonRecord) -> String {
    let error = record.error.as_deref().unwrap_or("unknown error");
    match record.reason {
        PoisonReason::Rejected | PoisonReason::Crashed => error.to_owned(),
        PoisonReason::Failed => format!("gave up after {} attempts: {error}", record.attempts),
        other => format!("{other}: {error}"),
    }
}

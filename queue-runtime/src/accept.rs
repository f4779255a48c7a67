//! Accepting: one message at a time, by whoever asks.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::BackendExt as _;
use queue_core::clock::BoxFuture;
use queue_core::{DecodeError, ErrorKind, InvalidName, Message, MessageType, QueueName};
use tokio_util::sync::CancellationToken;

use crate::delivery::{Delivery, Received, SettleProblem};
use crate::dispose::undecodable;
use crate::intake::{Incoming, Intake, Route, take_in};
use crate::policy::{ExponentialIdle, Idle, IdlePolicy, jitter};
use crate::service::{QueueService, Shared};
use crate::settle::SettleFailure;
use crate::terms::{InvalidSetting, Overrides};

/// The acceptance of one message: await it, perhaps after setting more.
///
/// Gives `None` when the queue is empty, and nothing else does. Messages that turn out to be poison on
/// the way are set aside, logged, and passed over.
///
/// # Errors
/// [`AcceptError`] tells a missing queue from a failing backend.
///
/// # Cancel safety
/// Dropping the future may leave a message leased to nobody until its visibility timeout is over.
#[must_use = "nothing is accepted until this is awaited"]
#[derive(Debug)]
pub struct Accept<M> {
    service: QueueService,
    queue: Result<QueueName, InvalidName>,
    wait: Duration,
    create: bool,
    overrides: Overrides,
    message_type: MessageType,
    decode: Decode<M>,
}

/// What of an acceptance depends on the message's type, so that the rest does not.
type Decode<M> =
    fn(&QueueService, &Incoming, CancellationToken) -> Result<Received<M>, DecodeError>;

/// Why nothing could be accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The name of the queue, or of its poison queue, is not allowed.
    #[error(transparent)]
    Queue(InvalidName),
    /// A setting is outside what is allowed.
    #[error(transparent)]
    Setting(InvalidSetting),
    /// The queue does not exist.
    #[error(
        "accept from queue `{0}`: the queue does not exist; submit to it first, or ask for `create_queue()`"
    )]
    QueueNotFound(QueueName),
    /// The backend failed.
    #[error(transparent)]
    Storage(queue_core::Error),
    /// A message was received and could not be set aside.
    #[error("set aside a message from queue `{queue}`")]
    Settle {
        /// The queue.
        queue: QueueName,
        /// What is known of it.
        source: SettleProblem,
    },
}

impl<M> Accept<M> {
    pub(crate) fn new(service: QueueService, queue: Result<QueueName, InvalidName>) -> Self
    where
        M: Message,
    {
        Self {
            service,
            queue,
            wait: Duration::ZERO,
            create: false,
            overrides: Overrides::default(),
            message_type: M::TYPE,
            decode: Received::decode,
        }
    }

    /// Waits for a message for up to this long, polling with random exponential back-off.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Creates the queue if there is none, instead of reporting it.
    pub fn create_queue(mut self) -> Self {
        self.create = true;
        self
    }

    /// Sets how long the message stays invisible to others between renewals.
    pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.overrides.visibility = Some(timeout);
        self
    }

    /// Sets the number of attempts after which a message is poison.
    pub fn poison_threshold(mut self, attempts: u32) -> Self {
        self.overrides.threshold = Some(attempts);
        self
    }

    async fn receive(self) -> Result<Option<Delivery<M>>, AcceptError> {
        let shared = &self.service.shared;
        let queue = self.queue.clone().map_err(AcceptError::Queue)?;
        let allowed = shared.backend.capabilities();
        self.overrides
            .check(allowed)
            .map_err(AcceptError::Setting)?;
        let route =
            Arc::new(Route::new(queue, None, self.message_type).map_err(AcceptError::Queue)?);
        let until = shared.clock.monotonic().saturating_add(self.wait);
        let idle = ExponentialIdle::up_to(shared.backend.capabilities().idle_cap);
        let mut empty = 0;
        loop {
            if let Some(delivery) = self.receive_once(shared, &route).await? {
                return Ok(Some(delivery));
            }
            let left = until.saturating_sub(shared.clock.monotonic());
            if left.is_zero() {
                return Ok(None);
            }
            empty += 1;
            shared
                .clock
                .sleep(idle.delay(Idle::new(empty, jitter())).min(left))
                .await;
        }
    }

    /// The next message that is fit to be handled, or `None` if the queue is empty.
    async fn receive_once(
        &self,
        shared: &Shared,
        route: &Arc<Route>,
    ) -> Result<Option<Delivery<M>>, AcceptError> {
        loop {
            let terms = shared
                .terms(&route.queue, &self.message_type, self.overrides)
                .await;
            let terms = terms.map_err(AcceptError::Storage)?;
            let asked_at = shared.clock.monotonic();
            let received = match shared
                .backend
                .receive(&route.queue, 1, terms.visibility)
                .await
            {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {
                    return self.missing(shared, &route.queue).await;
                }
                Err(error) => return Err(AcceptError::Storage(error)),
            };
            let Some(message) = received.into_iter().next() else {
                return Ok(None);
            };
            let renew_for = terms.handler_timeout;
            let incoming = Incoming::new(shared, route, terms, message, asked_at, renew_for);
            let done = match take_in(shared, route, incoming).await {
                Intake::Run(incoming) => {
                    let lost = incoming.lease.lost().clone();
                    match (self.decode)(&self.service, &incoming, lost) {
                        Ok(received) => {
                            let route = Arc::clone(route);
                            return Ok(Some(Delivery::new(received, incoming, route)));
                        }
                        Err(error) => undecodable(shared, route, &incoming, &error).await,
                    }
                }
                Intake::Done { fate, .. } => fate,
            };
            match done {
                Ok(_) | Err(SettleFailure::LeaseLost(_) | SettleFailure::Expired(_)) => {}
                Err(failure) => {
                    let queue = route.queue.clone();
                    return Err(AcceptError::Settle {
                        queue,
                        source: failure.into(),
                    });
                }
            }
        }
    }

    async fn missing(
        &self,
        shared: &Shared,
        queue: &QueueName,
    ) -> Result<Option<Delivery<M>>, AcceptError> {
        if !self.create {
            return Err(AcceptError::QueueNotFound(queue.clone()));
        }
        shared
            .backend
            .ensure_queue(queue)
            .await
            .map_err(AcceptError::Storage)?;
        Ok(None)
    }
}

impl<M: Send + 'static> IntoFuture for Accept<M> {
    type Output = Result<Option<Delivery<M>>, AcceptError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.receive())
    }
}

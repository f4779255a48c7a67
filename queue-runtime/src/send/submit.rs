//! Submitting one message: `message → envelope → wire → backend`.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{NewMessage, TimeToLive};
use queue_core::clock::{BoxFuture, Timestamp};
use queue_core::encoder::{Encoded, Origin, TooLarge};
use queue_core::envelope::TraceContext;
use queue_core::{
    ClientId, EncodeError, InvalidId, Message, MessageId, Outcome, QueueName, RequestId,
};

use super::follow_ups::{Position, Role, derived_id, time_to_live};
use crate::context::Context;
use crate::notify::Announced;
use crate::policy::StorageRetry;
use crate::repeat::Repeats;

/// A pending submission. Configure it, then `.await` it.
///
/// The future completes once the message is stored. The queue is created if it does not exist. A put that
/// certainly failed, for example because the service was throttling, is tried again according to the
/// [`StorageRetry`] of the service; one of unknown outcome only with [`retry_unknown`](Self::retry_unknown).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let submitted = service
///     .submit(Order { number: 7 })
///     .request("checkout-1234")
///     .delay(Duration::from_secs(60))
///     .await?;
/// println!("order 7 is message {}", submitted.id);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`SubmitError`] returns the message and, once it has one, its id.
///
/// # Cancel safety
/// If the future is dropped before it completes, the message may or may not have been submitted.
#[must_use = "a submission does nothing until it is awaited"]
pub struct Submit<M> {
    context: Arc<Context>,
    queue: QueueName,
    message: M,
    encoded: Result<Encoded, EncodeError>,
    id: Option<Result<MessageId, InvalidId>>,
    client: Option<Result<ClientId, InvalidId>>,
    request: Option<Result<RequestId, InvalidId>>,
    trace: Option<TraceContext>,
    delay: Duration,
    time_to_live: Option<Duration>,
    parent: Option<(MessageId, Position)>,
    storage_retry: StorageRetry,
    retry_unknown: bool,
}

/// A message that was submitted and is stored.
///
/// ```
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let submitted = service.submit(Order { number: 7 }).await?;
///
/// let order = service.accept::<Order>().await?.expect("just submitted");
/// assert_eq!(order.envelope().id, submitted.id);
/// assert_eq!(order.envelope().request, submitted.request);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Submitted {
    /// The message id. A bare body does not contain it; its receiver sees the storage id instead.
    pub id: MessageId,
    /// The request that the message belongs to.
    pub request: RequestId,
    /// The queue that the message is on.
    pub queue: QueueName,
    /// When the message becomes visible.
    pub visible_at: Timestamp,
}

/// An error of submitting a message. It returns the message.
///
/// If the outcome [is unknown](Self::is_unknown), the message may have been submitted. Submitting it again with
/// the same id is safe for consumers that deduplicate by id or key.
///
/// ```
/// # use queue_runtime::{Message, Operation, testing::{self, Fault}};
/// use queue_runtime::{Retry, SubmitError, SubmitProblem};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (service, faults) = testing::service_with_faults().await;
/// # faults.fail_next(1, Operation::Put, Fault::AnswerLost);
/// let submitted = match service.submit(Order { number: 7 }).await {
///     Err(SubmitError { id: Some(id), message, problem: SubmitProblem::Storage(error), .. })
///         if error.retry() != Retry::Permanent =>
///     {
///         service.submit(message).id(id.as_str()).await?
///     }
///     other => other?,
/// };
/// # assert_eq!(faults.injected(Operation::Put), 1);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct SubmitError<M> {
    /// The message id. `None` if the message was not sent to the storage.
    pub id: Option<MessageId>,
    /// The message.
    pub message: M,
    /// The cause.
    pub problem: SubmitProblem,
}

/// The cause of a [`SubmitError`] or [`SubmitAllError`](crate::SubmitAllError).
///
/// ```
/// use queue_runtime::{Message, SubmitProblem, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Note {
/// #     text: String,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let note = Note { text: "x".repeat(100_000) };
/// let error = service.submit(note).await.unwrap_err();
/// match &error.problem {
///     SubmitProblem::TooLarge(large) => eprintln!("shorten it: {} of {}", large.size(), large.limit()),
///     SubmitProblem::Storage(error) => eprintln!("failed to {error}"),
///     other => eprintln!("invalid message: {other}"),
/// }
/// # assert!(matches!(error.problem, SubmitProblem::TooLarge(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitProblem {
    /// The message id, client id or request id is invalid.
    #[error(transparent)]
    Id(InvalidId),
    /// The message could not be encoded.
    #[error(transparent)]
    Encode(EncodeError),
    /// The encoded message exceeds the limit of the storage.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// The backend failed.
    #[error(transparent)]
    Storage(queue_core::Error),
}

impl<M> Submit<M> {
    pub(crate) fn new(context: Arc<Context>, queue: QueueName, message: M) -> Self
    where
        M: Message,
    {
        Self {
            storage_retry: context.storage_retry.clone(),
            context,
            queue,
            encoded: Encoded::of(&message),
            message,
            id: None,
            client: None,
            request: None,
            trace: None,
            delay: Duration::ZERO,
            time_to_live: None,
            parent: None,
            retry_unknown: false,
        }
    }

    pub(crate) fn into_message(self) -> M {
        self.message
    }

    /// Sets the request id if one is given.
    pub(crate) fn of_request(mut self, request: Option<Result<RequestId, InvalidId>>) -> Self {
        self.request = request.or(self.request);
        self
    }

    /// Makes the message a follow-up of `parent`: client id, request id and trace context are inherited,
    /// the message id is derived.
    pub(crate) fn following(mut self, parent: &queue_core::Envelope, ordinal: u32) -> Self {
        self.client = Some(Ok(parent.client.clone()));
        self.request = Some(Ok(parent.request.clone()));
        self.trace = parent.trace.clone();
        let role = Role::Handler;
        self.parent = Some((parent.id.clone(), Position { role, ordinal }));
        self
    }

    /// Sets the message id. The default is a new UUID of version 7.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(MessageId::new(id));
        self
    }

    /// Sets the client id. The default is that of the service.
    pub fn client(mut self, client: impl Into<String>) -> Self {
        self.client = Some(ClientId::new(client));
        self
    }

    /// Sets the request id. The default is a new UUID of version 7.
    pub fn request(mut self, request: impl Into<String>) -> Self {
        self.request = Some(RequestId::new(request));
        self
    }

    /// Sets the trace context, which the envelope carries to the handler.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Sets how long the message stays invisible. The default is zero.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets how long until the storage deletes the message if it has not been completed. The default is the
    /// type's, or unlimited.
    pub fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// Sets how often and until when the message is tried to be stored. The default is that of the service.
    pub fn storage_retry(mut self, policy: StorageRetry) -> Self {
        self.storage_retry = policy;
        self
    }

    /// Tries again with the same message id if the outcome is unknown, too, instead of returning the error.
    ///
    /// The message may then be stored twice, which is safe for consumers that deduplicate by id or key. The
    /// copies of a bare body, which does not contain the id, cannot be recognised.
    pub fn retry_unknown(mut self) -> Self {
        self.retry_unknown = true;
        self
    }

    /// Encodes the message for the backend.
    pub(crate) fn encode(self) -> Result<(Outgoing, M), SubmitError<M>> {
        let Self {
            context,
            queue,
            message,
            encoded,
            ..
        } = self;
        let outgoing = (|| {
            let client = self.client.unwrap_or_else(|| Ok(context.client.clone()));
            let request = self.request.unwrap_or_else(|| Ok(RequestId::random()));
            let request = request.map_err(SubmitProblem::Id)?;
            let encoded = encoded.map_err(SubmitProblem::Encode)?;
            let message_type = encoded.message_type();
            let id = match (self.id, &self.parent) {
                (Some(id), _) => id.map_err(SubmitProblem::Id)?,
                (None, Some((parent, position))) => {
                    derived_id(parent, message_type.kind(), encoded.key(), *position)
                }
                (None, None) => MessageId::random(),
            };
            let origin = Origin {
                id,
                client: client.map_err(SubmitProblem::Id)?,
                request,
                time: context.clock.now(),
                queue_uri: Some(context.backend.queue_uri(&queue)),
                trace: self.trace,
            };
            let time_to_live = self
                .time_to_live
                .map_or_else(|| time_to_live(message_type), TimeToLive::After);
            let body = context.encoder.encode(&encoded, &origin);
            let new = NewMessage::new(body.map_err(SubmitProblem::TooLarge)?)
                .with_delay(self.delay)
                .with_time_to_live(time_to_live);
            Ok(Outgoing {
                queue,
                id: origin.id,
                request: origin.request,
                new,
            })
        })();
        match outgoing {
            Ok(outgoing) => Ok((outgoing, message)),
            Err(problem) => Err(SubmitError {
                id: None,
                message,
                problem,
            }),
        }
    }

    async fn send(self) -> Result<Submitted, SubmitError<M>> {
        let context = Arc::clone(&self.context);
        let policy = self.storage_retry.clone().or_unknown(self.retry_unknown);
        let (outgoing, message) = self.encode()?;
        let Outgoing {
            queue,
            id,
            request,
            new,
        } = outgoing;
        let backend = &*context.backend;
        let mut repeats = Repeats::by(&policy, &*context.clock);
        loop {
            let error = match backend.put(&queue, new.clone()).await {
                Ok(receipt) => {
                    context.notifiers.publish([Announced::put(&queue, &new)]);
                    return Ok(Submitted {
                        id,
                        request,
                        queue,
                        visible_at: receipt.visible_at,
                    });
                }
                Err(error) => error,
            };
            if let Err(error) = repeats.put_again(backend, error).await {
                if error.outcome() == Outcome::Unknown {
                    context.notifiers.publish([Announced::put(&queue, &new)]);
                }
                return Err(SubmitError {
                    id: Some(id),
                    message,
                    problem: SubmitProblem::Storage(error),
                });
            }
        }
    }
}

pub(crate) struct Outgoing {
    pub(crate) queue: QueueName,
    pub(crate) id: MessageId,
    pub(crate) request: RequestId,
    pub(crate) new: NewMessage,
}

impl<M: Send + 'static> IntoFuture for Submit<M> {
    type Output = Result<Submitted, SubmitError<M>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl<M> SubmitError<M> {
    /// Returns whether the message may have been submitted despite the error.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.problem.is_unknown()
    }
}

impl SubmitProblem {
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Self::Storage(error) if error.outcome() == Outcome::Unknown)
    }
}

impl Outgoing {
    pub(crate) fn submitted(&self, visible_at: Timestamp) -> Submitted {
        Submitted {
            id: self.id.clone(),
            request: self.request.clone(),
            queue: self.queue.clone(),
            visible_at,
        }
    }
}

impl<M> fmt::Debug for SubmitError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError")
            .field("id", &self.id)
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

impl<M> fmt::Display for SubmitError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(f, "submit message {id}: {}", self.problem),
            None => write!(f, "submit a message: {}", self.problem),
        }
    }
}

impl<M> std::error::Error for SubmitError<M> {
    /// Returns the cause of the problem, which is in the text.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.problem.source()
    }
}

impl<M> fmt::Debug for Submit<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submit")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

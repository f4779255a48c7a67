//! Submitting: `message → envelope → wire → backend`.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{BackendExt, NewMessage, TimeToLive};
use queue_core::clock::{BoxFuture, Timestamp};
use queue_core::encoder::{Encoded, Origin, TooLarge};
use queue_core::envelope::TraceContext;
use queue_core::{
    ClientId, EncodeError, InvalidId, Message, MessageId, Outcome, QueueName, RequestId,
};

use super::outgoing::{Position, Role, derived_id, time_to_live};
use crate::context::Context;

/// A submission: await it, perhaps after setting more.
///
/// # Errors
/// [`SubmitError`] gives back the id and the message.
///
/// # Cancel safety
/// Dropping the future while it is polled leaves the submission *unknown*: the message may be there.
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
}

/// A message that is durably on its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Submitted {
    /// The message id. A bare body does not carry it: its receiver sees the storage service's.
    pub id: MessageId,
    /// The request that it belongs to.
    pub request: RequestId,
    /// The queue that it is on.
    pub queue: QueueName,
    /// When it becomes visible.
    pub visible_at: Timestamp,
}

/// A message that was not submitted, or may not have been.
///
/// If [`is_unknown`](Self::is_unknown), submit the message again under the same id: consumers that
/// deduplicate by id or key then see it once.
#[non_exhaustive]
pub struct SubmitError<M> {
    /// The id that the message has, where it got as far as that.
    pub id: Option<MessageId>,
    /// The message.
    pub message: M,
    /// What went wrong.
    pub problem: SubmitProblem,
}

/// What went wrong with a submission.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitProblem {
    /// The id, client id or request id is not allowed.
    #[error(transparent)]
    Id(InvalidId),
    /// The message cannot be encoded.
    #[error(transparent)]
    Encode(EncodeError),
    /// The message does not fit.
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
        }
    }

    pub(crate) fn into_message(self) -> M {
        self.message
    }

    /// Makes it part of a request.
    pub(crate) fn of_request(mut self, request: Option<Result<RequestId, InvalidId>>) -> Self {
        self.request = request.or(self.request);
        self
    }

    /// Makes it a follow-up: ids are inherited, its own is derived.
    pub(crate) fn following(mut self, parent: &queue_core::Envelope, ordinal: u32) -> Self {
        self.client = Some(Ok(parent.client.clone()));
        self.request = Some(Ok(parent.request.clone()));
        self.trace = parent.trace.clone();
        let role = Role::Handler;
        self.parent = Some((parent.id.clone(), Position { role, ordinal }));
        self
    }

    /// Sets the message id, by default a new UUID of version 7.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(MessageId::new(id));
        self
    }

    /// Sets the client id, by default the service's.
    pub fn client(mut self, client: impl Into<String>) -> Self {
        self.client = Some(ClientId::new(client));
        self
    }

    /// Sets the request id, by default a new UUID of version 7.
    pub fn request(mut self, request: impl Into<String>) -> Self {
        self.request = Some(RequestId::new(request));
        self
    }

    /// Sets the trace context that the handler continues.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Keeps the message invisible for this long.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Has the message expire after this long. By default it is what the type says, or never.
    pub fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// The message as it goes to the backend.
    pub(crate) fn pack(self) -> Result<(Packed, M), SubmitError<M>> {
        let Self {
            context,
            queue,
            message,
            encoded,
            ..
        } = self;
        let packed = (|| {
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
                id: id.clone(),
                client: client.map_err(SubmitProblem::Id)?,
                request: request.clone(),
                time: context.clock.now(),
                queue_uri: Some(context.backend.queue_uri(&queue)),
                trace: self.trace,
            };
            let time_to_live = self
                .time_to_live
                .map_or_else(|| time_to_live(message_type), TimeToLive::After);
            let body = context.encoder.encode(&encoded, origin);
            let new = NewMessage::new(body.map_err(SubmitProblem::TooLarge)?)
                .with_delay(self.delay)
                .with_time_to_live(time_to_live);
            Ok(Packed {
                queue,
                id,
                request,
                new,
            })
        })();
        match packed {
            Ok(packed) => Ok((packed, message)),
            Err(problem) => Err(SubmitError {
                id: None,
                message,
                problem,
            }),
        }
    }

    async fn send(self) -> Result<Submitted, SubmitError<M>> {
        let context = Arc::clone(&self.context);
        let (packed, message) = self.pack()?;
        let Packed {
            queue,
            id,
            request,
            new,
        } = packed;
        match context.backend.put_or_create(&queue, new).await {
            Ok(receipt) => Ok(Submitted {
                id,
                request,
                queue,
                visible_at: receipt.visible_at,
            }),
            Err(error) => {
                let problem = SubmitProblem::Storage(error);
                Err(SubmitError {
                    id: Some(id),
                    message,
                    problem,
                })
            }
        }
    }
}

pub(crate) struct Packed {
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
    /// Whether the message may have been submitted all the same.
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

impl Packed {
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
        f.write_str("submit the message")?;
        if let Some(id) = &self.id {
            write!(f, " {id}")?;
        }
        Ok(())
    }
}

impl<M> std::error::Error for SubmitError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

impl<M> fmt::Debug for Submit<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submit")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

//! Submitting one message: `message → envelope → wire → backend`.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::TimeToLive;
use queue_core::clock::{BoxFuture, Timestamp};
use queue_core::encoder::Encoded;
use queue_core::envelope::TraceContext;
use queue_core::idempotency::ResultStore;
use queue_core::internal::debug_fields;
use queue_core::{
    ClientId, EncodeError, InvalidId, InvalidName, Message, MessageId, QueueName, RequestId,
};
use tracing::{Instrument as _, Span};

use super::dispatch::{Dispatch, Outgoing};
use super::error::{SubmitError, SubmitErrorKind};
use super::follow_ups::{Position, Role, derived_id, time_to_live};
use crate::kernel::context::Context;
use crate::kernel::observe::{self, current_trace, record_id};
use crate::kernel::policy::StorageRetry;

/// A pending submission. Configure the submission, then `.await` it.
///
/// The future completes once the message is stored. The queue is created if it does not exist. A put that
/// certainly failed, for example because the service was throttling, is tried again according to the [`StorageRetry`]
/// of the service; a put of unknown outcome only with [`retry_unknown`](Self::retry_unknown).
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
///     .request_id("checkout-1234")
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
/// If the future is dropped before it completes, the message may have been submitted.
#[must_use = "a submission does nothing until it is awaited"]
pub struct Submit<M> {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: QueueName,
    message: M,
    pub(crate) encoded: Result<Encoded, EncodeError>,
    pub(crate) delay: Duration,
    /// What most submissions leave as it is, so that they do not carry it along.
    chosen: Option<Box<Chosen>>,
}

/// What is chosen for one submission, besides its delay.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    id: Option<Result<MessageId, InvalidId>>,
    client_id: Option<Result<ClientId, InvalidId>>,
    request_id: Option<Result<RequestId, InvalidId>>,
    trace: Option<TraceContext>,
    /// The trace context of the message that this one follows.
    inherited_trace: Option<TraceContext>,
    time_to_live: Option<Duration>,
    reply_to: Option<QueueName>,
    parent: Option<(MessageId, Position)>,
    storage_retry: Option<StorageRetry>,
    /// The end of the tries, on the monotonic clock.
    latest: Option<Duration>,
    retry_unknown: bool,
    pub(crate) unique: Option<Unique>,
}

/// Among which messages, and until when, a submission is to be the only one of its key, and where it is recorded.
#[derive(Debug, Default)]
pub(crate) struct Unique {
    /// `None` for the queue's scope.
    pub(crate) scope: Option<String>,
    pub(crate) duration: Option<Duration>,
    pub(crate) until_settled: bool,
    /// Whether it takes the place of the message that waits.
    pub(crate) replaces: bool,
    /// `None` for the queue's own storage.
    pub(crate) store: Option<Arc<dyn ResultStore>>,
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
/// assert_eq!(order.envelope().request_id, submitted.request_id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Submitted {
    /// The message id, which a bare body does not contain: its receiver sees the storage id.
    pub id: MessageId,
    /// The request that the message belongs to.
    pub request_id: RequestId,
    /// The queue of the message, or of the earlier message if this is a [duplicate](Self::duplicate).
    pub queue: QueueName,
    /// When the message becomes visible.
    pub visible_at: Timestamp,
    /// Whether an earlier [unique](Submit::unique_for) submission holds the key, so that this submission stored
    /// nothing. A duplicate has the id, the request and the time of the earlier message with its key. If a duplicate's
    /// key is unique for a time, the earlier message with the key may have been handled, cleared or expired since; if
    /// unique [until it is settled](Submit::unique_until_settled), that message is stored.
    pub duplicate: bool,
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
            delay: Duration::ZERO,
            chosen: None,
        }
    }

    pub(crate) fn chosen(&mut self) -> &mut Chosen {
        self.chosen.get_or_insert_default()
    }

    pub(crate) fn take_unique(&mut self) -> Option<Unique> {
        self.chosen.as_mut()?.unique.take()
    }

    pub(crate) fn into_message(self) -> M {
        self.message
    }

    /// Asks for a reply on this queue.
    pub(crate) fn on(mut self, queue: QueueName) -> Self {
        self.queue = queue;
        self
    }

    pub(crate) fn replying_to(mut self, queue: QueueName) -> Self {
        self.chosen().reply_to = Some(queue);
        self
    }

    /// Ends the tries at this moment on the monotonic clock, if the policy does not end them before.
    pub(crate) fn trying_until(mut self, latest: Duration) -> Self {
        self.chosen().latest = Some(latest);
        self
    }

    /// Makes the message a follow-up of `parent`: client id, request id and trace context are inherited,
    /// the message id is derived.
    pub(crate) fn following(mut self, parent: &queue_core::Envelope, ordinal: u32) -> Self {
        let (chosen, role) = (self.chosen(), Role::Handler);
        chosen.client_id = Some(Ok(parent.client_id.clone()));
        chosen.request_id = Some(Ok(parent.request_id.clone()));
        chosen.inherited_trace = parent.trace.clone();
        chosen.parent = Some((parent.id.clone(), Position { role, ordinal }));
        self
    }

    /// Sets the queue. The default is the type's queue, or the [`Queue`](crate::Queue) from which the submission was
    /// created.
    ///
    /// Whether the queue's consumers handle the message's kind is not checked: consumers may run elsewhere, and a
    /// consumer of another kind moves the message to its poison queue.
    ///
    /// ```
    /// use queue_runtime::{Message, QueueName, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// const BULK: QueueName = QueueName::from_static("orders-bulk"); // checked when it is compiled
    ///
    /// let service = testing::service().await;
    /// let submitted = service.submit(Order { number: 7 }).to(BULK)?.await?;
    /// assert_eq!(submitted.queue, BULK);
    ///
    /// service.submit(Order { number: 8 }).to("orders-europe")?.await?; // checked by `to`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn to(
        mut self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Self, InvalidName> {
        self.queue = queue.try_into().map_err(Into::into)?;
        Ok(self)
    }

    /// Sets the message id. The default is a new UUID of version 7.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.chosen().id = Some(MessageId::new(id));
        self
    }

    /// Sets the client id. The default is that of the service.
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.chosen().client_id = Some(ClientId::new(id));
        self
    }

    /// Sets the request id. The default is a new UUID of version 7.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.chosen().request_id = Some(RequestId::new(id));
        self
    }

    /// Sets the trace context, which the envelope carries to the handler.
    ///
    /// The default is that of the span `send`, with the feature `opentelemetry` and if that span belongs to a trace;
    /// otherwise a follow-up has the trace context of the message that it follows, and other messages have none.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.chosen().trace = Some(trace);
        self
    }

    /// Sets the group of the message, in place of that of its fields with `#[message(group)]`. Messages of a group are
    /// handled in the order of their submissions, one at a time in all processes: see
    /// [groups](crate::guide::which_once#groups).
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.encoded = self
            .encoded
            .and_then(|encoded| encoded.with_group(group.into()));
        self
    }

    /// Sets how long the message stays invisible. The default is zero. A delay beyond the storage's limit, 7 days unless
    /// the URL raises it, is refused.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets how long until the storage deletes the message if it has not been completed. The default is the
    /// type's, or unlimited.
    pub fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.chosen().time_to_live = Some(time_to_live);
        self
    }

    /// Sets the retry policy for storing the message. The default is that of the service.
    pub fn storage_retry(mut self, policy: StorageRetry) -> Self {
        self.chosen().storage_retry = Some(policy);
        self
    }

    /// Retries with the same message id also if the outcome is unknown, instead of returning the error.
    ///
    /// A retried message may be stored twice, which is safe for consumers that deduplicate by id or key. The
    /// copies of a bare body, which does not contain the id, cannot be recognised.
    pub fn retry_unknown(mut self) -> Self {
        self.chosen().retry_unknown = true;
        self
    }

    /// Encodes the message for the backend.
    pub(crate) fn encode(self) -> Result<(Outgoing, M), SubmitError<M>> {
        let Self {
            context,
            queue,
            message,
            encoded,
            delay,
            chosen,
        } = self;
        let chosen = chosen.map(|chosen| *chosen).unwrap_or_default();
        let outgoing = (|| {
            let client_id = chosen
                .client_id
                .unwrap_or_else(|| Ok(context.client_id.clone()));
            let request_id = chosen.request_id.unwrap_or_else(|| Ok(RequestId::random()));
            let request_id = request_id.map_err(SubmitErrorKind::Id)?;
            let encoded = encoded.map_err(SubmitErrorKind::Encode)?;
            context
                .read_back(&encoded)
                .map_err(SubmitErrorKind::Encode)?;
            let message_type = encoded.message_type();
            let id = match (chosen.id, &chosen.parent) {
                (Some(id), _) => id.map_err(SubmitErrorKind::Id)?,
                (None, Some((parent, position))) => derived_id(parent, &encoded, *position, &queue),
                (None, None) => MessageId::random(),
            };
            let client_id = client_id.map_err(SubmitErrorKind::Id)?;
            let mut envelope = encoded.envelope(id, client_id, request_id);
            envelope.time = Some(context.clock.now());
            envelope.queue_uri = Some(context.backend.queue_uri(&queue));
            envelope.reply_to = chosen.reply_to.map(|queue| queue.to_string());
            envelope.trace = chosen
                .trace
                .or_else(current_trace)
                .or(chosen.inherited_trace);
            let time_to_live = chosen
                .time_to_live
                .map_or_else(|| time_to_live(message_type), TimeToLive::After);
            let new = context.encoder.encode(&encoded, &envelope);
            let new = new
                .map_err(SubmitErrorKind::TooLarge)?
                .with_delay(delay)
                .with_time_to_live(time_to_live);
            Ok(Outgoing {
                queue,
                id: envelope.id,
                request_id: envelope.request_id,
                new,
            })
        })();
        match outgoing {
            Ok(outgoing) => Ok((outgoing, message)),
            Err(problem) => Err(SubmitError::unsent(message, problem)),
        }
    }

    /// Encodes the message within the span of its submission, which becomes its trace context.
    pub(crate) fn encode_in(self, span: &Span) -> Result<(Outgoing, M), SubmitError<M>> {
        let _entered = span.enter();
        let encoded = self.encode()?;
        if !span.is_disabled() {
            record_id(&encoded.0.id);
        }
        Ok(encoded)
    }

    pub(crate) fn sending(&self) -> Dispatch {
        let mut sending = Dispatch::new(&self.context);
        if let Some(chosen) = &self.chosen {
            let policy = chosen.storage_retry.clone().unwrap_or(sending.policy);
            sending.policy = policy.or_unknown(chosen.retry_unknown);
            sending.latest = chosen.latest.unwrap_or(sending.latest);
        }
        sending
    }
}

impl<M: Send + 'static> IntoFuture for Submit<M> {
    type Output = Result<Submitted, SubmitError<M>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        let span = observe::send(&self.queue, 1);
        if let Some(unique) = self.take_unique() {
            return Box::pin(self.send_once(unique).instrument(span));
        }
        let sending = self.sending();
        // Encoded here, so that the future holds only what the put needs.
        match self.encode_in(&span) {
            Ok((outgoing, message)) => Box::pin(async move {
                let put = observe::within(&span, pin!(sending.put(&outgoing))).await;
                outgoing.ended(message, put)
            }),
            Err(error) => Box::pin(async move { Err(error) }),
        }
    }
}

debug_fields!(Submit<M> { queue });

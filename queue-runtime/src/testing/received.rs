use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Attachment, Backend as _};
use queue_core::clock::Clock;
use queue_core::encoder::{Encoded, Encoder, MessageEncoding};
use queue_core::internal::{debug_fields, to_json_and_back};
use queue_core::wire::Body;
use queue_core::{ClientId, Envelope, Message, MessageId, RequestId, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TokioClock;
use crate::backend::MemoryBackend;
use crate::extensions::packs::Packs;
use crate::kernel::background::Background;
use crate::kernel::context::{Context, Storage};
use crate::kernel::lease::{Cancellation, Cause};
use crate::kernel::observe::Meter;
use crate::kernel::policy::StorageRetry;
use crate::kernel::receive::{Meta, Received};

/// Makes a [`Received`] by hand, so that a test calls a handler as a function, without a queue.
///
/// The message is encoded and decoded, as on its way through a queue. The `Received` is the first attempt of its
/// message unless [`attempt`](ReceivedBuilder::attempt) says otherwise. What the handler submits before it returns goes
/// to private queues in memory; use [`TestService::received`](super::TestService::received) to look at it. Works inside
/// and outside a Tokio runtime, so that blocking handlers can be tested too.
///
/// ```
/// use queue_runtime::{Disposition, Failure, Message, Received, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// struct Order {
///     number: u32,
/// }
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// struct Invoice {
///     order: u32,
/// }
///
/// async fn bill(order: Received<Order>) -> Result<Disposition, Failure> {
///     if order.number == 0 {
///         return Err(Failure::reject("orders are numbered from 1"));
///     }
///     Ok(Disposition::complete().then(&Invoice { order: order.number }))
/// }
///
/// // In a test: #[tokio::test]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let disposition = bill(testing::received(Order { number: 7 }).build()).await.unwrap();
/// assert_eq!(disposition, Disposition::complete().then(&Invoice { order: 7 }));
/// assert_eq!(disposition.follow_ups::<Invoice>()?, [Invoice { order: 7 }]);
///
/// let failure = bill(testing::received(Order { number: 0 }).build()).await.unwrap_err();
/// assert_eq!(failure, Failure::reject("orders are numbered from 1"));
/// # Ok(())
/// # }
/// ```
pub fn received<M: Message>(message: M) -> ReceivedBuilder<M> {
    ReceivedBuilder::new(private_context(), message)
}

/// A builder of a [`Received`], from [`received`] or [`TestService::received`](super::TestService::received).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Disposition, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// async fn ship(order: Received<Order>) -> Disposition {
///     match order.attempt() {
///         1..=3 => Disposition::retry("the carrier is busy"),
///         _ => Disposition::reject("the carrier is always busy"),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let fourth = testing::received(Order { number: 7 }).attempt(4).build();
/// assert_eq!(ship(fourth).await, Disposition::reject("the carrier is always busy"));
/// # }
/// ```
#[must_use = "nothing is made until `build`"]
pub struct ReceivedBuilder<M> {
    context: Arc<Context>,
    message: M,
    id: MessageId,
    client_id: ClientId,
    request_id: RequestId,
    attempt: usize,
    progress: Option<String>,
    inserted_at: Timestamp,
    expires_at: Option<Timestamp>,
    is_cancelled: bool,
    fence: u64,
}

impl<M> ReceivedBuilder<M> {
    pub(super) fn new(context: Arc<Context>, message: M) -> Self {
        Self {
            id: MessageId::random(),
            client_id: context.client_id.clone(),
            request_id: RequestId::random(),
            attempt: 1,
            progress: None,
            inserted_at: context.clock.now(),
            expires_at: None,
            is_cancelled: false,
            fence: 1,
            context,
            message,
        }
    }

    /// Sets the message id. The default is a new UUID of version 7.
    ///
    /// # Panics
    /// Panics if the text is not a valid id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = MessageId::new(id).expect("a valid message id");
        self
    }

    /// Sets the client id. The default is that of the service.
    ///
    /// # Panics
    /// Panics if the text is not a valid id.
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = ClientId::new(id).expect("a valid client id");
        self
    }

    /// Sets the request id. The default is a new UUID of version 7.
    ///
    /// # Panics
    /// Panics if the text is not a valid id.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = RequestId::new(id).expect("a valid request id");
        self
    }

    /// Sets the number of this attempt, from 1, and the dequeue count. Earlier attempts count as failures in the
    /// envelope.
    ///
    /// # Panics
    /// Panics if the attempt is 0.
    pub fn attempt(mut self, attempt: usize) -> Self {
        assert!(attempt > 0, "attempts are numbered from 1");
        self.attempt = attempt;
        self
    }

    /// Sets the state that the last checkpoint wrote, which [`Received::progress`] returns.
    ///
    /// # Panics
    /// Panics if the state cannot be encoded as JSON, or is read as another value. The size of the progress is not
    /// checked.
    pub fn progress<S: Serialize + DeserializeOwned>(mut self, state: &S) -> Self {
        let json = to_json_and_back(state).expect("a checkpoint that JSON can represent");
        self.progress = Some(String::from_utf8(json).expect("JSON is text"));
        self
    }

    /// Sets how long the message has been on its queue. The default is zero.
    pub fn age(mut self, age: Duration) -> Self {
        let now = self.context.clock.now();
        self.inserted_at = now.checked_sub(age).unwrap_or(Timestamp::MIN);
        self
    }

    /// Sets how long until the message expires. By default the message never expires.
    pub fn expires_in(mut self, remaining: Duration) -> Self {
        let now = self.context.clock.now();
        self.expires_at = now.checked_add(remaining).ok();
        self
    }

    /// Sets the fence number of a message that has a group. The default is 1.
    pub fn fence(mut self, fence: u64) -> Self {
        self.fence = fence;
        self
    }

    /// Tells the handler to stop, as after its timeout: [`Received::is_cancelled`] is true from the start.
    pub fn cancelled(mut self) -> Self {
        self.is_cancelled = true;
        self
    }
}

impl<M: Message> ReceivedBuilder<M> {
    /// Makes the received message.
    ///
    /// A checkpoint that the message's handler writes is checked as always, and can be read by the same handler only.
    ///
    /// # Panics
    /// If the message cannot be submitted, because it cannot be encoded or is too large, or does not decode.
    #[must_use]
    pub fn build(self) -> Received<M> {
        let (body, envelope) = self.on_the_wire();
        let meta = Meta {
            dequeue_count: self.attempt,
            inserted_at: self.inserted_at,
            expires_at: self.expires_at,
            fence: envelope.group.as_ref().map(|_| self.fence),
        };
        let cancellation = Arc::<Cancellation>::default();
        if self.is_cancelled {
            cancellation.cancel(Cause::TimedOut);
        }
        let (context, attempt) = (&self.context, self.attempt);
        Received::unstored(context, &body, envelope, attempt, meta, cancellation).unwrap_or_else(
            |error| panic!("the `{}` message does not decode: {error}", M::TYPE.kind()),
        )
    }

    /// Returns the body as it is stored, and its envelope.
    fn on_the_wire(&self) -> (Body, Envelope) {
        let kind = M::TYPE.kind();
        let encoded = Encoded::of(&self.message)
            .and_then(|encoded| encoded.read_back().map(|()| encoded))
            .unwrap_or_else(|error| panic!("the `{kind}` message cannot be submitted: {error:?}"));
        let (client_id, request_id) = (self.client_id.clone(), self.request_id.clone());
        let mut envelope = encoded.envelope(self.id.clone(), client_id, request_id);
        envelope.time = Some(self.inserted_at);
        envelope.queue_uri = Some(self.context.backend.queue_uri(&M::TYPE.queue()));
        let (encoder, limits) = (self.context.encoder, self.context.backend.capabilities());
        let new = encoder
            .encode(&encoded, &envelope)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut body = Body::read(&new.body, limits.max_body);
        if let (Body::Event(event), Some(Attachment::New(data))) = (&mut body, new.attachment) {
            let attached = event.attach(data, encoder.max_payload());
            attached.expect("it was just encoded");
        }
        let mut envelope = match &body {
            Body::Event(event) => (*event.envelope).clone(),
            Body::Bare(_) | Body::Malformed(_) => {
                let Envelope {
                    id,
                    client_id,
                    request_id,
                    queue_uri,
                    ..
                } = envelope;
                let mut envelope = Envelope::new(id, client_id, request_id, kind);
                envelope.version = M::TYPE.version();
                envelope.queue_uri = queue_uri;
                envelope
            }
        };
        envelope.attempts.failures = self.attempt - 1;
        envelope.attempts.progress = self.progress.clone();
        (body, envelope)
    }
}

debug_fields!(ReceivedBuilder<M> { id, attempt });

/// Returns the context of a service with private queues, for one message.
fn private_context() -> Arc<Context> {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let storage = Arc::new(MemoryBackend::new(Arc::clone(&clock)));
    let client = ClientId::new("test").expect("a valid client id");
    let background = Background::on_current_runtime().or_else(|_| Background::start_thread());
    let background = background.expect("the background needs nothing but a runtime or a thread");
    let encoder = Encoder::new(storage.capabilities(), MessageEncoding::default());
    let storage = Storage {
        backend: Packs::start(storage, encoder, &clock, &background),
        meter: Arc::new(Meter::new()),
    };
    Arc::new(Context::new(
        storage,
        clock,
        client,
        encoder,
        StorageRetry::default(),
        Vec::new(),
        background,
    ))
}

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use queue_core::clock::Timestamp;
use queue_core::wire::Body;
use queue_core::{DecodeError, Envelope, IdempotencyKey, JsonError, Message};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::incoming::{Incoming, MessageShared, Meta};
use super::progress::{CheckpointError, Checkpoints};
use crate::kernel::context::Context;
use crate::kernel::lease::{Cancellation, Completer};
use crate::kernel::send::{Submit, SubmitAll};

/// A received message, as its handler sees it. Derefs to the message.
///
/// `Received` has no methods to settle the message: a handler settles it by its result, a caller of `accept` by the
/// [`Delivery`](crate::Delivery).
///
/// ```
/// use queue_runtime::{Disposition, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn ship(order: Received<Order>) -> Disposition {
///     println!("order {}, attempt {}", order.number, order.attempt());
///     println!("requested by {}", order.envelope().client_id);
///     if order.attempt() == 1 {
///         return Disposition::retry("the carrier is busy");
///     }
///     Disposition::complete()
/// }
///
/// let service = testing::service().await;
/// let listener = service.listener(ship).start()?;
/// service.submit(Order { number: 7 }).await?;
/// # tokio::time::sleep(std::time::Duration::from_secs(60)).await;
/// # assert_eq!((listener.info().retried, listener.info().completed), (1, 1));
/// # Ok(())
/// # }
/// ```
pub struct Received<M> {
    message: M,
    pub(crate) context: Arc<Context>,
    pub(crate) envelope: Arc<Envelope>,
    attempt: usize,
    pub(crate) meta: Meta,
    cancellation: Arc<Cancellation>,
    pub(crate) shared: Arc<MessageShared>,
    checkpoints: Checkpoints,
    /// `None` for a message that no storage has delivered.
    pub(crate) completer: Option<Completer>,
}

impl<M: Message> Received<M> {
    /// Decodes a message.
    pub(crate) fn decode(context: &Arc<Context>, incoming: &Incoming) -> Result<Self, DecodeError> {
        let received = Self::of(incoming.body.decode()?, context, incoming);
        incoming.keep_key(|| received.idempotency_key());
        Ok(received)
    }

    /// Decodes a message that no storage has delivered: it has no lease, and its checkpoints are stored nowhere.
    #[cfg(feature = "testing")]
    pub(crate) fn unstored(
        context: &Arc<Context>,
        body: &Body,
        envelope: Envelope,
        attempt: usize,
        meta: Meta,
        cancellation: Arc<Cancellation>,
    ) -> Result<Self, DecodeError> {
        Ok(Self {
            message: body.decode()?,
            context: Arc::clone(context),
            shared: Arc::new(MessageShared::of(&envelope, &Default::default())),
            envelope: Arc::new(envelope),
            attempt,
            meta,
            cancellation,
            checkpoints: Checkpoints::over(None, body),
            completer: None,
        })
    }

    /// Returns the idempotency key, which is equal for repeated deliveries and submissions of the same work.
    ///
    /// The idempotency key is the key that the sender wrote, or else the key of the message's key fields. For a type
    /// without key fields, the key is the message id.
    #[must_use]
    pub fn idempotency_key(&self) -> IdempotencyKey {
        match &self.envelope.subject {
            Some(subject) if IdempotencyKey::is_of_kind(subject, &self.envelope.kind) => {
                IdempotencyKey::from_subject(subject)
            }
            _ => match IdempotencyKey::declared(&self.message, &self.envelope.request_id) {
                Ok(Some(key)) => key,
                Ok(None) | Err(_) => IdempotencyKey::from_id(&self.envelope.id),
            },
        }
    }
}

impl Received<Body> {
    /// Returns a message of any kind.
    pub(crate) fn stored(context: &Arc<Context>, incoming: &Incoming) -> Self {
        incoming.keep_key(|| {
            let Envelope {
                subject, id, kind, ..
            } = &*incoming.envelope;
            // Foreign events may use the attribute for something else.
            let own = |subject: &&str| IdempotencyKey::is_of_kind(subject, kind);
            let subject = subject.as_deref().filter(own);
            subject.map_or_else(|| IdempotencyKey::from_id(id), IdempotencyKey::from_subject)
        });
        Self::of(incoming.body.clone(), context, incoming)
    }
}

impl<M> Received<M> {
    fn of(message: M, context: &Arc<Context>, incoming: &Incoming) -> Self {
        Self {
            message,
            context: Arc::clone(context),
            envelope: Arc::clone(&incoming.envelope),
            attempt: incoming.attempt(),
            meta: incoming.meta,
            cancellation: Arc::clone(incoming.lease.cancellation()),
            shared: Arc::clone(&incoming.shared),
            checkpoints: Checkpoints::new(&incoming.lease, &incoming.body),
            completer: Some(incoming.lease.completer()),
        }
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &M {
        &self.message
    }

    /// Consumes this value and returns the message.
    #[must_use]
    pub fn into_message(self) -> M {
        self.message
    }

    /// Returns the envelope: the message id, client id, request id and other metadata.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Returns the number of this attempt, from 1. Messages that were handed back at shutdown or postponed do
    /// not count as attempts.
    #[must_use]
    pub fn attempt(&self) -> usize {
        self.attempt
    }

    /// Returns how often the message has been received, this receive included.
    #[must_use]
    pub fn dequeue_count(&self) -> usize {
        self.meta.dequeue_count
    }

    /// Returns when the message was put on its queue.
    ///
    /// The insertion time is the storage's, as the time of [`expires_at`](Self::expires_at). The storage's time may be
    /// minutes from this machine's clock, so compare it with other times of the storage only.
    #[must_use]
    pub fn inserted_at(&self) -> Timestamp {
        self.meta.inserted_at
    }

    /// Returns when the message expires, in the [storage's time](Self::inserted_at). `None` means never.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.meta.expires_at
    }

    /// Returns a number that is higher in each later receive of a message of the same [group](Submit::group). `None` if
    /// the message has no group.
    ///
    /// One message of a group is leased at a time, but a process that was stopped for longer than its lease may go on
    /// when another has the group. A system that keeps the highest fence number, and refuses writes with a lower one,
    /// is written by one of them only: `UPDATE … SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2`.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.meta.fence
    }

    /// Submits a follow-up at once, even if this message is not completed later.
    ///
    /// The follow-up inherits the client id, request id and trace context. The id of the follow-up is derived from this
    /// message's, so that a repeated attempt submits the same id; on another queue than its type's ([`Submit::to`]),
    /// also from the queue's name. To submit a follow-up together with the completion, return
    /// [`Disposition::then`](queue_core::Disposition::then).
    pub fn submit<N: Message>(&self, message: N) -> Submit<N> {
        let ordinal = self.shared.ordinals.next();
        let (context, queue) = (Arc::clone(&self.context), N::TYPE.queue());
        Submit::new(context, queue, message).following(&self.envelope, ordinal)
    }

    /// Submits several follow-ups as [`submit`](Self::submit) does, with as few operations of the backend as
    /// possible. See [`SubmitAll`].
    pub fn submit_all<N: Message>(&self, messages: impl IntoIterator<Item = N>) -> SubmitAll<N> {
        let submissions = messages
            .into_iter()
            .map(|message| self.submit(message))
            .collect();
        SubmitAll::new(Arc::clone(&self.context), submissions)
    }

    /// Saves a checkpoint: writes `state` into the message, with the update that renews its lease. The next attempt
    /// reads the checkpoint by [`progress`](Self::progress), also after a crash or a redrive.
    ///
    /// The state is encoded as JSON, of up to [`MAX_CHECKPOINT`](crate::receive::MAX_CHECKPOINT) bytes with the escapes
    /// that it needs inside the message. Each checkpoint replaces the one before, and costs one storage operation.
    ///
    /// ```
    /// use queue_runtime::{Failure, Message, Received, testing};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Import {
    ///     lines: u64,
    /// }
    ///
    /// async fn import(job: Received<Import>) -> Result<(), Failure> {
    ///     let mut line = job.progress::<u64>()?.unwrap_or(0);
    ///     while line < job.lines {
    ///         // ... import a thousand lines, then:
    ///         line += 1000;
    ///         job.checkpoint(&line).await?;
    ///         if job.attempt() == 1 {
    ///             return Err("the connection broke".into());
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = testing::service().await;
    /// # let listener = service.listener(import).start()?;
    /// # service.submit(Import { lines: 5000 }).await?;
    /// # tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    /// # assert_eq!((listener.info().retried, listener.info().completed), (1, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError`] if the state is too large, cannot be encoded or is not read back as what it is, the message
    /// is a bare body, the lease is lost, or the storage fails. If the storage fails, the checkpoint may have been
    /// written, and is written again if the message is put back.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the checkpoint may be written.
    pub async fn checkpoint<S>(&self, state: &S) -> Result<(), CheckpointError>
    where
        S: Serialize + DeserializeOwned,
    {
        let (context, envelope, progress) = (&self.context, &self.envelope, &self.shared.progress);
        let written = self.checkpoints.write(context, envelope, progress, state);
        written.await.map_err(|kind| {
            let id = envelope.id.clone();
            CheckpointError { id, kind }
        })
    }

    /// Returns the state that the last [`checkpoint`](Self::checkpoint) wrote, in this attempt or an earlier one, or
    /// `None` without a checkpoint.
    ///
    /// # Errors
    /// [`JsonError`] if the checkpoint is not an `S`, for example because another version of the program wrote it.
    pub fn progress<S: DeserializeOwned>(&self) -> Result<Option<S>, JsonError> {
        self.shared.progress.read()
    }

    /// Completes when the handler should stop: the handler timeout is over, the lease is lost, or the listener
    /// is aborting.
    ///
    /// An async handler whose message is cancelled is dropped at its next `await`; `cancelled` is for work in other
    /// tasks.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    /// Returns whether the handler should stop. See [`cancelled`](Self::cancelled).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.cause().is_some()
    }
}

impl<M> Deref for Received<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.message
    }
}

impl<M: fmt::Debug> fmt::Debug for Received<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("message", &self.message)
            .field("envelope", &self.envelope)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use queue_core::clock::Timestamp;
use queue_core::{DecodeError, Envelope, IdempotencyKey, Message};

use super::incoming::{Incoming, Meta};
use crate::context::Context;
use crate::lease::Cancellation;
use crate::send::{Submit, SubmitAll};

/// A received message, as its handler sees it. Derefs to the message.
pub struct Received<M> {
    message: M,
    context: Arc<Context>,
    envelope: Arc<Envelope>,
    attempt: u32,
    meta: Meta,
    cancellation: Arc<Cancellation>,
    ordinals: Arc<AtomicU32>,
}

impl<M: Message> Received<M> {
    /// Decodes an admitted message.
    pub(crate) fn decode(context: &Arc<Context>, incoming: &Incoming) -> Result<Self, DecodeError> {
        Ok(Self {
            message: incoming.body.decode()?,
            context: Arc::clone(context),
            envelope: Arc::clone(&incoming.envelope),
            attempt: incoming.attempt(),
            meta: incoming.meta,
            cancellation: Arc::clone(incoming.lease.cancellation()),
            ordinals: Arc::clone(&incoming.ordinals),
        })
    }

    /// The key under which repeated deliveries of this work are recognised.
    ///
    /// It is what the sender declared; a message whose type declares no key fields, or that came from
    /// elsewhere, is known by its id.
    #[must_use]
    pub fn idempotency_key(&self) -> IdempotencyKey {
        match &self.envelope.subject {
            Some(subject) if IdempotencyKey::is_of_kind(subject, &self.envelope.kind) => {
                IdempotencyKey::from_subject(subject)
            }
            _ => match IdempotencyKey::declared(&self.message, &self.envelope.request) {
                Ok(Some(key)) => key,
                Ok(None) | Err(_) => IdempotencyKey::from_id(&self.envelope.id),
            },
        }
    }
}

impl<M> Received<M> {
    /// The message.
    #[must_use]
    pub fn message(&self) -> &M {
        &self.message
    }

    /// The message, by value.
    #[must_use]
    pub fn into_message(self) -> M {
        self.message
    }

    /// Who sent it, for which request, and the rest of what travels beside the message.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The number of this attempt, from 1. Hand-backs at shutdown do not count.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How often the message was received, this time included.
    #[must_use]
    pub fn dequeue_count(&self) -> u32 {
        self.meta.dequeue_count
    }

    /// When the message was put on its queue.
    #[must_use]
    pub fn inserted_at(&self) -> Timestamp {
        self.meta.inserted_at
    }

    /// When the message expires, if ever.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.meta.expires_at
    }

    /// Submits a follow-up now, whatever becomes of this message. It inherits client id, request id
    /// and trace context; its id is derived, so that a repeated handler repeats it. To submit it
    /// together with the acknowledgement, return [`Disposition::then`].
    pub fn submit<N: Message>(&self, message: N) -> Submit<N> {
        let ordinal = self.ordinals.fetch_add(1, Ordering::Relaxed);
        let (context, queue) = (Arc::clone(&self.context), N::TYPE.queue());
        Submit::new(context, queue, message).following(&self.envelope, ordinal)
    }

    /// Submits several follow-ups as [`submit`](Self::submit) does, all or none where the backend can.
    pub fn submit_all<N: Message>(&self, messages: impl IntoIterator<Item = N>) -> SubmitAll<N> {
        let submissions = messages
            .into_iter()
            .map(|message| self.submit(message))
            .collect();
        SubmitAll::new(Arc::clone(&self.context), submissions)
    }

    /// Completes when the attempt should stop: its time is up, its lease is lost, or the listener is
    /// shutting down. At its next `await` the handler is dropped anyway; this is for work that runs
    /// elsewhere.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    /// Whether the attempt should stop.
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

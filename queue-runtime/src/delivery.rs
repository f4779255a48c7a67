//! The two views of a received message: [`Received`] for handlers, which settle by what they return,
//! and [`Delivery`] for `accept`, which settles by consuming itself.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use queue_core::clock::Timestamp;
use queue_core::{DecodeError, Disposition, Envelope, IdempotencyKey, IntoDisposition, Message};
use tokio_util::sync::CancellationToken;

use crate::dispose::{Fate, dispose, release};
use crate::intake::{Incoming, Meta, Route};
use crate::service::QueueService;
use crate::settle::SettleFailure;
use crate::submit::Submit;
use crate::submit_all::SubmitAll;

/// A message in the hands of a handler. Derefs to the message.
pub struct Received<M> {
    message: M,
    service: QueueService,
    envelope: Arc<Envelope>,
    attempt: u32,
    meta: Meta,
    cancelled: CancellationToken,
    ordinals: Arc<AtomicU32>,
}

impl<M: Message> Received<M> {
    /// Decodes a message that has been taken in.
    pub(crate) fn decode(
        service: &QueueService,
        incoming: &Incoming,
        cancelled: CancellationToken,
    ) -> Result<Self, DecodeError> {
        Ok(Self {
            message: incoming.body.decode()?,
            service: service.clone(),
            envelope: Arc::clone(&incoming.envelope),
            attempt: incoming.attempt,
            meta: incoming.meta,
            cancelled,
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
        self.service
            .submit(message)
            .following(&self.envelope, ordinal)
    }

    /// Submits several follow-ups as [`submit`](Self::submit) does, all or none where the backend can.
    pub fn submit_all<N: Message>(&self, messages: impl IntoIterator<Item = N>) -> SubmitAll<N> {
        let submissions = messages
            .into_iter()
            .map(|message| self.submit(message))
            .collect();
        SubmitAll::new(self.service.clone(), submissions)
    }

    /// Completes when the attempt should stop: its time is up, its lease is lost, or the listener is
    /// shutting down. At its next `await` the handler is dropped anyway; this is for work that runs
    /// elsewhere.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Whether the attempt should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
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

/// A message in the hands of whoever called `accept`. Derefs to [`Received`].
///
/// Its lease is renewed while the delivery is held, for at most ten visibility timeouts. Dropping it
/// acknowledges nothing: the message comes back when the lease runs out.
#[must_use = "a delivery that is dropped is delivered again"]
pub struct Delivery<M> {
    received: Received<M>,
    incoming: Incoming,
    route: Arc<Route>,
}

/// A delivery that could not be settled, or may not have been. It gives the delivery back.
pub struct SettleError<M> {
    /// The delivery, to try again.
    pub delivery: Delivery<M>,
    /// What is known of the settlement.
    pub problem: SettleProblem,
}

/// What is known of a settlement that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleProblem {
    /// The lease ran out and the message is somebody else's, unchanged. Where the backend is not
    /// atomic, follow-ups may have been submitted.
    #[error("the lease was lost")]
    LeaseLost(#[source] queue_core::Error),
    /// The message expired. Nothing was changed.
    #[error("the message expired")]
    Expired(#[source] queue_core::Error),
    /// The settlement may or may not have been carried out.
    #[error("whether the message was settled is unknown")]
    Unknown(#[source] queue_core::Error),
    /// The message is unchanged and comes back when its lease runs out. Where the backend is not
    /// atomic, follow-ups may have been submitted.
    #[error("the message was not settled")]
    NotDone(#[source] queue_core::Error),
}

impl<M> Delivery<M> {
    pub(crate) fn new(received: Received<M>, incoming: Incoming, route: Arc<Route>) -> Self {
        Self {
            received,
            incoming,
            route,
        }
    }

    /// Acknowledges the message.
    ///
    /// # Errors
    /// [`SettleError`] gives the delivery back.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the settlement *unknown*; the message may be delivered again. The
    /// same holds for every settling method.
    pub async fn complete(self) -> Result<(), SettleError<M>> {
        self.settle(Disposition::complete()).await.map(|_| ())
    }

    /// Settles the message as a handler would by returning this.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn settle(self, disposition: impl IntoDisposition) -> Result<Fate, SettleError<M>> {
        let shared = &self.received.service.shared;
        let disposition = disposition.into_disposition();
        let settled = dispose(shared, &self.route, &self.incoming, disposition).await;
        settled.map_err(|failure| self.unsettled(failure))
    }

    /// Hands the message back at once without counting the attempt.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn release(self) -> Result<(), SettleError<M>> {
        let shared = &self.received.service.shared;
        let released = release(shared, &self.incoming).await;
        released
            .map(|_| ())
            .map_err(|failure| self.unsettled(failure))
    }

    fn unsettled(self, failure: SettleFailure) -> SettleError<M> {
        SettleError {
            delivery: self,
            problem: failure.into(),
        }
    }
}

impl<M> Deref for Delivery<M> {
    type Target = Received<M>;

    fn deref(&self) -> &Received<M> {
        &self.received
    }
}

impl<M: fmt::Debug> fmt::Debug for Delivery<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("received", &self.received)
            .field("lease", &self.incoming.lease)
            .finish_non_exhaustive()
    }
}

impl From<SettleFailure> for SettleProblem {
    fn from(failure: SettleFailure) -> Self {
        match failure {
            SettleFailure::LeaseLost(error) => Self::LeaseLost(error),
            SettleFailure::Expired(error) => Self::Expired(error),
            SettleFailure::Unknown(error) => Self::Unknown(error),
            SettleFailure::NotDone(error) => Self::NotDone(error),
        }
    }
}

impl<M> fmt::Debug for SettleError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleError")
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

impl<M> fmt::Display for SettleError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = &self.delivery.incoming.lease;
        write!(
            f,
            "settle the message {} on queue `{}`",
            self.delivery.incoming.envelope.id,
            lease.queue()
        )
    }
}

impl<M> std::error::Error for SettleError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

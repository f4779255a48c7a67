use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use queue_core::{Disposition, IntoDisposition};

use super::consumer::Consumer;
use super::incoming::Incoming;
use super::received::Received;
use super::settle::{SettleProblem, Settled};
use super::{disposition, put_back};
use crate::context::Context;

/// A received message, as the caller of `accept` sees it. Derefs to [`Received`].
///
/// Its lease is renewed while the delivery is held, for at most ten visibility timeouts. Dropping it
/// acknowledges nothing: the message becomes visible again when the lease ends.
#[must_use = "a delivery that is dropped is delivered again"]
pub struct Delivery<M> {
    received: Received<M>,
    incoming: Incoming,
    context: Arc<Context>,
    consumer: Arc<Consumer>,
}

/// The error of a settlement that failed, or may have. It gives the delivery back.
#[non_exhaustive]
pub struct SettleError<M> {
    /// The delivery, for another try.
    pub delivery: Delivery<M>,
    /// What is known of the settlement.
    pub problem: SettleProblem,
}

impl<M> Delivery<M> {
    pub(crate) fn new(
        received: Received<M>,
        incoming: Incoming,
        context: Arc<Context>,
        consumer: Arc<Consumer>,
    ) -> Self {
        Self {
            received,
            incoming,
            context,
            consumer,
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
        self.settle(Disposition::complete()).await.map(drop)
    }

    /// Counts a failed attempt. The message is retried by the retry policy, or moved to the poison queue
    /// after the last attempt.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn retry(
        self,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Settled, SettleError<M>> {
        self.settle(Disposition::retry(error)).await
    }

    /// Counts a failed attempt, and retries the message after `delay`.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn retry_after(
        self,
        delay: Duration,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Settled, SettleError<M>> {
        self.settle(Disposition::retry_after(delay, error)).await
    }

    /// Moves the message to the poison queue.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn reject(
        self,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Settled, SettleError<M>> {
        self.settle(Disposition::reject(error)).await
    }

    /// Settles the message as a handler would by returning `disposition`.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn settle(
        self,
        disposition: impl IntoDisposition,
    ) -> Result<Settled, SettleError<M>> {
        let disposition = disposition.into_disposition();
        let settled =
            disposition::apply(&self.context, &self.consumer, &self.incoming, &disposition).await;
        settled.map_err(|problem| self.unsettled(problem))
    }

    /// Makes the message visible at once, without counting the attempt.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn release(self) -> Result<(), SettleError<M>> {
        let released = put_back::release(&self.context, &self.incoming).await;
        released
            .map(drop)
            .map_err(|problem| self.unsettled(problem))
    }

    fn unsettled(self, problem: SettleProblem) -> SettleError<M> {
        SettleError {
            delivery: self,
            problem,
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

impl<M> fmt::Debug for SettleError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleError")
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

impl<M> fmt::Display for SettleError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Incoming {
            lease, envelope, ..
        } = &self.delivery.incoming;
        let (id, queue) = (&envelope.id, lease.queue());
        write!(f, "settle message {id} on queue `{queue}`")
    }
}

impl<M> std::error::Error for SettleError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

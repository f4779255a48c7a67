use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::{Disposition, FollowUp, IntoDisposition, Message, Outcome};
use tracing::Span;

use super::consumer::Consumer;
use super::incoming::Incoming;
use super::received::Received;
use crate::kernel::context::Context;
use crate::kernel::observe;
use crate::kernel::settlement::{End, Handled, SettleErrorKind, Settled, Settling, outcome};

/// A message received by [`accept`](crate::QueueService::accept), to be settled by the caller. Derefs to
/// [`Received`].
///
/// The lease is renewed while the delivery exists, for up to ten visibility timeouts. Dropping the delivery
/// settles nothing: the message becomes visible again when the lease ends.
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
/// # async fn ship(_: &Order) -> Result<(), std::io::Error> { Ok(()) }
/// # let service = testing::service().await;
/// # service.submit(Order { number: 7 }).await?;
/// while let Some(order) = service.accept::<Order>().await? {
///     match ship(&order).await {
///         Ok(()) => order.complete().await?,
///         Err(error) if order.attempt() < 3 => {
///             order.retry(error).await?;
///         }
///         Err(error) => {
///             order.reject(error).await?;
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a delivery that is dropped is delivered again"]
pub struct Delivery<M> {
    received: Received<M>,
    pub(crate) incoming: Box<Incoming>,
    pub(crate) context: Arc<Context>,
    consumer: Arc<Consumer>,
    span: Span,
}

/// An error of settling a message, which returns the delivery, so that the caller can try again.
///
/// ```
/// # use queue_runtime::{ErrorKind, testing::{self, Fault}};
/// # use queue_runtime::error::Operation;
/// use queue_runtime::Message;
/// use queue_runtime::receive::SettleErrorKind;
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
/// # service.submit(Order { number: 7 }).await?;
/// # let order = service.accept::<Order>().await?.expect("just submitted");
/// # faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
/// if let Err(error) = order.complete().await {
///     match error.kind {
///         SettleErrorKind::LeaseLost(_) => eprintln!("{error}: another consumer has the message"),
///         _ => error.delivery.complete().await?,
///     }
/// }
/// # assert_eq!(faults.injected(Operation::Delete), 1);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct SettleError<M> {
    /// The delivery.
    pub delivery: Delivery<M>,
    /// What is wrong.
    pub kind: SettleErrorKind,
}

impl<M> Delivery<M> {
    pub(crate) fn new(
        received: Received<M>,
        incoming: Box<Incoming>,
        context: Arc<Context>,
        consumer: Arc<Consumer>,
    ) -> Self {
        let attempt = incoming.attempt();
        let span = observe::process(&consumer.queue, &incoming.envelope, attempt);
        Self {
            received,
            incoming,
            context,
            consumer,
            span,
        }
    }

    /// Returns the span of handling and settling the message, named `process`. The span continues the sender's trace,
    /// and ends when the delivery is settled or dropped.
    ///
    /// A listener runs its handler in this span. Code that handles a delivery enters the span itself:
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// use tracing::Instrument as _;
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn ship(_: &Order) {}
    /// # let service = testing::service().await;
    /// # service.submit(Order { number: 7 }).await?;
    /// let order = service.accept::<Order>().await?.expect("just submitted");
    /// ship(&order).instrument(order.span().clone()).await;
    /// order.complete().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Completes the message: deletes it from the queue.
    ///
    /// # Errors
    /// [`SettleError`] returns the delivery.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the message may have been settled, and may be delivered again. The
    /// outcome of a dropped future is unknown for all methods that settle.
    pub async fn complete(self) -> Result<(), SettleError<M>> {
        let disposition = Disposition::complete();
        let completed = pin!(self.carry_out(&disposition)).await;
        self.record(&completed);
        completed.map(drop).map_err(|kind| self.unsettled(kind))
    }

    /// Completes the message and replies to it, as [`Disposition::reply`] does.
    ///
    /// # Errors
    /// The error of [`complete`](Self::complete).
    pub async fn reply<R: Message>(self, reply: &R) -> Result<Settled, SettleError<M>> {
        self.settle(Disposition::reply(reply)).await
    }

    /// Counts a failed attempt. The message is retried according to the retry policy, or moved to the poison
    /// queue if this was the last attempt.
    ///
    /// # Errors
    /// The error of [`complete`](Self::complete).
    pub async fn retry(
        self,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Settled, SettleError<M>> {
        self.settle(Disposition::retry(error)).await
    }

    /// Counts a failed attempt. The message is retried after `delay`, or moved to the poison queue if this
    /// was the last attempt.
    ///
    /// # Errors
    /// The error of [`complete`](Self::complete).
    pub async fn retry_after(
        self,
        delay: Duration,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Settled, SettleError<M>> {
        self.settle(Disposition::retry_after(delay, error)).await
    }

    /// Moves the message to the poison queue without a retry.
    ///
    /// # Errors
    /// The error of [`complete`](Self::complete).
    pub async fn reject(
        self,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Settled, SettleError<M>> {
        self.settle(Disposition::reject(error)).await
    }

    /// Settles the message as a listener does if its handler returns `disposition`.
    ///
    /// # Errors
    /// The error of [`complete`](Self::complete).
    pub async fn settle(
        self,
        disposition: impl IntoDisposition,
    ) -> Result<Settled, SettleError<M>> {
        let disposition = disposition.into_disposition();
        let settled = pin!(self.carry_out(&disposition)).await;
        self.record(&settled);
        settled.map_err(|kind| self.unsettled(kind))
    }

    /// From now on, has the lease renewed while a handler may run.
    pub(super) fn keep_leased(&self) {
        let Incoming {
            lease, settings, ..
        } = &*self.incoming;
        let now = self.context.clock.monotonic();
        lease.renew_until(now.saturating_add(settings.handler_timeout));
    }

    /// From now on, has the lease of a delivery that has waited renewed while a handler may run. Returns whether the
    /// message is still leased.
    pub(super) fn claim(&self) -> impl Future<Output = bool> + Send + 'static {
        let (context, lease) = (Arc::clone(&self.context), &self.incoming.lease);
        let is_over = lease.is_over();
        self.keep_leased();
        let renewed = lease.renew_if_overdue();
        // The renewal runs to its end, also if nobody waits: otherwise the receipt would not be known.
        async move { !is_over && matches!(context.background.finish(renewed).await, Some(Ok(()))) }
    }

    pub(super) fn into_parts(self) -> (Arc<Context>, Arc<Consumer>, Box<Incoming>) {
        (self.context, self.consumer, self.incoming)
    }

    /// Carries out a disposition.
    fn carry_out<'a>(
        &'a self,
        disposition: &'a Disposition,
    ) -> impl Future<Output = Result<Settled, SettleErrorKind>> {
        let end = End::of(disposition, &self.consumer.options.classifiers);
        let follow_ups = match disposition {
            Disposition::Complete(follow_ups) => follow_ups.as_slice(),
            _ => &[],
        };
        self.end_as(end, follow_ups)
    }

    /// Settles the message. The future does not hold the message, which need not be `Sync`.
    fn end_as<'a>(
        &'a self,
        end: End,
        follow_ups: &'a [FollowUp],
    ) -> impl Future<Output = Result<Settled, SettleErrorKind>> {
        let settling = Settling::new(&self.context, &self.consumer, &self.incoming);
        let span = self.span.clone();
        async move {
            let handled = Handled::new(&end, follow_ups);
            let settle = pin!(settling.settle(handled, |_| true));
            observe::within(&span, settle).await
        }
    }

    /// Makes the message visible to other consumers at once, without counting the attempt. In memory and on SQLite, the
    /// message keeps its place in the queue, and is the next that is accepted; [postpone](Disposition::postpone) a
    /// message to let others go first.
    ///
    /// # Errors
    /// The error of [`complete`](Self::complete).
    pub async fn release(self) -> Result<(), SettleError<M>> {
        let released = self.end_as(End::Released, &[]).await;
        self.record(&released);
        released.map(drop).map_err(|kind| self.unsettled(kind))
    }

    /// Counts how the message was settled.
    pub(crate) fn record(&self, settled: &Result<Settled, SettleErrorKind>) {
        let outcome = outcome(settled);
        self.consumer.measures(&self.context).settled(outcome);
        observe::record_outcome(&self.span, outcome);
    }

    pub(crate) fn unsettled(self, kind: SettleErrorKind) -> SettleError<M> {
        SettleError {
            delivery: self,
            kind,
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
            .field("queue", self.incoming.lease.queue())
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

queue_core::error_around!(kind in SettleError<M>, M; |error, f| {
    let (incoming, kind) = (&error.delivery.incoming, &error.kind);
    let (id, queue) = (&incoming.envelope.id, incoming.lease.queue());
    write!(f, "failed to settle message {id} on queue `{queue}`: {kind}")
};
    /// Whether the message may have been settled.
    outcome: error.kind.outcome()
);

/// An error of completing several messages. The error returns the deliveries that are not known to be completed; all
/// other messages are completed.
///
/// ```
/// # use queue_runtime::{ErrorKind, testing::{self, Fault}};
/// # use queue_runtime::error::Operation;
/// use queue_runtime::{Delivery, Message};
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
/// # service.submit_all((1..=3).map(|number| Order { number })).await?;
/// # let orders = service.accept_many::<Order>(3).await?;
/// # faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
/// if let Err(error) = Delivery::complete_all(orders).await {
///     eprintln!("{error}; {} were completed", error.completed);
///     for failed in error.failed {
///         failed.delivery.complete().await?;
///     }
/// }
/// # assert_eq!(faults.injected(Operation::Delete), 1);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct CompleteAllError<M> {
    /// The number of completed messages.
    pub completed: usize,
    /// The messages not known to be completed, at least one, in the order given to `complete_all`.
    pub failed: Vec<SettleError<M>>,
    /// What is wrong with the first message that was not completed.
    pub kind: SettleErrorKind,
}

impl<M> Delivery<M> {
    /// Completes several messages, such as those of one [`accept_many`](crate::QueueService::accept_many). The messages
    /// are settled side by side: a storage with transactions commits once for all, and another storage gets all
    /// requests at the same time. Each message has an outcome of its own: a lease that was lost costs only its message.
    ///
    /// ```
    /// use queue_runtime::{Delivery, Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = testing::service().await;
    /// # service.submit_all((1..=8).map(|number| Order { number })).await?;
    /// let orders = service.accept_many::<Order>(32).await?;
    /// let (even, odd): (Vec<_>, Vec<_>) = orders.into_iter().partition(|order| order.number % 2 == 0);
    /// for order in odd {
    ///     order.reject("the number is odd").await?;
    /// }
    /// Delivery::complete_all(even).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CompleteAllError`] returns the deliveries that are not completed, each with its [`SettleError`].
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, any of the messages may have been completed.
    pub async fn complete_all(
        deliveries: impl IntoIterator<Item = Self>,
    ) -> Result<(), CompleteAllError<M>> {
        let completed = join_all(deliveries.into_iter().map(Self::complete)).await;
        let all = completed.len();
        let failed: Vec<_> = completed.into_iter().filter_map(Result::err).collect();
        let Some(first) = failed.first() else {
            return Ok(());
        };
        Err(CompleteAllError {
            completed: all - failed.len(),
            kind: first.kind.clone(),
            failed,
        })
    }
}

queue_core::error_around!(kind in CompleteAllError<M>, M; |error, f| {
    let failed = error.failed.len();
    let all = error.completed + failed;
    write!(f, "failed to complete {failed} of {all} messages: ")?;
    match error.failed.first() {
        Some(first) => first.fmt(f),
        None => error.kind.fmt(f),
    }
};
    /// Whether any of [`failed`](Self::failed) may have been completed.
    outcome: {
        let mut failed = error.failed.iter().map(SettleError::outcome);
        let unknown = failed.find(|outcome| *outcome == Outcome::Unknown);
        unknown.unwrap_or(Outcome::NotDone)
    }
);

//! Receiving messages for an accept, and deciding which of them the caller gets. Messages that nobody has seen are
//! handed back when dropped, and the attempt does not count.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::internal::error_chain;
use queue_core::{DecodeError, ErrorKind};

use super::{AcceptError, AcceptErrorKind};
use crate::kernel::context::Context;
use crate::kernel::notify::{Wakeups, quiet_for};
use crate::kernel::policy::{ExponentialIdle, Idle, IdlePolicy, StorageRetry, jitter};
use crate::kernel::receive::admission::{Refusal, admit, decode};
use crate::kernel::receive::consumer::Consumer;
use crate::kernel::receive::data::{fetch_data, lacks_data};
use crate::kernel::receive::delivery::Delivery;
use crate::kernel::receive::fetch::fetch;
use crate::kernel::receive::idempotent::claim;
use crate::kernel::receive::incoming::{Fetched, Incoming};
use crate::kernel::receive::received::Received;
use crate::kernel::repeat::Repeats;
use crate::kernel::settlement::{SettleErrorKind, Settled, Settling, outcome};

/// The shortest pause between two receives while a notifier announces what is put on an empty queue. A notification may be
/// lost, and the notifier may fail.
const ANNOUNCED_PAUSE: Duration = Duration::from_secs(10);

/// Decodes a message as `M`. The rest of an accept does not depend on `M`.
pub(super) type Decode<M> = fn(&Arc<Context>, &Incoming) -> Result<Received<M>, DecodeError>;

/// An accept whose settings are checked.
pub(super) struct Accepting<M> {
    pub(super) context: Arc<Context>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) max: usize,
    pub(super) wait: Duration,
    pub(super) storage_retry: StorageRetry,
    pub(super) idle: Option<Arc<dyn IdlePolicy>>,
    pub(super) decode: Decode<M>,
}

impl<M> Accepting<M> {
    pub(super) fn error(&self, kind: AcceptErrorKind) -> AcceptError {
        let queue = self.consumer.queue.clone();
        AcceptError { queue, kind }
    }

    /// Accepts up to `max` messages. Returns none only if the queue is empty.
    pub(super) async fn accept(&self) -> Result<Unclaimed<M>, AcceptErrorKind> {
        let (context, consumer) = (&self.context, &self.consumer);
        self.check()?;
        let until = context.clock.monotonic().saturating_add(self.wait);
        let mut empty = 0;
        let mut repeats = Repeats::until(until, &self.storage_retry, &*context.clock);
        // Subscribed before the first receive, so that no message is missed in between.
        let wakeups = (!self.wait.is_zero()).then(|| context.wakeups(&consumer.queue, self.max));
        let mut woken = None;
        let mut accepted = Unclaimed::default();
        loop {
            if let Some(wakeups) = &wakeups {
                wakeups.receive_begins(woken);
            }
            let room = self.max - accepted.len();
            let max = room.min(context.backend.capabilities().max_receive);
            match fetch(context, consumer, max, |settings| settings.visibility).await {
                Ok(fetched) => {
                    repeats.succeeded();
                    let found = fetched.len();
                    if found > 0 {
                        (woken, empty) = (None, 0);
                        if let Some(wakeups) = &wakeups {
                            wakeups.found(false);
                        }
                        self.deliver(fetched, &mut accepted).await?;
                        if accepted.is_empty() || (found == max && max < room) {
                            continue;
                        }
                    }
                }
                Err(error) if !accepted.is_empty() => {
                    let queue = &consumer.queue;
                    tracing::warn!(%queue, %error, "failed to accept more messages; returning the accepted messages");
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {
                    return Err(AcceptErrorKind::QueueNotFound);
                }
                Err(error) => {
                    woken = None;
                    let paused = Box::pin(repeats.pause(error)).await;
                    paused.map_err(AcceptErrorKind::Storage)?;
                    continue;
                }
            }
            if !accepted.is_empty() {
                return Ok(accepted);
            }
            let left = until.saturating_sub(context.clock.monotonic());
            let (false, Some(wakeups)) = (left.is_zero(), &wakeups) else {
                return Ok(accepted);
            };
            empty = wakeups.found_none(woken, empty);
            let idle_cap = context.backend.capabilities().idle_cap;
            let announced_pause = ANNOUNCED_PAUSE.max(idle_cap);
            let by_default = ExponentialIdle::up_to(idle_cap);
            let idle = self.idle.as_deref().unwrap_or(&by_default);
            let mut pause = idle.delay(Idle::new(empty, jitter()));
            if self.idle.is_none()
                && pause < announced_pause.min(left)
                && let Some(quiet) = self.quiet_for(wakeups).await
            {
                pause = announced_pause.min(quiet.max(pause));
            }
            woken = tokio::select! {
                wakeup = wakeups.wait(1) => Some(wakeup),
                () = context.clock.sleep(pause.min(left)) => None,
            };
        }
    }

    /// Returns how long each message that becomes visible is announced: a notifier is armed, and no lease ends, which
    /// nobody announces.
    async fn quiet_for(&self, wakeups: &Wakeups) -> Option<Duration> {
        if !wakeups.is_armed() {
            return None;
        }
        match self.context.backend.properties(&self.consumer.queue).await {
            Ok(properties) => quiet_for(&properties),
            Err(error) => {
                let (queue, error) = (&self.consumer.queue, error_chain(&error));
                tracing::warn!(%queue, error, "failed to find out whether the queue is empty; polling it");
                None
            }
        }
    }

    /// Checks whether the messages may be accepted here.
    fn check(&self) -> Result<(), AcceptErrorKind> {
        let context = &self.context;
        if !context.timer.has_timer(&*context.clock) {
            return Err(AcceptErrorKind::NoTimer);
        }
        let types = self.consumer.serves.types();
        if !types.is_empty() {
            let checked = context.served.check(&self.consumer.queue, types);
            checked.map_err(AcceptErrorKind::KindMismatch)?;
        }
        Ok(())
    }

    /// Adds deliveries of the messages, and settles those that cannot be handled. A message that cannot be settled
    /// either is an error only if there is nothing to return: it must not keep the others from being handled.
    async fn deliver(
        &self,
        fetched: Vec<Fetched>,
        accepted: &mut Unclaimed<M>,
    ) -> Result<(), AcceptErrorKind> {
        let (context, consumer) = (&self.context, &self.consumer);
        let is_alone = fetched.len() == 1;
        let delivered = fetched.into_iter().map(|fetched| {
            // An `Incoming` is large, and moved often.
            let incoming = Box::new(Incoming::read(context, consumer, fetched));
            self.deliver_one(Undecided::new(context, consumer, incoming))
        });
        let mut errors = Vec::new();
        let mut take = |delivered| match delivered {
            Ok(one) => accepted.append(one),
            Err(error) => errors.push(error),
        };
        if is_alone {
            for one in delivered {
                take(one.await);
            }
        } else {
            join_all(delivered).await.into_iter().for_each(take);
        }
        accepted.keep_leased();
        let returned = accepted.is_empty().then(|| errors.pop()).flatten();
        for error in &errors {
            let (queue, error) = (&consumer.queue, error_chain(error));
            tracing::error!(%queue, error, "failed to accept one of several messages");
        }
        returned.map_or(Ok(()), Err)
    }

    /// Returns a delivery of the message, or settles the message if it cannot be handled.
    async fn deliver_one(
        &self,
        mut undecided: Undecided<'_>,
    ) -> Result<Unclaimed<M>, AcceptErrorKind> {
        let (context, consumer) = (&self.context, &self.consumer);
        let refusal = match self.prepare(undecided.incoming()).await {
            Ok(received) => {
                let incoming = undecided.decided();
                let (context, consumer) = (Arc::clone(context), Arc::clone(consumer));
                let delivery = Delivery::new(received, incoming, context, consumer);
                return Ok(Unclaimed::from(delivery));
            }
            Err(refusal) => refusal,
        };
        let refused = match refusal {
            Refusal::NoClaim(error) => Err(AcceptErrorKind::Idempotency(error)),
            Refusal::NoData(error) => Err(AcceptErrorKind::Data(error)),
            refusal => {
                let settling = Settling::new(context, consumer, undecided.incoming());
                self.refused(Box::pin(refusal.settle(settling)).await)
            }
        };
        undecided.decided();
        refused.map(|()| Unclaimed::default())
    }

    async fn prepare(&self, incoming: &mut Incoming) -> Result<Received<M>, Refusal> {
        let (context, consumer) = (&self.context, &*self.consumer);
        admit(context, consumer, incoming).await?;
        if lacks_data(consumer, incoming) {
            Box::pin(fetch_data(context, consumer, incoming, |_, _| {})).await?;
        }
        let decode_as = |incoming: &Incoming| (self.decode)(context, incoming);
        let received = decode(context, consumer, incoming, decode_as).await?;
        claim(context, consumer, incoming, |_, _| {}).await?;
        Ok(received)
    }

    /// Skips a message that is not handled, unless it could not be settled.
    fn refused(&self, settled: Result<Settled, SettleErrorKind>) -> Result<(), AcceptErrorKind> {
        self.consumer
            .measures(&self.context)
            .settled(outcome(&settled));
        match settled {
            Ok(_) | Err(SettleErrorKind::LeaseLost(_) | SettleErrorKind::Expired(_)) => Ok(()),
            Err(kind) => Err(AcceptErrorKind::Settle(kind)),
        }
    }
}

/// A received message that an accept has not decided on.
struct Undecided<'a> {
    context: &'a Arc<Context>,
    consumer: &'a Arc<Consumer>,
    incoming: Option<Box<Incoming>>,
}

/// Deliveries that the caller of an accept does not have yet.
pub(super) struct Unclaimed<M>(VecDeque<Delivery<M>>);

impl<'a> Undecided<'a> {
    fn new(
        context: &'a Arc<Context>,
        consumer: &'a Arc<Consumer>,
        incoming: Box<Incoming>,
    ) -> Self {
        Self {
            context,
            consumer,
            incoming: Some(incoming),
        }
    }

    fn incoming(&mut self) -> &mut Incoming {
        self.incoming.as_mut().expect(UNDECIDED)
    }

    fn decided(mut self) -> Box<Incoming> {
        self.incoming.take().expect(UNDECIDED)
    }
}

const UNDECIDED: &str = "only `decided` and `drop` take it";

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            hand_back(
                Arc::clone(self.context),
                Arc::clone(self.consumer),
                incoming,
            );
        }
    }
}

impl<M> Unclaimed<M> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn append(&mut self, mut others: Self) {
        if self.is_empty() {
            mem::swap(self, &mut others);
        } else {
            self.0.append(&mut others.0);
        }
    }

    /// From now on, has the leases renewed while a handler may run.
    pub(super) fn keep_leased(&self) {
        self.0.iter().for_each(Delivery::keep_leased);
    }

    /// Has the leases renewed until the deliveries are taken out.
    pub(super) fn hold(&self) {
        for delivery in &self.0 {
            delivery.incoming.lease.renew_until(Duration::MAX);
        }
    }

    pub(super) fn first(&self) -> Option<&Delivery<M>> {
        self.0.front()
    }

    /// Takes out the first delivery.
    pub(super) fn take_first(&mut self) -> Option<Delivery<M>> {
        self.0.pop_front()
    }

    /// Takes out all deliveries.
    pub(super) fn take_all(&mut self) -> Vec<Delivery<M>> {
        self.0.drain(..).collect()
    }
}

impl<M> Default for Unclaimed<M> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<M> From<Delivery<M>> for Unclaimed<M> {
    fn from(delivery: Delivery<M>) -> Self {
        Self(VecDeque::from([delivery]))
    }
}

impl<M> Drop for Unclaimed<M> {
    fn drop(&mut self) {
        for delivery in self.0.drain(..) {
            let (context, consumer, incoming) = delivery.into_parts();
            hand_back(context, consumer, incoming);
        }
    }
}

/// Hands a message back in the background.
fn hand_back(context: Arc<Context>, consumer: Arc<Consumer>, incoming: Box<Incoming>) {
    let background = Arc::clone(&context);
    background.background.spawn(async move {
        let settling = Settling::new(&context, &consumer, &incoming);
        settling.release_unasked().await;
    });
}

//! How a received message waits, leased and renewed, without being to blame: for what it needs, such as its data or the
//! claim of its key, or in the parking room for room, its turn, or a rate limit.
//!
//! A message that waits too long, or finds no place in the parking room, is put back without counting the attempt,
//! unless it cannot record that, or would expire while put back. A message handled in order keeps its place however
//! long it waits: put back, it would let those behind it go first.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::internal::error_chain;
use queue_core::{Envelope, Error, RetryAdvice};

use super::admission::{Refusal, postponed, renew_if_overdue};
use super::consumer::Caller;
use crate::kernel::lease::Cause;
use crate::kernel::policy::{Backoff, Outage, jitter};
use crate::kernel::settlement::{End, Settling, lost};

/// A message that waits.
pub(super) struct WaitingMessage<'a> {
    pub(super) settling: Settling<'a>,
    outage: &'a Outage,
    patience_over: Duration,
    asked_at: Duration,
}

impl<'a> WaitingMessage<'a> {
    pub(super) fn new(settling: Settling<'a>, outage: &'a Outage) -> Self {
        let now = settling.context.clock.monotonic();
        Self {
            settling,
            outage,
            patience_over: now.saturating_add(settling.incoming.settings.visibility),
            asked_at: now,
        }
    }

    /// Waits until an outage that is known is over, and sees to it that the lease holds.
    pub(super) async fn before_request(&mut self) -> Result<(), Refusal> {
        let Settling {
            context, incoming, ..
        } = self.settling;
        let now = context.clock.monotonic();
        self.rest(self.outage.until().saturating_sub(now)).await?;
        self.asked_at = context.clock.monotonic();
        incoming.keep_leased(context, Duration::ZERO);
        renew_if_overdue(context, incoming).await?;
        Ok(())
    }

    /// Decides what a failed request means for the message: it waits, or is put back. The caller of `accept` gets the error
    /// instead, as `refusal`. `report` hears of the first failure of many, with the pause before the next request.
    pub(super) async fn failed(
        &self,
        error: Error,
        report: impl FnOnce(&Error, Duration),
        refusal: fn(Error) -> Refusal,
    ) -> Result<(), Refusal> {
        let Settling {
            context, consumer, ..
        } = self.settling;
        let now = context.clock.monotonic();
        if let Some(pause) = self.outage.failed(&error, self.asked_at, now) {
            let (queue, text) = (&consumer.queue, error_chain(&error));
            tracing::warn!(%queue, error = text, ?pause, "a store that messages need has failed; the messages wait until the store works again");
            report(&error, pause);
        }
        if consumer.caller == Caller::Accept {
            self.settling.release_unasked().await;
            return Err(refusal(error));
        }
        let pause = self.outage.until().saturating_sub(now);
        if now >= self.patience_over && can_wait_outside(self.settling, pause) {
            return Err(postponed(
                pause,
                "its payload or its result store is not available now",
            ));
        }
        Ok(())
    }

    /// Waits, unless the lease is lost meanwhile.
    pub(super) async fn rest(&self, pause: Duration) -> Result<(), Refusal> {
        let Settling {
            context, incoming, ..
        } = self.settling;
        let cancellation = incoming.lease.cancellation();
        if pause.is_zero() && cancellation.cause().is_none() {
            return Ok(());
        }
        incoming.keep_leased(context, pause);
        tokio::select! {
            _ = cancellation.cancelled() => Err(lease_lost(self.settling)),
            () = context.clock.sleep(pause) => Ok(()),
        }
    }
}

pub(super) fn lease_lost(settling: Settling<'_>) -> Refusal {
    let Settling {
        context, incoming, ..
    } = settling;
    lost(context, incoming, incoming.lease.ended()).into()
}

/// Counts the messages that wait, which are in flight. A `ParkingRoom` has room for half of those that may be in
/// flight, so that messages that wait do not keep all others from being received.
#[derive(Debug)]
pub(crate) struct ParkingRoom {
    /// Waiting messages that could be put back instead.
    parked: AtomicUsize,
    most: usize,
    /// Messages that have to wait here, and those that wait for others of their batch, which is bounded itself.
    others: AtomicUsize,
}

/// A place in the parking room, until it is dropped.
#[derive(Debug)]
pub(crate) struct Parked {
    room: Arc<ParkingRoom>,
    is_bounded: bool,
}

impl ParkingRoom {
    pub(crate) fn new(in_flight: usize) -> Arc<Self> {
        Arc::new(Self {
            parked: AtomicUsize::new(0),
            most: (in_flight / 2).max(1),
            others: AtomicUsize::new(0),
        })
    }

    /// Returns the number of messages that wait.
    pub(crate) fn count(&self) -> usize {
        self.parked.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
    }

    /// Returns the number of messages that may wait for one thing.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns a place, unless all are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Parked> {
        let more = |parked| (parked < self.most).then_some(parked + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let entered = self.parked.fetch_update(set, fetch, more);
        entered.is_ok().then(|| self.place(true))
    }

    /// Returns a place, always, for a message that is not put back.
    pub(crate) fn enter_anyway(self: &Arc<Self>) -> Parked {
        self.others.fetch_add(1, Ordering::Relaxed);
        self.place(false)
    }

    fn place(self: &Arc<Self>, is_bounded: bool) -> Parked {
        Parked {
            room: Arc::clone(self),
            is_bounded,
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        let count = if self.is_bounded {
            &self.room.parked
        } else {
            &self.room.others
        };
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

const PUT_BACK: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(30),
};

/// Has a message wait in its place in the parking room until it gets what it wants, for `patience` at most, if there is a
/// place. A message that cannot be put back without counting the attempt, would expire meanwhile, or has a place and
/// `keeps_order`, waits as long as it takes.
///
/// # Cancel safety
/// Cancel safe, as far as `wanted` is.
pub(crate) async fn park<T>(
    room: &Arc<ParkingRoom>,
    place: impl FnOnce() -> Option<Parked>,
    patience: Duration,
    keeps_order: bool,
    settling: Settling<'_>,
    wanted: impl Future<Output = T>,
) -> Result<T, Refusal> {
    let Settling {
        context, incoming, ..
    } = settling;
    let after = put_back_after(&incoming.envelope);
    let put_back = || {
        let can = can_wait_outside(settling, after);
        can.then(|| postponed(after, "the message has waited too long for its turn"))
    };
    let mut wanted = pin!(wanted);
    let _parked = match (place(), put_back()) {
        (Some(place), _) => place,
        (None, Some(refusal)) => return Err(refusal),
        (None, None) => room.enter_anyway(),
    };
    loop {
        incoming.keep_leased(context, patience);
        tokio::select! {
            biased;
            got = &mut wanted => {
                renew_if_overdue(context, incoming).await?;
                return Ok(got);
            }
            cause = incoming.lease.cancellation().cancelled() => {
                return Err(match cause {
                    Cause::ClaimLost => Refusal::Ends(End::Released),
                    _ => lease_lost(settling),
                });
            }
            () = context.clock.sleep(patience) => {
                if !keeps_order && let Some(refusal) = put_back() {
                    return Err(refusal);
                }
            }
        }
    }
}

/// Returns how long a message is hidden that is put back without counting the attempt, by how often it was before.
pub(crate) fn put_back_after(envelope: &Envelope) -> Duration {
    let times = envelope.attempts.forgiven.saturating_add(1);
    PUT_BACK.pause(RetryAdvice::Temporary, times, jitter())
}

/// Whether a message can be put back for this long without counting the attempt.
pub(crate) fn can_wait_outside(settling: Settling<'_>, pause: Duration) -> bool {
    let Settling {
        context, incoming, ..
    } = settling;
    let has_room = incoming.rewritten(context, &incoming.envelope.attempts);
    has_room.is_some() && !incoming.expires_within(context, pause)
}

//! The parking room: where received messages wait, leased and renewed, until they can be handled.
//!
//! A message that finds no place there, or has waited for a visibility timeout, is put back without counting the attempt.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::RetryAdvice;

use super::admission::renew_if_overdue;
use super::incoming::Incoming;
use super::refusal::Refusal;
use super::settlement::Settling;
use super::waiting::{lease_lost, postponed};
use crate::policy::{Backoff, jitter};

/// Counts the messages that wait, which are in flight. It has room for half of those that may be, so that messages that
/// wait do not keep all others from being received.
#[derive(Debug)]
pub(crate) struct ParkingRoom {
    parked: AtomicUsize,
    most: usize,
}

/// A place in the parking room, until it is dropped.
#[derive(Debug)]
pub(crate) struct Parked(Arc<ParkingRoom>);

impl ParkingRoom {
    pub(crate) fn new(max_in_flight: usize) -> Arc<Self> {
        Arc::new(Self {
            parked: AtomicUsize::new(0),
            most: (max_in_flight / 2).max(1),
        })
    }

    /// Returns the number of messages that wait.
    pub(crate) fn count(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    /// Returns a place for a message that waits for others of its batch. There is always one: the batch is bounded.
    pub(crate) fn join_batch(self: &Arc<Self>) -> Parked {
        self.parked.fetch_add(1, Ordering::Relaxed);
        Parked(Arc::clone(self))
    }

    /// Returns a place, unless all are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Parked> {
        let more = |parked| (parked < self.most).then_some(parked + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let entered = self.parked.fetch_update(set, fetch, more);
        entered.is_ok().then(|| Parked(Arc::clone(self)))
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a message is hidden that is put back, by how often it was put back before.
const PUT_BACK: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(30),
};

/// Has a message wait in the parking room until it gets what it wants. One that cannot be put back without counting the
/// attempt, or would expire meanwhile, waits as long as that takes.
///
/// # Cancel safety
/// Cancel safe, as far as `wanted` is.
pub(crate) async fn park<T>(
    room: &Arc<ParkingRoom>,
    settling: Settling<'_>,
    wanted: impl Future<Output = T>,
) -> Result<T, Refusal> {
    let Settling {
        context, incoming, ..
    } = settling;
    let after = put_back_after(incoming);
    let put_back = || {
        let can = can_wait_outside(settling, after);
        can.then(|| postponed(after, "it has waited too long for its turn"))
    };
    let parked = room.enter();
    if let (None, Some(refusal)) = (&parked, put_back()) {
        return Err(refusal);
    }
    let patience = incoming.settings.visibility;
    let mut wanted = pin!(wanted);
    loop {
        incoming.keep_leased(context, patience);
        tokio::select! {
            biased;
            got = &mut wanted => {
                renew_if_overdue(context, incoming).await?;
                return Ok(got);
            }
            _ = incoming.lease.cancellation().cancelled() => return Err(lease_lost(settling)),
            () = context.clock.sleep(patience) => {
                if let Some(refusal) = put_back() {
                    return Err(refusal);
                }
            }
        }
    }
}

fn put_back_after(incoming: &Incoming) -> Duration {
    let times = incoming.envelope.attempts.forgiven.saturating_add(1);
    PUT_BACK.pause(RetryAdvice::Temporary, times, jitter())
}

/// Whether a message can be put back for this long without counting the attempt.
pub(super) fn can_wait_outside(settling: Settling<'_>, pause: Duration) -> bool {
    let Settling {
        context, incoming, ..
    } = settling;
    let has_room = incoming.rewritten(context, &incoming.envelope.attempts);
    has_room.is_some() && !incoming.expires_within(context, pause)
}

//! The rate at which the listeners of all processes together receive: a token bucket in the storage's records.
//!
//! The record of a queue is there while the queue's bucket is not full, and ends when it is: what is left of its retention is
//! the time until then, in the storage's time alone. Whoever takes tokens replaces the record by one that ends later, if
//! it is still the one that was seen. So no clock is compared with another, and what is uncertain only delays.
//!
//! ```text
//! empty                              full
//!   ├──── time until it is full ──────┤
//!   0                                 burst × interval
//! ```
//!
//! Tokens are taken in chunks of what the rate gives in 50 ms, at least one. Those that find no message are kept for the next
//! receive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{FoundRecord, Swap, SwapOutcome};
use queue_core::idempotency::{Owner, ResultStore, WorkKey};
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, Result};
use tokio::sync::Mutex as TurnMutex;

use crate::kernel::listener::core::Core;
use crate::kernel::policy::Rate;

/// The scope of the records of buckets; the key is the name of the queue.
const SCOPE: &str = "queue rates";
/// How often the record is read again, because others have taken tokens, before a pause.
const TRIES: usize = 4;
/// What a storage may round up or down in the time that is left of a record.
const RESOLUTION: Duration = Duration::from_millis(1);

/// The tokens of one listener.
#[derive(Debug, Default)]
pub(super) struct QueueRate {
    /// Tokens that were taken and not used.
    kept: Mutex<usize>,
    /// What is known of the bucket. Held by the task that takes tokens.
    level: TurnMutex<Option<Level>>,
    has_warned: AtomicBool,
}

/// What was recorded when the bucket was last seen.
#[derive(Debug)]
struct Level {
    value: Bytes,
    /// When the bucket is full at the latest, on the monotonic clock.
    full_at: Duration,
}

/// What a dequeue task may do, of a queue that has a rate.
#[derive(Debug)]
pub(super) enum Turn<'a> {
    Receive(Tokens<'a>),
    Wait(Duration),
}

/// The right to receive some messages. What is not spent is kept for other receives.
#[derive(Debug)]
pub(super) struct Tokens<'a> {
    rate: &'a QueueRate,
    left: usize,
}

impl QueueRate {
    /// Takes tokens for up to `most` messages. `None` if the storage has no records, as is warned of once.
    ///
    /// # Errors
    /// The storage's error. Tokens may have been taken then, and are used by nobody.
    ///
    /// # Cancel safety
    /// As after an error.
    pub(super) async fn turn(
        &self,
        core: &Core,
        rate: &Rate,
        most: usize,
    ) -> Result<Option<Turn<'_>>> {
        let Some(store) = core.context.backend.results() else {
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                let queue = &core.consumer.queue;
                tracing::warn!(%queue, %rate, "the queue has a rate, which its listeners do not keep: this storage has no records");
            }
            return Ok(None);
        };
        let mut bucket = self.level.lock().await;
        if *self.kept.hold() == 0
            && let Some(pause) = self.take_chunk(core, &store, rate, &mut bucket).await?
        {
            return Ok(Some(Turn::Wait(pause)));
        }
        let mut kept = self.kept.hold();
        let left = most.min(*kept);
        *kept -= left;
        Ok(Some(Turn::Receive(Tokens { rate: self, left })))
    }

    /// Takes a chunk out of the bucket, or returns how long to wait for one.
    async fn take_chunk(
        &self,
        core: &Core,
        store: &Arc<dyn ResultStore>,
        rate: &Rate,
        bucket: &mut Option<Level>,
    ) -> Result<Option<Duration>> {
        let now = || core.context.clock.monotonic();
        let chunk = rate.chunk();
        let takes = rate.interval().saturating_mul(chunk.get());
        let whole = rate
            .interval()
            .saturating_mul(rate.at_once().max(chunk).get());
        for _ in 0..TRIES {
            let lacks = match bucket {
                Some(seen) => {
                    // That of a slower rate may have lacked more than there is now.
                    seen.full_at = seen.full_at.min(now().saturating_add(whole));
                    seen.full_at.saturating_sub(now())
                }
                None => Duration::ZERO,
            };
            let will_lack = lacks.saturating_add(takes);
            let pause = will_lack.saturating_sub(whole);
            if !pause.is_zero() {
                return Ok(Some(pause));
            }
            let seen = bucket.take().filter(|_| !lacks.is_zero());
            let ends_after = will_lack.saturating_add(RESOLUTION);
            let value = Bytes::copy_from_slice(&Owner::random().to_u64().to_be_bytes());
            let key = WorkKey::new(SCOPE, core.consumer.queue.as_str());
            let swap = Swap::new(key, value.clone(), ends_after);
            let swap = match seen {
                Some(seen) => swap.in_place_of(seen.value),
                None => swap,
            };
            let found = core.context.ask(|| store.swap(&swap)).await?;
            let seen = |value, left| Level {
                value,
                full_at: now().saturating_add(left),
            };
            *bucket = match found {
                SwapOutcome::Swapped => Some(seen(value.clone(), ends_after)),
                SwapOutcome::Differs(None) => None,
                SwapOutcome::Differs(Some(FoundRecord {
                    value: Some(value),
                    remaining,
                    ..
                })) => Some(seen(value, remaining.saturating_add(RESOLUTION))),
                SwapOutcome::Differs(Some(_)) => return Err(no_bucket(core)),
            };
            // An earlier try may have recorded it, whose answer was lost.
            if bucket.as_ref().is_some_and(|seen| seen.value == value) {
                *self.kept.hold() += chunk.get() as usize;
                return Ok(None);
            }
        }
        // Others have taken tokens each time.
        Ok(Some(takes))
    }
}

impl<'a> Turn<'a> {
    /// Returns the right to receive, if there is nothing to wait for.
    pub(super) fn tokens(self) -> Option<Tokens<'a>> {
        match self {
            Self::Receive(tokens) => Some(tokens),
            Self::Wait(_) => None,
        }
    }
}

impl Tokens<'_> {
    /// Returns for how many messages there are tokens: at least one.
    pub(super) fn count(&self) -> usize {
        self.left
    }

    /// Uses the tokens of this many messages.
    pub(super) fn spend(&mut self, messages: usize) {
        self.left = self.left.saturating_sub(messages);
    }
}

impl Drop for Tokens<'_> {
    fn drop(&mut self) {
        *self.rate.kept.hold() += self.left;
    }
}

fn no_bucket(core: &Core) -> Error {
    Error::new(ErrorKind::Corrupt, Operation::Results)
        .with_queue(&core.consumer.queue)
        .with_detail(format!(
            "the record of the queue's rate, in the scope `{SCOPE}`, is a claim"
        ))
}

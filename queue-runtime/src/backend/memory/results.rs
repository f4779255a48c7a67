use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{FoundRecord, PageMark, Swap, SwapIf, SwapOutcome};
use queue_core::clock::{Clock, Timestamp};
use queue_core::idempotency::{
    Forgotten, MAX_RECORDS, Owner, RecordState, Recorded, RecordedPage, ResultStore, StoreIdentity,
    Swept, WorkKey,
};
use queue_core::internal::{LockExt, debug_fields, later, record_mark, record_start};
use queue_core::{Error, QueueName};

/// Results in this process, for tests and for programs of one process. The results are lost with the process.
///
/// Clones share the results.
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::idempotency::MemoryResults;
/// use queue_runtime::once;
/// use queue_runtime::clock::SystemClock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryResults::new(Arc::new(SystemClock::new()));
/// for _ in 0..2 {
///     let receipt = once(&store, "order-1234", async {
///         println!("charging the card"); // Printed once.
///         Ok::<_, std::io::Error>(7)
///     });
///     assert_eq!(receipt.await?, 7);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryResults {
    clock: Arc<dyn Clock>,
    origin: Origin,
    entries: Arc<Mutex<BTreeMap<WorkKey, Entry>>>,
    identity: StoreIdentity,
}

/// The same moment on the wall clock and on the monotonic clock, from which the store's time follows.
#[derive(Clone, Copy)]
struct Origin {
    time: Timestamp,
    monotonic: Duration,
}

pub(super) struct Entry {
    owner: Owner,
    /// The end of the lease or of the retention, on the monotonic clock.
    ends_at: Duration,
    result: Option<Bytes>,
    /// The message with which the entry ends.
    message: Option<MessagePlace>,
}

/// Where a message is stored: its queue and its number.
pub(super) type MessagePlace = (QueueName, u64);

impl Entry {
    /// Whether the entry is a result whose retention is over.
    fn is_over(&self, now: Duration) -> bool {
        self.result.is_some() && self.ends_at <= now
    }
}

/// The most entries that one sweep removes.
const SWEEP: usize = 1000;

/// The entries that one step of the upkeep looks at.
const STEP: usize = 1000;

impl MemoryResults {
    /// Creates an empty store.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let origin = Origin {
            time: clock.now(),
            monotonic: clock.monotonic(),
        };
        Self {
            clock,
            origin,
            entries: Arc::default(),
            identity: StoreIdentity::default(),
        }
    }

    fn timestamp(&self, monotonic: Duration) -> Timestamp {
        let since = monotonic.saturating_sub(self.origin.monotonic);
        later(self.origin.time, since)
    }

    fn recorded(&self, key: &WorkKey, entry: &Entry) -> Recorded {
        let state = match &entry.result {
            Some(result) => RecordState::Done {
                size: result.len() as u64,
            },
            None => RecordState::InFlight { owner: entry.owner },
        };
        Recorded::new(key.clone(), state, self.timestamp(entry.ends_at))
    }

    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<WorkKey, Entry>, Duration) -> T) -> T {
        let mut entries = self.entries.hold();
        change(&mut entries, self.clock.monotonic())
    }

    /// Changes the record of a key on a condition, after the put of a message. A value whose message is not stored any more
    /// counts as none. Returns what was recorded before, or else what the swap has found.
    pub(super) fn change(
        &self,
        swap: &Swap,
        put: Option<(&QueueName, u64)>,
        is_stored: impl FnOnce(&MessagePlace) -> bool,
    ) -> Result<Option<Entry>, Option<FoundRecord>> {
        self.with(|entries, now| {
            // Who repeats a finish learns that it is done, however long ago.
            let is_of_claim = matches!(swap.condition, SwapIf::Owner(_));
            let entry = entries.get(&swap.key);
            let entry = entry.filter(|entry| is_of_claim || !entry.is_over(now));
            let found = entry.map(|entry| {
                let remaining = entry.ends_at.saturating_sub(now);
                FoundRecord::new(entry.owner, entry.result.clone(), remaining)
            });
            if !swap.condition.holds(found.as_ref()) {
                let message = entry.and_then(|entry| entry.message.as_ref());
                let is_gone = message.is_some_and(|message| !is_stored(message));
                if !is_gone || !swap.condition.holds(None) {
                    return Err(found.filter(|_| !is_gone));
                }
            }
            let Some(record) = &swap.record else {
                return Ok(entries.remove(&swap.key));
            };
            let entry = Entry {
                owner: record.owner,
                ends_at: now.saturating_add(record.duration),
                result: record.value.clone(),
                message: put
                    .filter(|_| record.ends_with_message)
                    .map(|(queue, number)| (queue.clone(), number)),
            };
            Ok(entries.insert(swap.key.clone(), entry))
        })
    }

    /// Removes the results that are over of the next entries after a key: nobody else may do so. Moves the key on, and
    /// returns whether any results were over, so that there may be more.
    pub(super) fn sweep_on(&self, after: &mut Option<WorkKey>) -> bool {
        self.with(|entries, now| {
            let start = after.take().map_or(Bound::Unbounded, Bound::Excluded);
            let mut next = entries.range((start, Bound::Unbounded));
            let step = next.by_ref().take(STEP);
            let (mut last, mut over) = (None, Vec::new());
            for (key, entry) in step {
                last = Some(key);
                over.extend(entry.is_over(now).then(|| key.clone()));
            }
            *after = next.next().and(last).cloned();
            for key in &over {
                entries.remove(key);
            }
            !over.is_empty()
        })
    }

    /// Undoes the recording of a value: records what was there before.
    pub(super) fn restore(&self, key: &WorkKey, before: Option<Entry>) {
        self.with(|entries, _| match before {
            Some(entry) => entries.insert(key.clone(), entry),
            None => entries.remove(key),
        });
    }
}

#[async_trait]
impl ResultStore for MemoryResults {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn identity(&self) -> Option<&StoreIdentity> {
        Some(&self.identity)
    }

    async fn swap(&self, swap: &Swap) -> Result<SwapOutcome, Error> {
        Ok(match self.change(swap, None, |_| true) {
            Ok(_) => SwapOutcome::Swapped,
            Err(found) => SwapOutcome::Differs(found),
        })
    }

    async fn sweep(&self) -> Result<Swept, Error> {
        Ok(self.with(|entries, now| {
            // A lease that has ended is not removed: its owner may still finish.
            let over = entries.iter().filter(|(_, entry)| entry.is_over(now));
            let keys: Vec<_> = over.map(|(key, _)| key.clone()).take(SWEEP).collect();
            for key in &keys {
                entries.remove(key);
            }
            Swept::new(keys.len(), keys.len() == SWEEP)
        }))
    }

    async fn list(
        &self,
        scope: Option<&str>,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedPage, Error> {
        let (of, key) = record_start(scope, from)?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let start = WorkKey::new(text(&of), text(&key));
        let max = max.clamp(1, MAX_RECORDS);
        Ok(self.with(|entries, now| {
            let entries = entries.range(start..);
            let mut entries = entries
                .take_while(|(key, _)| scope.is_none_or(|scope| scope == key.scope()))
                .peekable();
            let found = entries.by_ref().take(max);
            let found = found.filter(|(_, entry)| !entry.is_over(now));
            let records = found.map(|(key, entry)| self.recorded(key, entry));
            let mut page = RecordedPage::new(records.collect(), self.timestamp(now));
            let next = entries.peek();
            page.next =
                next.map(|(key, _)| record_mark(key.scope().as_bytes(), key.key().as_bytes()));
            page
        }))
    }

    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>, Error> {
        Ok(self.with(|entries, now| {
            let entry = entries.get(key).filter(|entry| !entry.is_over(now))?;
            let recorded = self.recorded(key, entry);
            Some(match &entry.result {
                Some(result) => recorded.with_value(result.clone()),
                None => recorded,
            })
        }))
    }

    async fn forget(&self, key: &WorkKey) -> Result<Forgotten, Error> {
        Ok(self.with(|entries, now| match entries.get(key) {
            None => Forgotten::Missing,
            Some(entry) if entry.result.is_none() && entry.ends_at > now => Forgotten::InFlight {
                remaining: entry.ends_at.saturating_sub(now),
            },
            Some(entry) => {
                let was_over = entry.is_over(now);
                entries.remove(key);
                if was_over {
                    Forgotten::Missing
                } else {
                    Forgotten::Removed
                }
            }
        }))
    }
}

debug_fields!(MemoryResults {});

#[cfg(test)]
mod tests {
    use queue_core::clock::ManualClock;
    use queue_core::idempotency::{Claim, ClaimStatus};

    use super::*;

    #[test]
    fn values_that_are_over_are_removed_in_steps() {
        let clock = ManualClock::new();
        let results = MemoryResults::new(Arc::new(clock.clone()));
        let number = 5 * STEP / 2;
        for number in 0..number {
            let key = WorkKey::new("test", format!("{number:06}"));
            let retention = Duration::from_secs(if number % 2 == 0 { 1 } else { 100 });
            let swap = Swap::new(key, "value", retention);
            assert!(results.change(&swap, None, |_| true).is_ok());
        }
        let left = || results.with(|entries, _| entries.len());
        let mut after = None;
        assert!(!results.sweep_on(&mut after), "none is over");
        clock.advance(Duration::from_secs(2));
        assert!(results.sweep_on(&mut after));
        assert_eq!(left(), number - STEP / 2, "one step");
        while results.sweep_on(&mut after) {}
        assert_eq!(left(), number / 2);
    }

    #[test]
    fn a_finish_that_is_repeated_after_the_retention_is_over_is_done() {
        let clock = ManualClock::new();
        let results = MemoryResults::new(Arc::new(clock.clone()));
        let (key, claim) = (
            || WorkKey::new("test", "key"),
            Claim::new(Owner::random(), 0),
        );
        let second = Duration::from_secs(1);
        let begun = results.change(&Swap::begin(key(), claim.owner, second), None, |_| true);
        assert!(begun.is_ok());
        for (late, result) in [(Duration::ZERO, "first"), (2 * second, "again")] {
            clock.advance(late);
            let finish = Swap::finish(key(), claim, result, second);
            let status = match results.change(&finish, None, |_| true) {
                Ok(_) => ClaimStatus::Held,
                Err(found) => SwapOutcome::Differs(found).status_of(claim),
            };
            assert_eq!(status, ClaimStatus::Held, "{result}");
        }
        let next = results.change(&Swap::begin(key(), Owner::random(), second), None, |_| true);
        assert!(next.is_ok(), "its retention is over");
    }
}

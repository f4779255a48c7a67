//! A priority queue of items by due time, for one task to wait on.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use tokio::sync::Notify;

/// A priority queue by due time, on a clock's monotonic time.
///
/// Any thread may schedule items; one task awaits [`due`](Self::due). Lock order: a ticket before the
/// entries.
pub(crate) struct DelayQueue<T> {
    entries: Mutex<Entries<T>>,
    earlier: Notify,
}

struct Entries<T> {
    by_due_time: BTreeMap<Key, T>,
    next_number: u64,
    /// The time at which the task that awaits `due` wakes without a notification.
    wake_at: Option<Duration>,
}

/// The due time, and a number that distinguishes items with the same due time.
type Key = (Duration, u64);

/// The entry of one item in a [`DelayQueue`]. The item is scheduled at most once at a time, and not at all after
/// the ticket is closed.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Mutex<Slot>);

#[derive(Debug, Default, Clone, Copy)]
enum Slot {
    #[default]
    Unscheduled,
    /// Scheduled under this key, unless the item has been taken since.
    Scheduled(Key),
    Closed,
}

impl<T> DelayQueue<T> {
    /// Schedules an item for `due`, in place of an earlier item of `ticket`. Does nothing if the ticket is
    /// closed.
    pub(crate) fn schedule(&self, ticket: &Ticket, due: Duration, item: T) {
        let mut slot = ticket.0.hold();
        let replaced = match *slot {
            Slot::Closed => return,
            Slot::Scheduled(key) => Some(key),
            Slot::Unscheduled => None,
        };
        let mut entries = self.entries.hold();
        if let Some(key) = replaced {
            entries.by_due_time.remove(&key);
        }
        let key = (due, entries.next_number);
        entries.next_number += 1;
        entries.by_due_time.insert(key, item);
        *slot = Slot::Scheduled(key);
        if entries.wake_at.is_none_or(|at| due < at) {
            entries.wake_at = Some(due);
            self.earlier.notify_one();
        }
    }

    /// Removes the item of `ticket` and closes the ticket.
    pub(crate) fn close(&self, ticket: &Ticket) {
        let mut slot = ticket.0.hold();
        if let Slot::Scheduled(key) = *slot {
            self.entries.hold().by_due_time.remove(&key);
        }
        *slot = Slot::Closed;
    }

    /// Waits until an item is due, and takes all items that are.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken before the future is ready.
    pub(crate) async fn due(&self, clock: &dyn Clock) -> Vec<T> {
        self.due_beside(clock, pending).await
    }

    /// Waits as [`due`](Self::due) does, and runs `beside` from when items are scheduled, so that it takes no memory
    /// before. Takes nothing if it ends first.
    ///
    /// # Cancel safety
    /// Cancel safe, if `beside` is.
    pub(crate) async fn due_beside<F: Future<Output = ()>>(
        &self,
        clock: &dyn Clock,
        beside: impl FnOnce() -> F,
    ) -> Vec<T> {
        let (mut beside, mut begun) = (Some(beside), None);
        loop {
            let now = clock.monotonic();
            let (due, next) = self.take_until(now);
            if !due.is_empty() {
                return due;
            }
            let Some(at) = next else {
                self.earlier.notified().await;
                continue;
            };
            begun = begun.or_else(|| Some(Box::pin(beside.take()?())));
            let beside = begun.as_mut().expect("it was begun");
            tokio::select! {
                () = clock.sleep_until(at) => {}
                () = self.earlier.notified() => {}
                () = beside => return Vec::new(),
            }
        }
    }

    /// Returns whether `is_so` holds for any item.
    pub(crate) fn any(&self, is_so: impl FnMut(&T) -> bool) -> bool {
        self.entries.hold().by_due_time.values().any(is_so)
    }

    /// Returns the item that is due first, if that is before `now`.
    pub(crate) fn next_until(&self, now: Duration) -> Option<T>
    where
        T: Clone,
    {
        let entries = self.entries.hold();
        let (key, item) = entries.by_due_time.first_key_value()?;
        (key.0 < now).then(|| item.clone())
    }

    /// Takes all items, whether they are due or not.
    pub(crate) fn take_all(&self) -> Vec<T> {
        self.take_until(Duration::MAX).0
    }

    fn take_until(&self, now: Duration) -> (Vec<T>, Option<Duration>) {
        let mut entries = self.entries.hold();
        let later = entries.by_due_time.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut entries.by_due_time, later);
        let next = entries.by_due_time.keys().next().map(|key| key.0);
        // A caller that takes items calls again at once, and sets the wake-up then.
        entries.wake_at = if due.is_empty() { next } else { None };
        (due.into_values().collect(), next)
    }
}

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        Self {
            entries: Mutex::new(Entries {
                by_due_time: BTreeMap::new(),
                next_number: 0,
                wake_at: None,
            }),
            earlier: Notify::new(),
        }
    }
}

impl<T> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("scheduled", &self.entries.hold().by_due_time.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use queue_core::ManualClock;
    use queue_tests::SECOND;

    use super::*;

    #[tokio::test]
    async fn items_are_due_in_order_and_once() {
        let (clock, queue) = (ManualClock::new(), DelayQueue::default());
        for (item, due) in [("second", 2), ("first", 1), ("third", 3), ("same", 2)] {
            queue.schedule(&Ticket::default(), due * SECOND, item);
        }
        clock.advance(2 * SECOND);
        assert_eq!(queue.due(&clock).await, ["first", "second", "same"]);
        assert_eq!(queue.take_all(), ["third"]);
        assert!(queue.take_all().is_empty());
    }

    #[test]
    fn a_ticket_has_one_place_and_none_once_it_is_closed() {
        let (queue, ticket) = (DelayQueue::default(), Ticket::default());
        queue.schedule(&ticket, SECOND, "replaced");
        queue.schedule(&ticket, 2 * SECOND, "scheduled");
        assert_eq!(queue.take_all(), ["scheduled"]);
        queue.schedule(&ticket, SECOND, "removed");
        queue.close(&ticket);
        queue.schedule(&ticket, SECOND, "refused");
        assert!(queue.take_all().is_empty());
    }

    #[tokio::test]
    async fn what_is_scheduled_earlier_wakes_the_task_that_waits() {
        let clock = ManualClock::new();
        let queue = Arc::new(DelayQueue::default());
        queue.schedule(&Ticket::default(), 60 * SECOND, "late");
        let waiting = tokio::spawn({
            let (queue, clock) = (Arc::clone(&queue), clock.clone());
            async move { queue.due(&clock).await }
        });
        tokio::task::yield_now().await;
        queue.schedule(&Ticket::default(), SECOND, "early");
        tokio::task::yield_now().await;
        clock.advance(SECOND);
        assert_eq!(waiting.await.expect("no panic"), ["early"]);
    }
}

//! The wake-ups of one consumer: a listener, or an `accept` that waits.
//!
//! ```text
//!                notified                    wait
//!   Nothing ───────────────────► Announced ────────► the consumer receives ─┬─► messages: trusted again
//!      │ notified, visible later     ▲                                      └─► none: false
//!      └───────────────► Due times ──┘                                              │
//!                                    ▲                                              ▼
//!                                    └──────── after a pause that grows ──────── Distrust
//! ```
//!
//! What was announced before a receive began is done with: the message was stored before it was announced, so that
//! receive sees it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::QueueProperties;
use queue_core::clock::Clock;
use queue_core::internal::{LockExt as _, as_u32};
use queue_core::notify::{Notification, Subscriber, Subscription};
use tokio::sync::Notify;

use super::notifiers::Notifiers;

/// The pause after a false wake-up doubles from the first to the longest.
const FIRST_DISTRUST: Duration = Duration::from_millis(5);
const LONGEST_DISTRUST: Duration = Duration::from_secs(1);

/// The wake-ups of one consumer.
pub(crate) struct Wakeups {
    inner: Arc<Inner>,
    subscriptions: Vec<Box<dyn Subscription>>,
}

/// Why [`Wakeups::wait`] ended: messages were announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wakeup {
    /// The number of announced messages.
    messages: usize,
    /// Whether the delay of some messages is over. The storage's clock may be slower than this process's.
    is_due: bool,
}

struct Inner {
    clock: Arc<dyn Clock>,
    /// The number of messages that the consumer receives at a time.
    batch: AtomicUsize,
    state: Mutex<State>,
    changed: Notify,
}

/// The subscription to one notifier.
struct Source {
    inner: Arc<Inner>,
    /// The index of what the notifier has announced.
    at: usize,
}

#[derive(Debug, Default)]
struct State {
    /// What each notifier has announced. Several notifiers may announce the same messages, so the largest number
    /// counts.
    heard: Vec<Heard>,
    /// Whether some messages were announced to become visible later, and are due since the last receive began.
    due: bool,
    /// The number of tasks that wait.
    waiting: usize,
    /// The number of wake-ups in a row that led to no message.
    false_ones: usize,
    /// Until when no wake-up is heeded, on the monotonic clock.
    distrusted_until: Duration,
}

/// What one notifier has announced.
#[derive(Debug, Default)]
struct Heard {
    /// The number of messages since the last receive began.
    announced: usize,
    due_times: DueTimes,
}

impl Wakeups {
    /// Subscribes a consumer that receives up to `batch` messages at a time.
    pub(crate) fn subscribe(
        notifiers: &Notifiers,
        clock: Arc<dyn Clock>,
        queue: &QueueName,
        batch: usize,
    ) -> Self {
        let inner = Arc::new(Inner {
            clock,
            batch: AtomicUsize::new(batch.max(1)),
            state: Mutex::default(),
            changed: Notify::new(),
        });
        let subscriptions = notifiers.subscribe(queue, || Inner::source(&inner));
        Self {
            inner,
            subscriptions,
        }
    }

    /// Changes how many messages the consumer receives at a time.
    pub(crate) fn set_batch(&self, batch: usize) {
        self.inner.batch.store(batch.max(1), Ordering::Relaxed);
    }

    /// Returns whether all puts on the queue are announced now, so that nobody needs to poll meanwhile, except
    /// rarely.
    ///
    /// Messages whose leases end are not announced. A consumer that stops polling therefore checks, once `is_armed`
    /// returns true, that the queue has no messages, invisible ones included.
    pub(crate) fn is_armed(&self) -> bool {
        self.subscriptions
            .iter()
            .any(|subscription| subscription.is_armed())
    }

    /// Returns whether messages were announced that are not visible yet.
    pub(crate) fn expect_more(&self) -> bool {
        self.inner.state.hold().next_due().is_some()
    }

    /// Records that a receive begins after a pause that ended with `woken`. Returns the number of messages announced so
    /// far, which the receive will see.
    pub(crate) fn receive_begins(&self, woken: Option<Wakeup>) -> usize {
        let mut state = self.inner.state.hold();
        state.due = false;
        let since = state.take_announced();
        woken
            .map_or(0, |wakeup| wakeup.messages)
            .saturating_add(since)
    }

    /// Records that a receive found messages. If there may be more messages, wakes another task of the consumer.
    pub(crate) fn found(&self, more: bool) {
        let mut state = self.inner.state.hold();
        state.false_ones = 0;
        state.distrusted_until = Duration::ZERO;
        if more {
            if state.announced() == 0 {
                state.announce_again(1);
            }
            drop(state);
            self.inner.changed.notify_waiters();
        }
    }

    /// Records that a receive found nothing, after a pause that ended with `woken`. `empty` is the number of earlier
    /// empty receives in a row; returns the number to ask the idle policy with.
    pub(crate) fn found_none(&self, woken: Option<Wakeup>, empty: usize) -> usize {
        if woken.is_some() {
            self.distrust();
        }
        match woken {
            // The storage's clock may be behind: the message is expected soon.
            Some(wakeup) if wakeup.is_due => 1,
            _ => empty.saturating_add(1),
        }
    }

    /// Gives back a wake-up that led to no receive, to another task of the consumer.
    pub(crate) fn give_back(&self, wakeup: Wakeup) {
        let mut state = self.inner.state.hold();
        state.announce_again(wakeup.messages);
        state.due |= wakeup.is_due;
        drop(state);
        self.inner.changed.notify_waiters();
    }

    fn distrust(&self) {
        let now = self.inner.clock.monotonic();
        let mut state = self.inner.state.hold();
        let doubled = 2_u32.saturating_pow(as_u32(state.false_ones));
        let pause = FIRST_DISTRUST.saturating_mul(doubled).min(LONGEST_DISTRUST);
        state.false_ones = state.false_ones.saturating_add(1);
        state.distrusted_until = now.saturating_add(pause);
    }

    /// Waits until at least `least` messages are announced and visible, and takes the announcement: no other task
    /// is woken by it.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn wait(&self, least: usize) -> Wakeup {
        let inner = &*self.inner;
        let _waiting = Waiting::new(inner);
        loop {
            let mut changed = std::pin::pin!(inner.changed.notified());
            changed.as_mut().enable();
            match inner.take(least) {
                Ok(wakeup) => return wakeup,
                Err(Some(at)) => tokio::select! {
                    () = changed => {}
                    () = inner.clock.sleep_until(at) => {}
                },
                Err(None) => changed.await,
            }
        }
    }
}

impl Inner {
    /// Returns a subscriber to one more notifier.
    fn source(inner: &Arc<Self>) -> Arc<dyn Subscriber> {
        let heard = &mut inner.state.hold().heard;
        heard.push(Heard::default());
        Arc::new(Source {
            inner: Arc::clone(inner),
            at: heard.len() - 1,
        })
    }

    /// Takes the announcement, or returns when to look again.
    fn take(&self, least: usize) -> Result<Wakeup, Option<Duration>> {
        let now = self.clock.monotonic();
        let mut state = self.state.hold();
        if now < state.distrusted_until {
            let until = state.distrusted_until;
            let pending = state.announced() > 0 || state.next_due().is_some();
            return Err(pending.then_some(until));
        }
        state.come_due(now);
        if state.announced() < least.max(1) {
            return Err(state.next_due());
        }
        Ok(Wakeup {
            messages: state.take_announced(),
            is_due: std::mem::take(&mut state.due),
        })
    }
}

impl Subscriber for Source {
    fn notified(&self, notification: &Notification<'_>) -> usize {
        let inner = &*self.inner;
        let now = inner.clock.monotonic();
        let mut state = inner.state.hold();
        // Also while nobody waits, so that times that have passed do not accumulate.
        state.come_due(now);
        let (visible, messages) = (notification.visible_in.is_zero(), notification.messages);
        let heard = &mut state.heard[self.at];
        if visible {
            heard.announced = heard.announced.saturating_add(messages);
        } else {
            heard.due_times.add(now, notification.visible_in, messages);
        }
        let (waiting, trusted) = (state.waiting > 0, now >= state.distrusted_until);
        drop(state);
        if waiting {
            inner.changed.notify_waiters();
        }
        if visible && waiting && trusted {
            inner.batch.load(Ordering::Relaxed)
        } else {
            0
        }
    }
}

impl State {
    fn announced(&self) -> usize {
        let announced = self.heard.iter().map(|heard| heard.announced);
        announced.max().unwrap_or(0)
    }

    fn take_announced(&mut self) -> usize {
        let announced = self.announced();
        self.heard.iter_mut().for_each(|heard| heard.announced = 0);
        announced
    }

    /// Adds messages to what every notifier has announced.
    fn announce_again(&mut self, messages: usize) {
        for heard in &mut self.heard {
            heard.announced = heard.announced.saturating_add(messages);
        }
    }

    fn next_due(&self) -> Option<Duration> {
        let next = self.heard.iter().filter_map(|heard| heard.due_times.next());
        next.min()
    }

    fn come_due(&mut self, now: Duration) {
        for heard in &mut self.heard {
            let messages = heard.due_times.take(now);
            heard.announced = heard.announced.saturating_add(messages);
            self.due |= messages > 0;
        }
    }
}

/// Returns how long a queue needs no look while all that is put, put back or passed on is announced. `None` if it has
/// messages, invisible ones included, and the storage does not know when they become visible.
pub(crate) fn quiet_for(queue: &QueueProperties) -> Option<Duration> {
    match queue.approximate_count {
        0 => Some(Duration::MAX),
        _ => queue.next_visible_in,
    }
}

/// Counts a task that waits.
struct Waiting<'a>(&'a Inner);

impl<'a> Waiting<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.state.hold().waiting += 1;
        Self(inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.hold().waiting -= 1;
    }
}

/// The times at which announced messages become visible, on the monotonic clock, with the number of messages.
///
/// While [`EXACT`] times are pending, others are rounded up to a multiple of a power of two of about a 64th of the time
/// until then, so that at most some thousand times are pending, however many messages there are and however far ahead.
#[derive(Debug, Default)]
struct DueTimes(BTreeMap<u64, usize>);

impl DueTimes {
    /// Adds messages that become visible `delay` after `now`.
    fn add(&mut self, now: Duration, delay: Duration, messages: usize) {
        let due = millis(now.saturating_add(delay));
        let due = if self.0.len() < EXACT {
            due
        } else {
            rounded(due, millis(delay))
        };
        let counted = self.0.entry(due).or_default();
        *counted = counted.saturating_add(messages);
    }

    /// Removes the messages that are visible at `now`, and returns their number.
    fn take(&mut self, now: Duration) -> usize {
        let mut taken: usize = 0;
        while let Some(first) = self.0.first_entry() {
            if Duration::from_millis(*first.key()) > now {
                break;
            }
            taken = taken.saturating_add(first.remove());
        }
        taken
    }

    /// Returns when the next message becomes visible.
    fn next(&self) -> Option<Duration> {
        self.0.keys().next().copied().map(Duration::from_millis)
    }
}

/// The number of pending times that are not rounded: so few messages are received one by one anyway.
const EXACT: usize = 64;

/// Rounds up a time that is `ahead` milliseconds away.
fn rounded(due: u64, ahead: u64) -> u64 {
    let step = (ahead / 64).max(1);
    let step = 1 << step.ilog2();
    due.checked_next_multiple_of(step).unwrap_or(due)
}

/// Returns whole milliseconds, rounded up.
fn millis(duration: Duration) -> u64 {
    let nanos = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wakeups")
            .field("state", &*self.inner.state.hold())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

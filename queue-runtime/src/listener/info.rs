use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A snapshot of a listener's figures. Counts are since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// Dequeue tasks that are running.
    pub tasks: usize,
    /// Messages received and not settled yet.
    pub in_flight: usize,
    /// The highest number of messages in flight so far.
    pub peak_in_flight: usize,
    /// Messages handled and acknowledged.
    pub completed: u64,
    /// Failed attempts whose message will be retried.
    pub retried: u64,
    /// Messages moved to the poison queue.
    pub poisoned: u64,
    /// Messages handed back without counting the attempt: at shutdown, or from a newer program.
    pub released: u64,
    /// Messages whose lease was lost or whose settlement failed.
    pub unsettled: u64,
    /// Handlers that were told to stop and still block their thread.
    pub stuck: usize,
    /// Receives that found the queue empty.
    pub empty_receives: u64,
}

/// The figures as they are counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) tasks: AtomicUsize,
    in_flight: AtomicUsize,
    peak_in_flight: AtomicUsize,
    pub(super) completed: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) poisoned: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) unsettled: AtomicU64,
    pub(super) stuck: AtomicUsize,
    pub(super) empty_receives: AtomicU64,
}

impl Counters {
    pub(super) fn snapshot(&self) -> ListenerInfo {
        ListenerInfo {
            tasks: self.tasks.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            peak_in_flight: self.peak_in_flight.load(Ordering::Relaxed),
            completed: self.completed.load(Ordering::Relaxed),
            retried: self.retried.load(Ordering::Relaxed),
            poisoned: self.poisoned.load(Ordering::Relaxed),
            released: self.released.load(Ordering::Relaxed),
            unsettled: self.unsettled.load(Ordering::Relaxed),
            stuck: self.stuck.load(Ordering::Relaxed),
            empty_receives: self.empty_receives.load(Ordering::Relaxed),
        }
    }

    pub(super) fn received(&self) {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak_in_flight.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn settled(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The figures of a listener at one moment. The counts are since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// Dequeue tasks that are running.
    pub tasks: usize,
    /// Messages received and not yet settled.
    pub in_flight: usize,
    /// The most messages that were in flight at once.
    pub peak_in_flight: usize,
    /// Messages handled and acknowledged.
    pub completed: u64,
    /// Attempts that failed and are tried again.
    pub retried: u64,
    /// Messages set aside on the poison queue.
    pub poisoned: u64,
    /// Messages handed back uncounted, at shutdown or because they are too new.
    pub released: u64,
    /// Leases lost while the message was handled, and settlements that failed.
    pub unsettled: u64,
    /// Handlers that were told to stop and still block their thread.
    pub stuck: usize,
    /// Receives that found nothing.
    pub empty_receives: u64,
}

/// The figures as they are kept.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) tasks: AtomicUsize,
    pub(super) in_flight: AtomicUsize,
    pub(super) peak_in_flight: AtomicUsize,
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

    pub(super) fn took_in(&self) {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak_in_flight.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn let_go(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

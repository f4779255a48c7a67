use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::internal::LockExt as _;

use super::info::ListenerInfo;

/// What a listener counts, for its [figures](ListenerInfo).
#[derive(Debug, Default)]
pub(super) struct Counters {
    in_flight: AtomicUsize,
    peak_in_flight: AtomicUsize,
    pub(super) completed: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) poisoned: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) unsettled: AtomicU64,
    pub(super) stuck: AtomicUsize,
    /// Those of them that are in a transaction.
    pub(super) stuck_transactions: AtomicUsize,
    pub(super) empty_receives: AtomicU64,
    /// In milliseconds. Zero before the first receive.
    visibility: AtomicU64,
    depth: Mutex<Option<u64>>,
}

impl Counters {
    /// Returns the figures that are counted here.
    pub(super) fn snapshot(&self) -> ListenerInfo {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ListenerInfo {
            in_flight: self.in_flight(),
            peak_in_flight: self.peak_in_flight.load(Ordering::Relaxed),
            completed: count(&self.completed),
            duplicates: count(&self.duplicates),
            retried: count(&self.retried),
            poisoned: count(&self.poisoned),
            released: count(&self.released),
            unsettled: self.unsettled(),
            stuck: self.stuck.load(Ordering::Relaxed),
            empty_receives: count(&self.empty_receives),
            visibility_timeout: self.visibility(),
            depth: self.depth(),
            ..ListenerInfo::default()
        }
    }

    pub(super) fn measured(&self, depth: u64) {
        *self.depth.hold() = Some(depth);
    }

    /// Returns the depth when it was last measured.
    pub(super) fn depth(&self) -> Option<u64> {
        *self.depth.hold()
    }

    pub(super) fn received(&self, messages: usize) {
        let now = self.in_flight.fetch_add(messages, Ordering::Relaxed) + messages;
        self.peak_in_flight.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn receives_for(&self, visibility: Duration) {
        let millis = u64::try_from(visibility.as_millis()).unwrap_or(u64::MAX);
        self.visibility.store(millis, Ordering::Relaxed);
    }

    /// Returns the visibility timeout of the last receive.
    pub(super) fn visibility(&self) -> Option<Duration> {
        match self.visibility.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }

    pub(super) fn unsettled(&self) -> u64 {
        self.unsettled.load(Ordering::Relaxed)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn settled(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

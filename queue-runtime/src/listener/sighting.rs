use std::sync::atomic::{AtomicU8, Ordering};

/// What the last receive of a listener found.
#[derive(Debug, Default)]
pub(super) struct Sighting(AtomicU8);

const MESSAGES: u8 = 0;
const NO_MESSAGE: u8 = 1;
const NO_QUEUE: u8 = 2;

impl Sighting {
    /// Records a receive that succeeded. Returns whether it is the first that found messages after one that did not.
    pub(super) fn received(&self, messages: usize) -> bool {
        let found = if messages > 0 { MESSAGES } else { NO_MESSAGE };
        let before = self.0.swap(found, Ordering::Relaxed);
        found == MESSAGES && before != MESSAGES
    }

    /// Records that the queue is missing. Returns whether that is news.
    pub(super) fn missing(&self) -> bool {
        self.0.swap(NO_QUEUE, Ordering::Relaxed) != NO_QUEUE
    }
}

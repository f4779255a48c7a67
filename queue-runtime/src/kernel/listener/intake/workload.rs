use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use queue_core::internal::between;
use tokio::sync::Notify;

use crate::kernel::receive::Fetched;

/// What the dequeue tasks tell the scaler.
#[derive(Debug, Default)]
pub(super) struct Workload {
    /// Whether the scaler has been started, so that it needs to know of what is received.
    has_scaler: AtomicBool,
    work: Notify,
    /// Whether messages were received since the policy was last asked.
    received: AtomicBool,
    /// The longest wait of messages received since then, in milliseconds plus one. Zero for none.
    longest_wait: AtomicU64,
    /// Whether a receive was throttled since then.
    throttled: AtomicBool,
}

/// What happened since the policy was last asked.
pub(super) struct Recent {
    /// The longest wait of the messages received, if there were any.
    pub(super) longest_wait: Option<Duration>,
    /// Whether a receive was throttled.
    pub(super) throttled: bool,
}

impl Workload {
    /// Records that the scaler starts. Returns false if it has been started before.
    pub(super) fn start_scaler(&self) -> bool {
        !self.has_scaler.swap(true, Ordering::Relaxed)
    }

    /// Records messages that were received, and whether that is a reason to ask the policy.
    pub(super) fn received(&self, messages: &[Fetched], asks: bool) {
        if messages.is_empty() || !self.has_scaler.load(Ordering::Relaxed) {
            return;
        }
        let first = messages.iter().map(|fetched| &fetched.message);
        let first = first.filter(|message| message.dequeue_count == 1);
        let waits = first.map(|message| between(message.inserted_at, message.received_at));
        if let Some(longest) = waits.max() {
            let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX - 1);
            self.longest_wait.fetch_max(millis + 1, Ordering::Relaxed);
        }
        if !asks {
            return;
        }
        self.received.store(true, Ordering::Release);
        self.work.notify_one();
    }

    /// Records a throttled receive.
    pub(super) fn throttled(&self) {
        self.throttled.store(true, Ordering::Relaxed);
    }

    /// Waits until messages were received since the policy was last asked.
    pub(super) async fn work(&self) {
        // A notification may be left of those that the policy was asked about.
        while !self.has_received() {
            self.work.notified().await;
        }
    }

    /// Records that the policy is about to be asked.
    pub(super) fn begin_question(&self) {
        self.received.store(false, Ordering::Relaxed);
    }

    /// Returns whether messages were received since the policy was last asked.
    pub(super) fn has_received(&self) -> bool {
        self.received.load(Ordering::Acquire)
    }

    pub(super) fn take_recent(&self) -> Recent {
        let longest_wait = self.longest_wait.swap(0, Ordering::Relaxed);
        Recent {
            longest_wait: longest_wait.checked_sub(1).map(Duration::from_millis),
            throttled: self.throttled.swap(false, Ordering::Relaxed),
        }
    }
}

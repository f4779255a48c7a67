use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use queue_core::internal::between;
use tokio::sync::Notify;

use crate::receive::Fetched;

/// What the dequeue tasks tell the scaler.
#[derive(Debug)]
pub(super) struct Workload {
    /// Whether the scaler has been started, so that it needs to know of what is received.
    has_scaler: AtomicBool,
    /// Whether the scaler waits for the next message.
    idle: AtomicBool,
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
    pub(super) fn new() -> Self {
        Self {
            has_scaler: AtomicBool::new(false),
            idle: AtomicBool::new(true),
            work: Notify::new(),
            received: AtomicBool::new(false),
            longest_wait: AtomicU64::new(0),
            throttled: AtomicBool::new(false),
        }
    }

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
        // Of this and `work`, each writes one flag and then reads the other: at least one sees both.
        self.received.store(true, Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) {
            self.idle.store(false, Ordering::SeqCst);
            self.work.notify_one();
        }
    }

    /// Records a throttled receive.
    pub(super) fn throttled(&self) {
        self.throttled.store(true, Ordering::Relaxed);
    }

    /// Waits for a message.
    pub(super) async fn work(&self) {
        self.idle.store(true, Ordering::SeqCst);
        if self.received.load(Ordering::SeqCst) {
            self.idle.store(false, Ordering::SeqCst);
        } else {
            self.work.notified().await;
        }
    }

    /// Records that the policy is about to be asked.
    pub(super) fn begin_question(&self) {
        self.received.store(false, Ordering::SeqCst);
    }

    /// Returns whether messages were received since the policy was last asked.
    pub(super) fn has_received(&self) -> bool {
        self.received.load(Ordering::SeqCst)
    }

    pub(super) fn take_recent(&self) -> Recent {
        let longest_wait = self.longest_wait.swap(0, Ordering::Relaxed);
        Recent {
            longest_wait: longest_wait.checked_sub(1).map(Duration::from_millis),
            throttled: self.throttled.swap(false, Ordering::Relaxed),
        }
    }
}

use std::time::Duration;

use queue_core::Timestamp;
use queue_core::backend::ReceivedMessage;
use queue_core::internal::{between, later};

/// How far the storage's time may be from what a receive tells. A storage may round its times down to
/// seconds, each of them, and be asked for whole seconds.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);

/// A receive that returned a message: when it was sent and answered, on the monotonic clock, and the
/// requested visibility timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) asked_at: Duration,
    pub(crate) answered_at: Duration,
    pub(crate) visibility: Duration,
    /// The visibility timeout of the renewals.
    pub(crate) renewal: Duration,
}

/// The storage's time: that of a receive, advanced by the monotonic clock. No wall clock of this machine is
/// involved, so it does not matter how far that is from the storage's, or whether it is stepped.
///
/// The storage carried out the receive at some moment between the request and the answer. Every method says
/// which of the two it counts from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StorageTime {
    /// In the storage's time.
    received_at: Timestamp,
    /// On the monotonic clock, as is the next.
    asked_at: Duration,
    answered_at: Duration,
}

impl StorageTime {
    pub(super) fn of(message: &ReceivedMessage, receive: Receive) -> Self {
        Self {
            received_at: message.received_at,
            asked_at: receive.asked_at,
            answered_at: receive.answered_at,
        }
    }

    /// Returns the latest storage time that it can be at this moment of the monotonic clock: counted from
    /// the request.
    pub(crate) fn latest_now(&self, monotonic: Duration) -> Timestamp {
        later(self.received_at, monotonic.saturating_sub(self.asked_at))
    }

    /// Returns the earliest moment of the monotonic clock at which it can be this storage time: counted from
    /// the request.
    pub(crate) fn earliest(&self, time: Timestamp) -> Duration {
        let after = between(self.received_at, time);
        self.asked_at.saturating_add(after)
    }

    /// Returns the latest moment of the monotonic clock at which it becomes this storage time: counted from
    /// the answer.
    pub(crate) fn latest(&self, time: Timestamp) -> Duration {
        let after = between(self.received_at, time);
        self.answered_at.saturating_add(after)
    }
}

//! The storage's time, as far as a consumer knows it. Three clocks are involved, and none is compared with another:
//!
//! | clock | used for |
//! |---|---|
//! | this machine's monotonic clock, which counts the time that the machine is suspended | leases, timeouts, delays, patience |
//! | the storage's time, which may be minutes from this machine's | visibility, expiry, `newersince`, the times of a poison record |
//! | this machine's wall clock | the `time` of a submitted event, message ids (UUIDv7), signed requests to Azure |
//!
//! Each received message carries the storage's time of its receive, advanced by the monotonic clock. The storage
//! carried out the receive between request and answer, so each estimate of its time errs on one side:
//!
//! | question | counted from | margin | if the estimate is wrong |
//! |---|---|---|---|
//! | May the message expire before a put-back makes it visible again? | the request | 2 s | It is moved to the poison queue a little early, and does not vanish. |
//! | Until when does a renewal last? | the request | 2 s | It ends a little before the expiry. |
//! | Has the message certainly expired, so that its handler is told to stop? | the answer | 2 s | The handler is told a little late. |
//! | Did a lost lease end because the message expired? | the answer | none | *Expired* and *lease lost* are confused within seconds of expiry. |
//! | Is `newersince` possible? | the storage's time of the receive | 2 s | Patience begins again. |

use std::time::Duration;

use queue_core::Timestamp;
use queue_core::backend::ReceivedMessage;
use queue_core::internal::{between, later};

/// How far the storage's time may be from what a receive tells. A storage may round each of its times down to seconds,
/// and be asked for whole seconds.
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

impl Receive {
    /// Returns this receive with the lease that a message has.
    pub(super) fn of(mut self, message: &ReceivedMessage) -> Self {
        self.visibility = match message.leased_for {
            Some(leased_for) => self.visibility.min(leased_for),
            None => self.visibility,
        };
        self
    }
}

/// The storage's time: that of a receive, advanced by the monotonic clock. This machine's wall clock, which may be far
/// from the storage's or be stepped, is not involved.
///
/// The storage carried out the receive at some moment between the request and the answer. Every method says whether it
/// counts from the request or from the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StorageTime {
    /// When the storage carried out the receive, in its time.
    received_at: Timestamp,
    /// On the monotonic clock, as `answered_at`.
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

    /// When the answer arrived, on the monotonic clock.
    pub(crate) fn answered_at(&self) -> Duration {
        self.answered_at
    }

    /// Returns the latest possible storage time at this moment of the monotonic clock: counted from the request.
    pub(crate) fn latest_now(&self, monotonic: Duration) -> Timestamp {
        later(self.received_at, monotonic.saturating_sub(self.asked_at))
    }

    /// Returns the earliest moment of the monotonic clock at which the storage's time can be `time`: counted from the
    /// request.
    pub(crate) fn earliest(&self, time: Timestamp) -> Duration {
        let after = between(self.received_at, time);
        self.asked_at.saturating_add(after)
    }

    /// Returns the latest moment of the monotonic clock at which the storage's time becomes `time`: counted from the
    /// answer.
    pub(crate) fn latest(&self, time: Timestamp) -> Duration {
        let after = between(self.received_at, time);
        self.answered_at.saturating_add(after)
    }
}

//! Messages that are found by their ids.

use super::queues::BrowsedMessage;
use crate::name::QueueName;

/// Whether messages can be [tracked](super::NewMessage::tracked).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tracking {
    /// [`locate`](super::Backend::locate) finds tracked messages.
    Supported,
    /// A put of a tracked message fails with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    Unsupported,
}

/// What a storage without [tracking](Tracking) says of tracked messages.
pub const NO_TRACKING: &str = "this storage finds no message by its id";

/// A message that was [located](super::Backend::locate).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Located {
    /// The queue that the message is on.
    pub queue: QueueName,
    /// The message.
    pub message: BrowsedMessage,
}

impl Located {
    /// Creates what was found of a message.
    #[must_use]
    pub fn new(queue: QueueName, message: BrowsedMessage) -> Self {
        Self { queue, message }
    }
}

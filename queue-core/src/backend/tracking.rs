//! Messages that are found by their ids.

use std::sync::Mutex;

use super::queues::BrowsedMessage;
use crate::clock::Timestamp;
use crate::envelope::ClientId;
use crate::internal::LockExt as _;
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
    /// Who has received the message last; `None` if nobody has, it was put back since, or a program of an earlier version
    /// has received it.
    pub holder: Option<MessageHolder>,
}

/// Who holds a message that was [located](super::Backend::locate), or held it until its lease ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageHolder {
    /// When the message was received, by the storage's clock.
    pub since: Timestamp,
    /// The client that received the message, if it was [introduced](super::Backend::introduce).
    pub client_id: Option<ClientId>,
}

impl MessageHolder {
    /// Creates the holder of a message.
    #[must_use]
    pub fn new(since: Timestamp, client_id: Option<ClientId>) -> Self {
        Self { since, client_id }
    }
}

/// For backends: who receives by one, as it was [told](super::Backend::introduce).
#[derive(Debug, Default)]
pub struct Introduced(Mutex<Clients>);

#[derive(Debug, Default)]
enum Clients {
    #[default]
    None,
    One(ClientId),
    Several,
}

impl Introduced {
    /// Takes note of a client.
    pub fn add(&self, client: &ClientId) {
        let mut clients = self.0.hold();
        *clients = match &*clients {
            Clients::None => Clients::One(client.clone()),
            Clients::One(known) if known == client => return,
            _ => Clients::Several,
        };
    }

    /// The client, if there is one alone.
    #[must_use]
    pub fn client(&self) -> Option<ClientId> {
        match &*self.0.hold() {
            Clients::One(client) => Some(client.clone()),
            Clients::None | Clients::Several => None,
        }
    }
}

impl Located {
    /// Creates what was found of a message.
    #[must_use]
    pub fn new(queue: QueueName, message: BrowsedMessage) -> Self {
        Self {
            queue,
            message,
            holder: None,
        }
    }

    /// Says who has received the message.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<MessageHolder>) -> Self {
        self.holder = holder;
        self
    }
}

use std::sync::Arc;
use std::time::Duration;

use queue_core::wire::Body;
use queue_core::{InvalidName, Message as _, MessageId};
use serde::{Deserialize, Serialize, Serializer};

use crate::extensions::operators::Browsed;
use crate::service::AnyQueue;

/// An entry of a queue's history: how a message ended.
///
/// A type has a history that says `#[message(history = 100_000)]`: for each of its messages that is completed or moved to the
/// poison queue, an entry is put on the queue [`QUEUE-history`](AnyQueue::history), in the step that ends the message. As
/// many entries as the type says are kept, and of each process that makes entries up to a twentieth or 64 more; none is shown
/// that is older than its `history_age`, if it says one. Those that are too many or too old are deleted when further entries are
/// made. If several types share a queue, the number of the one that keeps the most counts for all.
///
/// An entry has the error of its message, also after the message is deleted from the poison queue.
///
/// ```
/// use queue_runtime::{Message, Received, testing};
/// use queue_runtime::service::{HistoryEntry, HowEnded};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// #[message(queue = "orders", history = 100_000, history_age = "30d")]
/// struct Order {
///     number: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let order = service.submit(Order { number: 7 }).await?;
/// service.accept::<Order>().await?.expect("an order").complete().await?;
///
/// let history = service.queue::<Order>().any().history()?;
/// let page = history.browse(None, 100).await?;
/// let entry: HistoryEntry = page.messages[0].history().expect("an entry");
/// assert_eq!((entry.id, entry.how), (order.id, HowEnded::Completed));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The message's id.
    pub id: MessageId,
    /// The message's kind.
    pub kind: String,
    /// How the message ended.
    pub how: HowEnded,
    /// The number of attempts.
    pub attempts: usize,
    /// How long the last attempt took, from the receive to the end.
    #[serde(rename = "took_ms", serialize_with = "as_milliseconds")]
    pub took: Duration,
    /// Why the message was moved to the poison queue.
    pub reason: Option<String>,
    /// The error of the last attempt, if the message was moved to the poison queue because of one.
    pub error: Option<String>,
}

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HowEnded {
    /// The message was completed.
    Completed,
    /// The message was moved to the poison queue.
    Poisoned,
}

/// An entry as it is stored.
#[derive(Debug, Serialize, Deserialize, queue_derive::Message)]
#[message(kind = "queue.history", queue = "history", crate = queue_core)]
pub(super) struct Stored {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) how: HowEnded,
    pub(super) attempts: usize,
    pub(super) took_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl HistoryEntry {
    /// Returns what a body says, if it is that of an entry.
    fn of(body: &Body) -> Option<Self> {
        let envelope = body.envelope()?;
        if envelope.kind != Stored::TYPE.kind() {
            return None;
        }
        let stored: Stored = body.decode().ok()?;
        Some(Self {
            id: MessageId::new(stored.id).ok()?,
            kind: stored.kind,
            how: stored.how,
            attempts: stored.attempts,
            took: Duration::from_millis(stored.took_ms),
            reason: stored.reason,
            error: stored.error,
        })
    }
}

fn as_milliseconds<S: Serializer>(took: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(milliseconds(*took))
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl AnyQueue {
    /// Returns the queue with the [history](crate::service::HistoryEntry) of this queue, `QUEUE-history`.
    /// [`browse`](Self::browse) returns the entries, the oldest first, and [`Browsed::history`] reads them.
    ///
    /// # Errors
    /// [`InvalidName`] if the queue's name leaves no room for `-history`.
    pub fn history(&self) -> Result<Self, InvalidName> {
        let name = self.name.history()?;
        Ok(Self::new(Arc::clone(&self.context), name))
    }
}

impl Browsed {
    /// The entry of a history, if the message is one. When it was made is the message's
    /// [`inserted_at`](Self::inserted_at). Trust an entry only on the queue of a history: elsewhere, a sender wrote it.
    #[must_use]
    pub fn history(&self) -> Option<HistoryEntry> {
        HistoryEntry::of(&self.body)
    }
}

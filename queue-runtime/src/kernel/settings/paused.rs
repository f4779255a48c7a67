//! Queues that are paused for everybody: their mark in the metadata, and what a service knows of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use queue_core::backend::Metadata;
use queue_core::{QueueName, Timestamp};
use tokio::sync::watch;

/// The name of the queue metadata that pauses every listener of the queue, in every process. The metadata's value is
/// the time of the pause, as in RFC 3339; a value that is not a time pauses the queue too. See
/// [`AnyQueue::pause`](crate::AnyQueue::pause).
pub const PAUSED: &str = "paused";
/// The name of the optional queue metadata for the reason of a [pause](PAUSED), as
/// [`Metadata::insert_text`](crate::backend::Metadata::insert_text) writes it.
pub const PAUSED_REASON: &str = "pausedreason";

/// The mark of a paused queue, from [`paused`] and [`AnyQueue::paused`](crate::AnyQueue::paused).
///
/// ```
/// use queue_runtime::QueueService;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("memory:").await?;
/// let orders = service.any_queue("orders")?;
/// orders.create().await?;
/// let paused = orders.pause(Some("the warehouse is closed")).await?;
/// assert_eq!(paused.reason.as_deref(), Some("the warehouse is closed"));
/// println!("orders: {paused}"); // orders: paused since 2026-11-26T05:05:15Z: the warehouse is closed
/// # assert!(paused.to_string().starts_with("paused since 20"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Paused {
    /// The time of the pause, by the clock of the machine that paused the queue. `None` if the metadata's value is not
    /// a time.
    pub since: Option<Timestamp>,
    /// The reason, if one was given.
    pub reason: Option<String>,
}

/// Returns the mark of a paused queue, from the queue's metadata. `None` if the queue is not paused.
///
/// ```
/// use queue_runtime::backend::Metadata;
/// use queue_runtime::settings::{PAUSED, paused};
///
/// let mut metadata = Metadata::new();
/// assert_eq!(paused(&metadata), None);
/// metadata.insert(PAUSED, "yes")?;
/// let mark = paused(&metadata).expect("any value pauses");
/// assert_eq!((mark.since, mark.reason), (None, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn paused(metadata: &Metadata) -> Option<Paused> {
    let since = metadata.find(PAUSED)?;
    Some(Paused {
        since: since.parse().ok(),
        reason: metadata
            .text(PAUSED_REASON)
            .filter(|reason| !reason.is_empty()),
    })
}

/// Writes a text such as "paused since 2026-11-26T05:05:15Z: the warehouse is closed".
impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("paused")?;
        if let Some(since) = &self.since {
            write!(f, " since {since}")?;
        }
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}

/// The queues that are paused for everybody, as their metadata was read last.
///
/// Unlike cached settings, marks are kept when the metadata cannot be read, so that an outage resumes nothing.
#[derive(Debug, Default)]
pub(crate) struct Marks(watch::Sender<BTreeMap<QueueName, Arc<Paused>>>);

impl Marks {
    /// Records what the metadata of a queue says.
    pub(super) fn learn(&self, queue: &QueueName, mark: Option<Paused>) {
        self.0.send_if_modified(|marks| match mark {
            Some(mark) if marks.get(queue).is_some_and(|known| **known == mark) => false,
            Some(mark) => marks.insert(queue.clone(), Arc::new(mark)).is_none(),
            None => marks.remove(queue).is_some(),
        });
    }

    /// Returns the mark of a queue, if it is known to be paused.
    pub(crate) fn of(&self, queue: &QueueName) -> Option<Arc<Paused>> {
        self.0.borrow().get(queue).cloned()
    }

    /// Waits until a queue is known to be paused, or not to be.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn becomes(&self, queue: &QueueName, is_paused: bool) {
        let mut marks = self.0.subscribe();
        let wanted = |marks: &BTreeMap<_, _>| marks.contains_key(queue) == is_paused;
        let reached = marks.wait_for(wanted).await;
        drop(reached.expect("the sender is borrowed here, so it is not dropped"));
    }
}

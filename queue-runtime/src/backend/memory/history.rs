//! What was put on the queues, whether or not it is still there, for tests.

use std::collections::VecDeque;

use queue_core::QueueName;
use queue_core::backend::NewMessage;

/// The most puts that a history keeps.
pub(crate) const MAX_HISTORY: usize = 100_000;

/// The puts that were carried out, oldest first. The operations of a failed `apply` are not listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    puts: VecDeque<Put>,
    /// The number of puts that the history no longer keeps.
    pub(crate) forgotten: u64,
}

/// A put that was carried out.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "testing"),
    expect(
        dead_code,
        reason = "tools for tests read it, and nothing is recorded without them"
    )
)]
pub(crate) struct Put {
    number: u64,
    pub(crate) queue: QueueName,
    pub(crate) message: NewMessage,
}

impl History {
    #[cfg(feature = "testing")]
    pub(crate) fn puts(&self) -> impl Iterator<Item = &Put> {
        self.puts.iter()
    }

    pub(super) fn push(&mut self, number: u64, queue: &QueueName, message: &NewMessage) {
        if self.puts.len() == MAX_HISTORY {
            self.puts.pop_front();
            self.forgotten += 1;
        }
        self.puts.push_back(Put {
            number,
            queue: queue.clone(),
            message: message.clone(),
        });
    }

    /// Removes a put that was undone, which is among the last puts.
    pub(super) fn remove(&mut self, number: u64) {
        if let Some(index) = self.puts.iter().rposition(|put| put.number == number) {
            self.puts.remove(index);
        }
    }
}

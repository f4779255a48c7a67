use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::NewMessage;
use queue_core::internal::LockExt as _;
use queue_core::notify::{Count, Notification, Pending};

/// Messages that were put in transactions of the application's, which are announced when these have ended.
#[derive(Debug, Default)]
pub(crate) struct Unannounced(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pending: Pending<Key>,
    /// Whether something was written in a transaction that nobody has waited for yet.
    is_open: bool,
    /// Whether a task waits for the end of the transactions.
    is_watched: bool,
}

/// A queue, and when the messages become visible.
type Key = (QueueName, Duration);

impl Unannounced {
    /// Adds the messages that a transaction puts, perhaps none. Returns whether the caller is to start the task that
    /// waits for its end and announces them.
    pub(crate) fn add(&self, messages: &[(QueueName, NewMessage)]) -> bool {
        let mut state = self.0.hold();
        for (queue, message) in messages {
            let notification = Notification::new("", queue)
                .with_messages(1, message.body.len() as u64)
                .with_visible_in(message.delay);
            state
                .pending
                .add((queue.clone(), message.delay), &notification);
        }
        state.is_open = true;
        !std::mem::replace(&mut state.is_watched, true)
    }

    /// Takes what was added so far. If that is nothing, the task ends, and the next transaction starts another one.
    pub(crate) fn take(&self) -> Option<BTreeMap<Key, Count>> {
        let mut state = self.0.hold();
        state.is_watched = std::mem::take(&mut state.is_open);
        state.is_watched.then(|| state.pending.take())
    }
}

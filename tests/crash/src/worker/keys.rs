//! Handlers that check that no other handler of their key runs in the listener.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_runtime::{Disposition, Received};

use super::{Desk, work};
use crate::ledger::Event;
use crate::messages::Named;

/// How many keys the messages have.
const KEYS: u64 = 100;

/// So long that the handlers of most messages in flight would run at the same time.
const WORK: Duration = Duration::from_millis(20);

/// The keys whose messages a listener has handled.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys(Arc<Mutex<HashMap<u64, Key>>>);

#[derive(Debug, Default)]
struct Key {
    running: usize,
    /// When the last message was inserted whose first receive was here, in microseconds.
    inserted: i64,
}

/// A handler that runs, until it has returned or was dropped.
struct Running {
    keys: Keys,
    key: u64,
}

/// Returns the key of a message.
pub(super) fn key<M: Named>(message: &M) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.name().hash(&mut hasher);
    hasher.finish() % KEYS
}

/// Does what other consumers do, for longer, and records what must not be.
pub(super) async fn on<M: Named>(desk: &Desk, keys: &Keys, received: &Received<M>) -> Disposition {
    let _running = keys.begin(desk, received);
    tokio::time::sleep(WORK).await;
    work::on(desk, received).await
}

impl Keys {
    fn begin<M: Named>(&self, desk: &Desk, received: &Received<M>) -> Running {
        let (key, lease) = (key(&**received), work::lease(received));
        let (overlaps, is_out_of_turn) = {
            let mut keys = self.lock();
            let known = keys.entry(key).or_default();
            known.running += 1;
            let is_late = lease.inserted < known.inserted;
            // In the file, messages are received for the first time in the order in which they were inserted. A message
            // whose payload is beside it gets its turn later.
            let is_judged = lease.dequeued == 1 && !received.is_large();
            if is_judged {
                known.inserted = known.inserted.max(lease.inserted);
            }
            (known.running > 1, is_judged && is_late)
        };
        if overlaps {
            desk.ledger
                .write(Event::Overlapping, received.name(), lease);
        }
        if is_out_of_turn {
            desk.ledger.write(Event::OutOfTurn, received.name(), lease);
        }
        Running {
            keys: self.clone(),
            key,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut keys = self.keys.lock();
        let known = keys.get_mut(&self.key).expect("it has begun");
        known.running -= 1;
    }
}

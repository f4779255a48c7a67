//! One message of a key at a time.
//!
//! A message takes its [`KeyTurn`] when received, so that turns come in the order of receives; a message whose payload
//! is elsewhere or compressed takes its turn once the payload is read. A turn ends when it is dropped: once the handler
//! has ended, or the message is put back.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex};

use queue_core::Message;
use queue_core::internal::LockExt as _;
use queue_core::wire::Body;
use tokio::sync::Semaphore;

use crate::kernel::panic::{CaughtPanic, catch};

/// Computes the hash of a message's key. `None` if the message does not decode.
pub(crate) type KeyOf = Arc<dyn Fn(&Body) -> Option<u64> + Send + Sync>;

/// Keys are compared by their hashes: two keys of one hash only wait for each other.
pub(crate) fn key_of<M: Message, K: Hash>(key: impl Fn(&M) -> K + Send + Sync + 'static) -> KeyOf {
    Arc::new(move |body| {
        let message = body.decode::<M>().ok()?;
        let mut hasher = DefaultHasher::new();
        key(&message).hash(&mut hasher);
        Some(hasher.finish())
    })
}

/// The messages of a listener that have a key, by that key.
#[derive(Default)]
pub(crate) struct KeyTurns {
    /// The first message of each key has its turn.
    by_key: Mutex<HashMap<u64, VecDeque<Come>>>,
}

/// The messages of one type, whose keys are computed.
pub(crate) struct Keyed {
    pub(crate) key: KeyOf,
    pub(crate) turns: Arc<KeyTurns>,
}

/// A turn's semaphore, which has a permit once the turn has come.
type Come = Arc<Semaphore>;

/// The place of one message among those of its key.
pub(crate) struct KeyTurn {
    turns: Arc<KeyTurns>,
    key: u64,
    /// The number of messages of the key before this message.
    before: usize,
    come: Come,
}

impl Keyed {
    /// Takes a turn for a message, unless it does not decode.
    ///
    /// # Errors
    /// The panic of the application's function.
    pub(crate) fn take(&self, body: &Body) -> Result<Option<KeyTurn>, CaughtPanic> {
        let key = catch(|| (self.key)(body))?;
        Ok(key.map(|key| self.turns.take(key)))
    }
}

impl KeyTurns {
    fn take(self: &Arc<Self>, key: u64) -> KeyTurn {
        let come = Come::new(Semaphore::new(0));
        let mut by_key = self.by_key.hold();
        let queue = by_key.entry(key).or_default();
        queue.push_back(Arc::clone(&come));
        if queue.len() == 1 {
            come.add_permits(1);
        }
        KeyTurn {
            turns: Arc::clone(self),
            key,
            before: queue.len() - 1,
            come,
        }
    }
}

impl KeyTurn {
    /// The number of messages of the key before this turn when it was taken.
    pub(crate) fn before(&self) -> usize {
        self.before
    }

    /// Returns what completes once the turn has come.
    pub(crate) fn comes(&self) -> impl Future<Output = ()> + Send + use<> {
        let come = Arc::clone(&self.come);
        async move { drop(come.acquire().await) }
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        let mut by_key = self.turns.by_key.hold();
        let queue = by_key.get_mut(&self.key).expect("it is in the queue");
        let at = queue.iter().position(|one| Arc::ptr_eq(one, &self.come));
        let at = at.expect("it is in the queue");
        queue.remove(at);
        match queue.front() {
            Some(next) if at == 0 => next.add_permits(1),
            Some(_) => {}
            None => drop(by_key.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn has_come(turn: &KeyTurn) -> bool {
        turn.comes().now_or_never().is_some()
    }

    #[test]
    fn the_turns_of_a_key_come_in_the_order_in_which_they_were_taken() {
        let turns = Arc::new(KeyTurns::default());
        let [first, second, third] = [(); 3].map(|()| turns.take(1));
        let other = turns.take(2);
        assert!(has_come(&other), "another key waits for nobody");
        assert!(!has_come(&second) && !has_come(&third));
        assert!(has_come(&first));
        drop(first);
        assert!(!has_come(&third));
        assert!(has_come(&second));
        drop((second, third, other));
        assert!(turns.by_key.hold().is_empty(), "nothing is left behind");
    }

    #[test]
    fn one_that_gives_up_is_passed_over() {
        let turns = Arc::new(KeyTurns::default());
        let [first, second, third] = [(); 3].map(|()| turns.take(1));
        drop(second);
        assert!(!has_come(&third), "the first is not done");
        drop(first);
        assert!(has_come(&third));
    }
}

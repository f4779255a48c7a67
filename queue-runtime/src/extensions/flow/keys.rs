//! One message of a key at a time.
//!
//! A message takes its [`KeyTurn`] when received, so that turns come in the order of receives; a message whose payload
//! is elsewhere or compressed takes its turn once the payload is read. A turn ends when it is dropped: once the handler
//! has ended, or the message is put back.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex, OnceLock};

use queue_core::internal::LockExt as _;
use queue_core::{Failure, Message};
use tokio::sync::Semaphore;

use crate::kernel::listener::{Arriving, Door, ListenerBuilder, Route, SharedState, Wait};
use crate::kernel::panic::catch;

/// The name of the door: the last key that is set counts.
const KEYS: &str = "keys";

/// Has messages of one key handled one at a time.
struct Keys<F> {
    /// Computes the hash of a message's key. `None` if the message does not decode. Keys are compared by their hashes: two
    /// keys of one hash only wait for each other.
    key: F,
    turns: OnceLock<Arc<KeyTurns>>,
}

/// The messages of a listener that have a key, by that key.
#[derive(Default)]
struct KeyTurns {
    /// The first message of each key has its turn.
    by_key: Mutex<HashMap<u64, VecDeque<Come>>>,
}

/// Returns the door of messages that are handled one at a time by this key.
fn by<M: Message, K: Hash>(key: impl Fn(&M) -> K + Send + Sync + 'static) -> impl Door {
    let key = move |message: &Arriving<'_>| {
        let message = message.decode::<M>()?;
        let mut hasher = DefaultHasher::new();
        key(&message).hash(&mut hasher);
        Some(hasher.finish())
    };
    let turns = OnceLock::new();
    Keys { key, turns }
}

impl<F: Fn(&Arriving<'_>) -> Option<u64> + Send + Sync + 'static> Door for Keys<F> {
    fn arrive(&self, message: &Arriving<'_>) -> Result<Option<Wait>, Failure> {
        let key = catch(|| (self.key)(message)).map_err(|panic| {
            format!("the function that returns the key of a message panicked: {panic}")
        })?;
        let turns = self.turns.get().expect("the listener has started");
        Ok(key.map(|key| {
            let turn = turns.take(key);
            Wait::until(turn.comes()).in_line(turn.before, turn)
        }))
    }

    fn needs_payload(&self) -> bool {
        true
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn start(&self, shared: &SharedState) {
        // An error says that it has the turns of a listener already.
        let _ = self.turns.set(shared.get());
    }
}

impl<M> ListenerBuilder<M> {
    /// Has up to half of the room in flight (16 of 32 messages by default) handled one at a time for each key, such as an
    /// account, in the order of their receives, within this listener, until one is retried or put back. Messages of
    /// different keys do not wait for each other. A [group](crate::send::Submit::group) has no such limits, where the
    /// storage keeps groups.
    ///
    /// Messages that wait for their turn are leased, and those of one key take up to half of the room in flight: those
    /// beyond, and messages that have waited for the handler timeout, are put back for up to 30 s without counting the
    /// attempt; bare bodies wait leased. The order of a key's messages holds as long as no more of them than fill half
    /// of the room in flight are received at a time. A message whose payload is stored elsewhere, or compressed, gets
    /// its turn when the payload has been read, and one on its last chance when that is recorded. The key function is
    /// called when a message is received, by one [task](Self::tasks) at a time, and must be quick; its panic is a
    /// failed attempt.
    ///
    /// A message whose lease was lost while its handler goes on may be handled twice at a time. The order of a key's
    /// messages holds within one listener: for several processes, run one listener, or let the database decide, by a
    /// transaction that checks the version of what it changes.
    ///
    /// ```
    /// use queue_runtime::{Message, Received, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize, Message)]
    /// struct Deposit {
    ///     account: String,
    ///     amount: i64,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn enter(deposit: Received<Deposit>) { println!("{} to {}", deposit.amount, deposit.account) }
    /// # let service = testing::service().await;
    /// # service.submit(Deposit { account: "ada".to_owned(), amount: 7 }).await?;
    /// let listener = service
    ///     .listener(enter)
    ///     .one_at_a_time_by(|deposit| deposit.account.clone())
    ///     .start()?;
    /// # assert_eq!(testing::drain([&listener]).await?.completed(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn one_at_a_time_by<K: Hash>(
        mut self,
        key: impl Fn(&M) -> K + Send + Sync + 'static,
    ) -> Self
    where
        M: Message,
    {
        self.doors.set(KEYS, by(key));
        self
    }
}

impl<M: Message> Route<M> {
    /// Has messages of one key handled one at a time, as [`ListenerBuilder::one_at_a_time_by`] does. Equal keys of a
    /// router's types are one key: to keep them apart, make the type a part of the key, as in
    /// `|order| ("order", order.number)`.
    pub fn one_at_a_time_by<K: Hash>(
        mut self,
        key: impl Fn(&M) -> K + Send + Sync + 'static,
    ) -> Self {
        self.doors.set(KEYS, by(key));
        self
    }
}
/// A turn's semaphore, which has a permit once the turn has come.
type Come = Arc<Semaphore>;

/// The place of one message among those of its key.
struct KeyTurn {
    turns: Arc<KeyTurns>,
    key: u64,
    /// The number of messages of the key before this message.
    before: usize,
    come: Come,
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
    /// Returns what completes once the turn has come.
    fn comes(&self) -> impl Future<Output = ()> + Send + use<> {
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

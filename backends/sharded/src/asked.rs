//! The requests of a receive to shards, and what becomes of their answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use queue_core::backend::ReceivedMessage;
use queue_core::clock::{BoxFuture, Clock};
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result, RetryAdvice};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::errors::{of_queue, shard_is_missing};
use crate::names::{message_id, message_receipt};
use crate::round::{Known, Round};

/// The answer of a shard.
pub(crate) struct Answer {
    pub(crate) shard: u32,
    pub(crate) asked_at: Duration,
    pub(crate) visibility: Duration,
    pub(crate) received: Result<Vec<ReceivedMessage>>,
}

/// The requests of one receive. Those that are not answered when it ends go on by themselves.
pub(crate) struct Asked {
    pub(crate) known: Arc<Known>,
    pub(crate) learning: Learning,
    pub(crate) requests: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// Their shards, in any order.
    shards: Vec<u32>,
    /// The shards that have answered.
    answered: BTreeSet<u32>,
    /// Changes when a request of an earlier receive is answered.
    pub(crate) news: watch::Receiver<()>,
}

/// What it takes to learn from an answer.
#[derive(Clone)]
pub(crate) struct Learning {
    pub(crate) queue: QueueName,
    /// The numbers of shards: of those that are in use, and of all.
    pub(crate) active: u32,
    pub(crate) all: u32,
    pub(crate) idle_cap: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Asked {
    pub(crate) fn new(known: &Arc<Known>, learning: Learning) -> Self {
        Self {
            known: Arc::clone(known),
            learning,
            requests: FuturesUnordered::new(),
            shards: Vec::new(),
            answered: BTreeSet::new(),
            news: known.answered.subscribe(),
        }
    }

    pub(crate) fn push(&mut self, shard: u32, request: BoxFuture<'static, Answer>) {
        self.requests.push(request);
        self.shards.push(shard);
    }

    /// The shards that are not to be asked now: those that have not answered, and perhaps those that have.
    pub(crate) fn not_to_ask(&self, only_missing: bool) -> Vec<u32> {
        let round = self.known.round.hold();
        let answered = self.answered.iter().filter(|_| only_missing);
        let unanswered = self.shards.iter().chain(&round.slow);
        unanswered.chain(answered).copied().collect()
    }

    /// Learns from an answer, and returns its messages.
    ///
    /// # Errors
    /// If the queue does not exist, whatever its other shards say.
    pub(crate) fn take(&mut self, answer: Answer) -> Result<Vec<ReceivedMessage>> {
        remove(&mut self.shards, answer.shard);
        self.answered.insert(answer.shard);
        let mut round = self.known.round.hold();
        self.learning
            .take(&mut round, answer.shard, answer.received)
    }

    /// The shards that have not answered since this receive began, except for those that are left out as failing.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let now = self.learning.clock.monotonic();
        let round = self.known.round.hold();
        let missing =
            |shard: &u32| !self.answered.contains(shard) && !round.is_failing(*shard, now);
        (0..self.learning.all).filter(missing).collect()
    }

    /// Takes the shards that have not answered for failing.
    pub(crate) fn give_up(&self) {
        let missing = self.missing();
        let now = self.learning.clock.monotonic();
        let mut round = self.known.round.hold();
        for shard in missing {
            let error = Error::new(ErrorKind::Timeout, Operation::Receive);
            let error = error.with_detail("it does not answer, and the others have no message");
            let error = error.of_shard(&self.learning.queue, shard);
            round.fails(shard, now, None, Some(error));
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            let (queue, shards) = (&self.learning.queue, &self.shards);
            tracing::warn!(%queue, ?shards, "requests to shards are dropped outside of a Tokio runtime; what they have received is leased for a while");
            return;
        };
        let mut requests = std::mem::take(&mut self.requests);
        let (known, learning) = (Arc::clone(&self.known), self.learning.clone());
        known.round.hold().slow.append(&mut self.shards);
        runtime.spawn(async move {
            while let Some(answer) = requests.next().await {
                learning.keep(&known, answer);
            }
        });
    }
}

impl Learning {
    fn take(
        &self,
        round: &mut Round,
        shard: u32,
        received: Result<Vec<ReceivedMessage>>,
    ) -> Result<Vec<ReceivedMessage>> {
        let (queue, now) = (&self.queue, self.clock.monotonic());
        let error = match received {
            Ok(messages) => {
                round.answers(shard, messages.is_empty(), now, self.idle_cap);
                let messages = messages.into_iter().map(|message| of_shard(shard, message));
                return Ok(messages.collect());
            }
            Err(error) => error,
        };
        let least = match error.retry() {
            RetryAdvice::Throttled(after) => after,
            _ => None,
        };
        let untold = match error {
            error if !error.is_queue_gone() => Some(error.of_shard(queue, shard)),
            error if shard == 0 => return Err(of_queue(error, queue)),
            _ if shard < self.active => Some(shard_is_missing(queue, shard, Operation::Receive)),
            // Somebody has deleted a shard that was no longer in use.
            _ => None,
        };
        round.fails(shard, now, least, untold);
        Ok(Vec::new())
    }

    /// Learns from an answer that no receive has waited for, and keeps its messages for the next one.
    fn keep(&self, known: &Known, answer: Answer) {
        let Answer {
            shard,
            asked_at,
            visibility,
            received,
        } = answer;
        let mut round = known.round.hold();
        remove(&mut round.slow, shard);
        match self.take(&mut round, shard, received) {
            Ok(messages) => round.keep(messages, asked_at, visibility),
            Err(error) => {
                tracing::debug!(%error, "a queue was deleted before one of its shards had answered");
            }
        }
        drop(round);
        known.answered.send_replace(());
    }
}

fn of_shard(shard: u32, mut message: ReceivedMessage) -> ReceivedMessage {
    message.id = message_id(shard, &message.id);
    message.receipt = message_receipt(shard, &message.receipt);
    message
}

/// Removes one of the equal values.
fn remove(shards: &mut Vec<u32>, shard: u32) {
    if let Some(at) = shards.iter().position(|one| *one == shard) {
        shards.swap_remove(at);
    }
}

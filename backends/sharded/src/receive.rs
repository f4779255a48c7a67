//! Receiving from all shards of a queue.
//!
//! A receive asks one shard that may have messages, and if there is room left the others at the same time. A shard that had
//! nothing is left out for a while, as long as others have messages; so a queue is empty only if all were asked and have
//! answered. Shards that have answered are asked again while a slow shard is waited for. A shard that fails, or does
//! not answer for long, is left out until its pause is over; what it answers in the end is returned by the next
//! receive.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use queue_core::backend::{Backend as _, ReceivedMessage};
use queue_core::clock::{BoxFuture, Clock};
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result, RetryAdvice};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::placement::{message_id, message_receipt, of_queue, shard_is_missing};
use crate::round::{Known, Plan, Round};

/// How long an answer is waited for before other shards are asked.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long a shard that does not answer is waited for before the others, which had nothing, are asked again; the wait
/// doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// How long an answer is waited for at least, if the other shards have nothing.
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// What a receive is about.
struct Receive<'a> {
    queue: &'a QueueName,
    descriptor: &'a Descriptor,
    max: usize,
    visibility: Duration,
}

/// Until when answers are waited for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// Until all answers are there, for this long at most.
    ForAll(Duration),
    /// Until there is a message, or all answers.
    ForOne(Duration),
}

impl ShardedBackend {
    pub(crate) async fn receive_from_shards(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.capabilities
            .limits(Operation::Receive, queue)
            .check_receive(max, visibility)?;
        let descriptor = &*self.topology.for_receives().await;
        let known = self.rounds.of(queue);
        let late = |known: &Known| {
            let now = self.clock.monotonic();
            known.round.hold().take_late(now, max)
        };
        let found = late(&known);
        if !found.is_empty() {
            return Ok(found);
        }
        let learning = Learning {
            queue: queue.clone(),
            active: descriptor.active,
            all: descriptor.all(),
            idle_cap: self.capabilities.idle_cap,
            clock: Arc::clone(&self.clock),
        };
        let mut asked = Asked::new(&known, learning);
        let receive = Receive {
            queue,
            descriptor,
            max,
            visibility,
        };
        let began = self.clock.monotonic();
        // A message found after half the visibility timeout has less than half of its lease left, as that is counted.
        let last_asked_at = began.saturating_add(visibility / 2);
        let least_wait = self.patience.unwrap_or(LEAST_WAIT);
        let give_up_at = last_asked_at.max(began.saturating_add(least_wait));
        let mut wait = FIRST_WAIT;
        let mut found = Vec::new();
        loop {
            let without = asked.not_to_ask(self.clock.monotonic() > last_asked_at);
            self.ask_round(&receive, &mut asked, &without, &mut found)
                .await?;
            if !found.is_empty() || asked.missing().is_empty() {
                break;
            }
            let left = give_up_at.saturating_sub(self.clock.monotonic());
            self.wait(&mut asked, Wait::ForOne(wait.min(left)), &mut found)
                .await?;
            if found.is_empty() {
                found = late(&known);
            }
            if !found.is_empty() || asked.missing().is_empty() {
                break;
            }
            if self.clock.monotonic() >= give_up_at {
                asked.give_up();
                break;
            }
            wait = wait.saturating_mul(2);
        }
        if found.is_empty()
            && let Some(error) = known.round.hold().tell()
        {
            return Err(error);
        }
        Ok(found)
    }

    /// Asks the shards that may have messages, until there are enough, and the others if there is none.
    async fn ask_round(
        &self,
        receive: &Receive<'_>,
        asked: &mut Asked,
        without: &[u32],
        found: &mut Vec<ReceivedMessage>,
    ) -> Result<()> {
        let now = self.clock.monotonic();
        let all = receive.descriptor.all();
        let Plan { warm, cold } = asked.known.round.hold().plan(now, all, without);
        let patience = Wait::ForAll(self.patience.unwrap_or(PATIENCE));
        let room = |found: &[ReceivedMessage]| receive.max.saturating_sub(found.len());
        // The first shard is asked by itself, because it may have as many messages as there is room for.
        let (mut rest, mut group) = (&*warm, 1);
        while !rest.is_empty() && room(found) > 0 {
            let (some, more) = rest.split_at(group.min(rest.len()));
            self.ask_all(receive, asked, some, room(found))?;
            self.wait(asked, patience, found).await?;
            (rest, group) = (more, room(found));
        }
        for some in cold.chunks(receive.max) {
            if found.is_empty() {
                self.ask_all(receive, asked, some, receive.max)?;
                self.wait(asked, patience, found).await?;
            }
        }
        Ok(())
    }

    /// Asks shards at the same time for `max` messages in all.
    fn ask_all(
        &self,
        receive: &Receive<'_>,
        asked: &mut Asked,
        shards: &[u32],
        max: usize,
    ) -> Result<()> {
        let all = shards.len();
        for (shard, position) in shards.iter().zip(0..) {
            let share = max / all + usize::from(position < max % all);
            asked.push(*shard, self.ask(receive, *shard, share)?);
        }
        Ok(())
    }

    fn ask(
        &self,
        receive: &Receive<'_>,
        shard: u32,
        max: usize,
    ) -> Result<BoxFuture<'static, Answer>> {
        let (queue, visibility) = (receive.queue, receive.visibility);
        let shard_of_queue = self.shard(receive.descriptor, queue, shard, Operation::Receive)?;
        let Shard { account, name } = shard_of_queue;
        let (account, clock) = (Arc::clone(account), Arc::clone(&self.clock));
        Ok(Box::pin(async move {
            let asked_at = clock.monotonic();
            let received = account.receive(&name, max, visibility).await;
            Answer {
                shard,
                asked_at,
                visibility,
                received,
            }
        }))
    }

    /// Takes the shards' answers to `asked`.
    ///
    /// # Errors
    /// If the queue does not exist, whatever its other shards say.
    async fn wait(
        &self,
        asked: &mut Asked,
        wait: Wait,
        found: &mut Vec<ReceivedMessage>,
    ) -> Result<()> {
        let (Wait::ForAll(patience) | Wait::ForOne(patience)) = wait;
        let mut over = self.clock.sleep(patience);
        let for_one = matches!(wait, Wait::ForOne(_));
        while for_one || !asked.requests.is_empty() {
            let Asked { requests, news, .. } = asked;
            let answer = tokio::select! {
                biased;
                Some(answer) = requests.next() => answer,
                Ok(()) = news.changed(), if for_one => break,
                () = &mut over => break,
            };
            found.append(&mut asked.take(answer)?);
            if for_one && (!found.is_empty() || asked.missing().is_empty()) {
                break;
            }
        }
        Ok(())
    }
}

/// The answer of a shard.
pub(crate) struct Answer {
    pub(crate) shard: u32,
    pub(crate) asked_at: Duration,
    pub(crate) visibility: Duration,
    pub(crate) received: Result<Vec<ReceivedMessage>>,
}

/// The requests of one receive. Requests that are not answered when the receive ends go on by themselves.
pub(crate) struct Asked {
    pub(crate) known: Arc<Known>,
    pub(crate) learning: Learning,
    pub(crate) requests: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// The shards of `requests`, in any order.
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
            let error =
                error.with_detail("it does not answer, and the other shards have no message");
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
            tracing::warn!(%queue, ?shards, "requests to shards are dropped outside of a Tokio runtime; the messages that they have received stay leased for a while");
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

/// Removes one occurrence of `shard`.
fn remove(shards: &mut Vec<u32>, shard: u32) {
    if let Some(at) = shards.iter().position(|one| *one == shard) {
        shards.swap_remove(at);
    }
}

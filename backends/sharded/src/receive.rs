//! Receiving from all shards of a queue.
//!
//! A receive asks one shard that may have messages, and if there is room left the others at the same time. A shard that had
//! nothing is left out for a while, as long as others have messages; so a queue is empty only if all were asked. One that
//! fails is left out until its pause is over. One that is slow is not waited for: what it answers is returned by the next
//! receive.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use queue_core::backend::{Backend as _, ReceivedMessage};
use queue_core::clock::BoxFuture;
use queue_core::internal::{LockExt as _, later};

use queue_core::{Error, Operation, QueueName, Result, RetryAdvice};

use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::errors::{of_queue, shard_is_missing};
use crate::names::{message_id, message_receipt};
use crate::pause::Pause;

/// How long an answer is waited for before others are asked.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long an empty queue waits for shards that have not answered.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// The pauses of a shard that has no messages.
const FIRST_EMPTY: Duration = Duration::from_millis(50);
const LONGEST_EMPTY: Duration = Duration::from_secs(2);

/// The pauses of a shard that fails.
const FIRST_FAILING: Duration = Duration::from_secs(1);
const LONGEST_FAILING: Duration = Duration::from_secs(30);

/// What is known of the shards of each queue.
#[derive(Default)]
pub(crate) struct Rounds(Mutex<HashMap<QueueName, Arc<Mutex<Round>>>>);

/// What is known of the shards of a queue.
#[derive(Default)]
struct Round {
    shards: Vec<State>,
    /// The shard that is asked first.
    next: u32,
    /// Requests that nobody waits for.
    slow: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// Messages that a slow request has brought.
    late: VecDeque<Late>,
}

/// What is known of a shard.
#[derive(Debug, Default)]
struct State {
    /// While others have messages.
    empty: Pause,
    failing: Pause,
    /// The number of requests that nobody waits for.
    slow: u32,
}

/// The answer of a shard.
struct Answer {
    shard: u32,
    asked_at: Duration,
    visibility: Duration,
    received: Result<Vec<ReceivedMessage>>,
}

/// A message that is leased to this program since some time.
struct Late {
    message: ReceivedMessage,
    asked_at: Duration,
    visibility: Duration,
}

/// The requests of one receive. Those that are not answered when it ends are left to the next.
struct Asked<'a> {
    round: &'a Mutex<Round>,
    requests: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// The shards of the requests, in any order.
    shards: Vec<u32>,
    since: Duration,
}

impl Rounds {
    fn of(&self, queue: &QueueName) -> Arc<Mutex<Round>> {
        let mut rounds = self.0.hold();
        match rounds.get(queue) {
            Some(round) => Arc::clone(round),
            None => Arc::clone(rounds.entry(queue.clone()).or_default()),
        }
    }

    /// Records that a message was put on a shard.
    pub(crate) fn has_messages(&self, queue: &QueueName, shard: u32) {
        let round = self.0.hold().get(queue).map(Arc::clone);
        if let Some(round) = round
            && let Some(state) = round.hold().shards.get_mut(shard as usize)
        {
            state.empty = Pause::default();
        }
    }

    /// Forgets a queue that was deleted.
    pub(crate) fn forget(&self, queue: &QueueName) {
        self.0.hold().remove(queue);
    }
}

impl ShardedBackend {
    pub(crate) async fn receive_from_shards(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.capabilities
            .limits(Operation::Receive, queue)
            .check_receive(max, visibility)?;
        let descriptor = self.topology.for_receives().await;
        let round = self.rounds.of(queue);
        let now = self.clock.monotonic();
        let late = round.hold().take_late(now, max as usize);
        if !late.is_empty() {
            return Ok(late);
        }
        let mut asked = Asked::new(&round, now);
        let mut received = Received::default();
        let Plan { warm, cold } = round.hold().plan(now, descriptor.all());
        // The first by itself, because it may have as many as there is room for.
        let (mut rest, mut group) = (&*warm, 1);
        while !rest.is_empty() && received.messages.len() < max as usize {
            let (some, more) = rest.split_at(group.min(rest.len()));
            let room = max - received.messages.len() as u32;
            self.ask_all(queue, &descriptor, &mut asked, some, (room, visibility))?;
            self.wait(queue, &descriptor, &mut asked, PATIENCE, &mut received)
                .await?;
            (rest, group) = (
                more,
                max as usize - received.messages.len().min(max as usize),
            );
        }
        for some in cold.chunks(max as usize) {
            if received.messages.is_empty() {
                self.ask_all(queue, &descriptor, &mut asked, some, (max, visibility))?;
                self.wait(queue, &descriptor, &mut asked, PATIENCE, &mut received)
                    .await?;
            }
        }
        if !received.messages.is_empty() {
            return Ok(received.messages);
        }
        self.wait(queue, &descriptor, &mut asked, LAST_PATIENCE, &mut received)
            .await?;
        if received.messages.is_empty() {
            let now = self.clock.monotonic();
            received.messages = round.hold().take_late(now, max as usize);
        }
        match received.failed {
            Some(error) if received.messages.is_empty() => Err(error),
            _ => Ok(received.messages),
        }
    }

    /// Asks shards at the same time for `max` messages in all.
    fn ask_all(
        &self,
        queue: &QueueName,
        descriptor: &Descriptor,
        asked: &mut Asked<'_>,
        shards: &[u32],
        (max, visibility): (u32, Duration),
    ) -> Result<()> {
        let all = shards.len() as u32;
        for (shard, position) in shards.iter().zip(0..) {
            let share = max / all + u32::from(position < max % all);
            let request = self.ask(descriptor, queue, *shard, share, visibility)?;
            asked.requests.push(request);
            asked.shards.push(*shard);
        }
        Ok(())
    }

    fn ask(
        &self,
        descriptor: &Descriptor,
        queue: &QueueName,
        shard: u32,
        max: u32,
        visibility: Duration,
    ) -> Result<BoxFuture<'static, Answer>> {
        let Shard { account, name } = self.shard(descriptor, queue, shard, Operation::Receive)?;
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

    /// Takes the answers to these requests, until all are there or time is over.
    ///
    /// # Errors
    /// If the queue does not exist, whatever its other shards say.
    async fn wait(
        &self,
        queue: &QueueName,
        descriptor: &Descriptor,
        asked: &mut Asked<'_>,
        patience: Duration,
        found: &mut Received,
    ) -> Result<()> {
        let mut over = self.clock.sleep(patience);
        while !asked.requests.is_empty() {
            let answer = match select(asked.requests.next(), &mut over).await {
                Either::Left((Some(answer), _)) => answer,
                Either::Left((None, _)) | Either::Right(_) => break,
            };
            let (now, idle_cap) = (self.clock.monotonic(), self.capabilities.idle_cap);
            let is_late = asked.answered(&answer);
            let mut round = asked.round.hold();
            round.learn(&answer, is_late, now, idle_cap);
            let shard = answer.shard;
            match answer.received {
                Ok(messages) => {
                    let messages = messages.into_iter().map(|message| of_shard(shard, message));
                    if is_late {
                        round.late.extend(messages.map(|message| Late {
                            message,
                            asked_at: answer.asked_at,
                            visibility: answer.visibility,
                        }));
                    } else {
                        found.messages.extend(messages);
                    }
                }
                Err(error) if !error.is_queue_gone() => {
                    found.failed = Some(error.of_shard(queue, shard));
                }
                Err(error) if shard == 0 => return Err(of_queue(error, queue)),
                Err(_) if shard < descriptor.active => {
                    found.failed = Some(shard_is_missing(queue, shard, Operation::Receive));
                }
                // Somebody has deleted a shard that was no longer in use.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// What the shards have answered.
#[derive(Default)]
struct Received {
    messages: Vec<ReceivedMessage>,
    failed: Option<Error>,
}

/// Which shards to ask, in this order.
struct Plan {
    warm: Vec<u32>,
    /// If the others have nothing.
    cold: Vec<u32>,
}

impl Round {
    fn plan(&mut self, now: Duration, all: u32) -> Plan {
        let all = all.max(1);
        self.shards.resize_with(all as usize, State::default);
        let start = self.next % all;
        let turns = (0..all).map(|turn| (start + turn) % all);
        let state = |shard: &u32| &self.shards[*shard as usize];
        let asked =
            turns.filter(|shard| state(shard).failing.is_over(now) && state(shard).slow == 0);
        let (warm, cold): (Vec<u32>, _) = asked.partition(|shard| state(shard).empty.is_over(now));
        self.next = warm.first().map_or(start, |first| first + 1);
        Plan { warm, cold }
    }

    fn learn(&mut self, answer: &Answer, was_slow: bool, now: Duration, idle_cap: Duration) {
        let Some(state) = self.shards.get_mut(answer.shard as usize) else {
            return;
        };
        if was_slow {
            state.slow = state.slow.saturating_sub(1);
        }
        match &answer.received {
            Ok(messages) => {
                state.failing = Pause::default();
                if messages.is_empty() {
                    let longest = LONGEST_EMPTY.min(idle_cap);
                    state
                        .empty
                        .again(now, FIRST_EMPTY.min(longest), longest, None);
                } else {
                    state.empty = Pause::default();
                }
            }
            Err(error) => {
                let least = match error.retry() {
                    RetryAdvice::Throttled(after) => after,
                    _ => None,
                };
                state
                    .failing
                    .again(now, FIRST_FAILING, LONGEST_FAILING, least);
            }
        }
    }

    /// Takes up to `max` messages that a slow request has brought, as they are leased now. One whose lease is almost over
    /// is left to it.
    fn take_late(&mut self, now: Duration, max: usize) -> Vec<ReceivedMessage> {
        let mut messages = Vec::new();
        while messages.len() < max
            && let Some(Late {
                mut message,
                asked_at,
                visibility,
            }) = self.late.pop_front()
        {
            let ago = now.saturating_sub(asked_at);
            let left = visibility.saturating_sub(ago);
            if left < visibility / 4 {
                tracing::warn!(id = %message.id, "a shard has answered so late that a message's lease is almost over; it is received again");
                continue;
            }
            message.received_at = later(message.received_at, ago);
            message.leased_for = Some(left);
            messages.push(message);
        }
        messages
    }
}

fn of_shard(shard: u32, mut message: ReceivedMessage) -> ReceivedMessage {
    message.id = message_id(shard, &message.id);
    message.receipt = message_receipt(shard, &message.receipt);
    message
}

impl<'a> Asked<'a> {
    /// Takes over the requests that nobody waits for.
    fn new(round: &'a Mutex<Round>, since: Duration) -> Self {
        let requests = std::mem::take(&mut round.hold().slow);
        Self {
            round,
            requests,
            shards: Vec::new(),
            since,
        }
    }

    /// Records that a request was answered. Returns whether it is that of an earlier receive.
    fn answered(&mut self, answer: &Answer) -> bool {
        let own = self.shards.iter().position(|shard| *shard == answer.shard);
        let is_own = answer.asked_at >= self.since && own.is_some();
        if let Some(own) = own.filter(|_| is_own) {
            self.shards.swap_remove(own);
        }
        !is_own
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut round = self.round.hold();
        for request in std::mem::take(&mut self.requests) {
            round.slow.push(request);
        }
        for shard in &self.shards {
            if let Some(state) = round.shards.get_mut(*shard as usize) {
                state.slow += 1;
            }
        }
    }
}

impl fmt::Debug for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues: Vec<QueueName> = self.0.hold().keys().cloned().collect();
        f.debug_tuple("Rounds").field(&queues).finish()
    }
}

//! Receiving from all shards of a queue.
//!
//! A receive asks one shard that may have messages, and if there is room left the others at the same time. A shard that had
//! nothing is left out for a while, as long as others have messages; so a queue is empty only if all were asked and have
//! answered. Those that have are asked again while a slow one is waited for. One that fails, or does not answer for long, is
//! left out until its pause is over; what it answers in the end is returned by the next receive.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::StreamExt as _;
use queue_core::backend::{Backend as _, ReceivedMessage};
use queue_core::clock::BoxFuture;
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result, RetryAdvice};

use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::errors::{of_queue, shard_is_missing};
use crate::names::{message_id, message_receipt};
use crate::round::{Answer, Late, Plan, Requests, Round};

/// How long an answer is waited for before others are asked.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long a shard that does not answer is waited for before the others, which had nothing, are asked again. It doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// How long an answer is waited for at least, if the others have nothing.
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// The requests of one receive. Those that are not answered when it ends are left to the next.
struct Asked<'a> {
    round: &'a Mutex<Round>,
    requests: Requests,
    /// The shards of those that earlier receives have left. They are not asked again meanwhile.
    older: Vec<u32>,
    /// The number of shards.
    all: u32,
    /// The shards that have answered its own requests.
    answered: BTreeSet<u32>,
}

/// What a receive is about.
struct Receive<'a> {
    queue: &'a QueueName,
    descriptor: &'a Descriptor,
    max: u32,
    visibility: Duration,
}

/// Until when answers are waited for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// Until all are there, for this long at most.
    ForAll(Duration),
    /// Until there is a message, or all answers.
    ForOne(Duration),
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
        let descriptor = &*self.topology.for_receives().await;
        let round = self.rounds.of(queue);
        let began = self.clock.monotonic();
        let late = round.hold().take_late(began, max as usize);
        if !late.is_empty() {
            return Ok(late);
        }
        let receive = Receive {
            queue,
            descriptor,
            max,
            visibility,
        };
        let mut asked = Asked::new(&round, descriptor.all());
        let mut found = Vec::new();
        // A message that is found after that has less than half of its lease left, as it is counted.
        let last_asked_at = began.saturating_add(visibility / 2);
        let give_up_at = last_asked_at.max(began.saturating_add(LEAST_WAIT));
        let mut wait = FIRST_WAIT;
        loop {
            let now = self.clock.monotonic();
            let without = asked.not_to_ask(now > last_asked_at);
            self.ask_round(&receive, &mut asked, &without, &mut found)
                .await?;
            if !found.is_empty() || asked.missing(self.clock.monotonic()).is_empty() {
                break;
            }
            let left = give_up_at.saturating_sub(self.clock.monotonic());
            let for_one = Wait::ForOne(wait.min(left));
            self.wait(&receive, &mut asked, for_one, &mut found).await?;
            let now = self.clock.monotonic();
            if !found.is_empty() || asked.missing(now).is_empty() {
                break;
            }
            if now >= give_up_at {
                asked.give_up(queue, now);
                break;
            }
            wait = wait.saturating_mul(2);
        }
        if !found.is_empty() {
            return Ok(found);
        }
        drop(asked);
        let mut round = round.hold();
        let late = round.take_late(self.clock.monotonic(), max as usize);
        if late.is_empty()
            && let Some(error) = round.tell()
        {
            return Err(error);
        }
        Ok(late)
    }

    /// Asks the shards that may have messages, until there are enough, and the others if there is none.
    async fn ask_round(
        &self,
        receive: &Receive<'_>,
        asked: &mut Asked<'_>,
        without: &[u32],
        found: &mut Vec<ReceivedMessage>,
    ) -> Result<()> {
        let now = self.clock.monotonic();
        let all = receive.descriptor.all();
        let Plan { warm, cold } = asked.round.hold().plan(now, all, without);
        let room = |found: &[ReceivedMessage]| receive.max.saturating_sub(found.len() as u32);
        // The first by itself, because it may have as many as there is room for.
        let (mut rest, mut group) = (&*warm, 1);
        while !rest.is_empty() && room(found) > 0 {
            let (some, more) = rest.split_at(group.min(rest.len()));
            self.ask_all(receive, asked, some, room(found))?;
            self.wait(receive, asked, Wait::ForAll(PATIENCE), found)
                .await?;
            (rest, group) = (more, room(found) as usize);
        }
        for some in cold.chunks(receive.max as usize) {
            if found.is_empty() {
                self.ask_all(receive, asked, some, receive.max)?;
                self.wait(receive, asked, Wait::ForAll(PATIENCE), found)
                    .await?;
            }
        }
        Ok(())
    }

    /// Asks shards at the same time for `max` messages in all.
    fn ask_all(
        &self,
        receive: &Receive<'_>,
        asked: &mut Asked<'_>,
        shards: &[u32],
        max: u32,
    ) -> Result<()> {
        let all = shards.len() as u32;
        for (shard, position) in shards.iter().zip(0..) {
            let share = max / all + u32::from(position < max % all);
            let answer = self.ask(receive, *shard, share)?;
            asked.requests.answers.push(answer);
            asked.requests.shards.push(*shard);
        }
        Ok(())
    }

    fn ask(
        &self,
        receive: &Receive<'_>,
        shard: u32,
        max: u32,
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

    /// Takes the answers to these requests.
    ///
    /// # Errors
    /// If the queue does not exist, whatever its other shards say.
    async fn wait(
        &self,
        receive: &Receive<'_>,
        asked: &mut Asked<'_>,
        wait: Wait,
        found: &mut Vec<ReceivedMessage>,
    ) -> Result<()> {
        let (Wait::ForAll(patience) | Wait::ForOne(patience)) = wait;
        let mut over = self.clock.sleep(patience);
        while !asked.requests.answers.is_empty() {
            let answer = match select(asked.requests.answers.next(), &mut over).await {
                Either::Left((Some(answer), _)) => answer,
                Either::Left((None, _)) | Either::Right(_) => break,
            };
            self.take(receive, asked, answer, found)?;
            if matches!(wait, Wait::ForOne(_)) && !found.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn take(
        &self,
        receive: &Receive<'_>,
        asked: &mut Asked<'_>,
        answer: Answer,
        found: &mut Vec<ReceivedMessage>,
    ) -> Result<()> {
        let (now, idle_cap) = (self.clock.monotonic(), self.capabilities.idle_cap);
        let is_late = asked.is_of_older(&answer);
        let mut round = asked.round.hold();
        let (queue, shard) = (receive.queue, answer.shard);
        let error = match answer.received {
            Ok(messages) => {
                round.answers(shard, messages.is_empty(), now, idle_cap);
                let messages = messages.into_iter().map(|message| of_shard(shard, message));
                if is_late {
                    round.late.extend(messages.map(|message| Late {
                        message,
                        asked_at: answer.asked_at,
                        visibility: answer.visibility,
                    }));
                } else {
                    found.extend(messages);
                }
                return Ok(());
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
            _ if shard < receive.descriptor.active => {
                Some(shard_is_missing(queue, shard, Operation::Receive))
            }
            // Somebody has deleted a shard that was no longer in use.
            _ => None,
        };
        round.fails(shard, now, least, untold);
        Ok(())
    }
}

fn of_shard(shard: u32, mut message: ReceivedMessage) -> ReceivedMessage {
    message.id = message_id(shard, &message.id);
    message.receipt = message_receipt(shard, &message.receipt);
    message
}

impl<'a> Asked<'a> {
    /// Takes over the requests that nobody waits for.
    fn new(round: &'a Mutex<Round>, all: u32) -> Self {
        let requests = std::mem::take(&mut round.hold().slow);
        let older = requests.shards.clone();
        Self {
            round,
            requests,
            older,
            all,
            answered: BTreeSet::new(),
        }
    }

    /// The shards that are not to be asked now: those that have not answered, and perhaps those that have.
    fn not_to_ask(&self, only_missing: bool) -> Vec<u32> {
        let answered = self.answered.iter().filter(|_| only_missing);
        self.requests
            .shards
            .iter()
            .chain(answered)
            .copied()
            .collect()
    }

    /// Records that a request was answered. Returns whether an earlier receive has left it, which may have been carried out
    /// before this one began.
    fn is_of_older(&mut self, answer: &Answer) -> bool {
        remove(&mut self.requests.shards, answer.shard);
        let is_of_older = remove(&mut self.older, answer.shard);
        if !is_of_older {
            self.answered.insert(answer.shard);
        }
        is_of_older
    }

    /// The shards that have not answered, except for those that are left out as failing.
    fn missing(&self, now: Duration) -> Vec<u32> {
        let round = self.round.hold();
        let missing =
            |shard: &u32| !self.answered.contains(shard) && !round.is_failing(*shard, now);
        (0..self.all).filter(missing).collect()
    }

    /// Takes the shards that have not answered for failing.
    fn give_up(&self, queue: &QueueName, now: Duration) {
        let missing = self.missing(now);
        let mut round = self.round.hold();
        for shard in missing {
            let error = Error::new(ErrorKind::Timeout, Operation::Receive);
            let error = error.with_detail("it does not answer, and the others have no message");
            round.fails(shard, now, None, Some(error.of_shard(queue, shard)));
        }
    }
}

/// Removes one of the equal values, and returns whether there was one.
fn remove(shards: &mut Vec<u32>, shard: u32) -> bool {
    let at = shards.iter().position(|one| *one == shard);
    at.map(|at| shards.swap_remove(at)).is_some()
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Requests { answers, shards } = std::mem::take(&mut self.requests);
        let mut round = self.round.hold();
        round.slow.answers.extend(answers);
        round.slow.shards.extend(shards);
    }
}

//! Receiving from all shards of a queue.
//!
//! A receive asks one shard that may have messages, and if there is room left the others at the same time. A shard that had
//! nothing is left out for a while, as long as others have messages; so a queue is empty only if all were asked and have
//! answered. Those that have are asked again while a slow one is waited for. One that fails, or does not answer for long, is
//! left out until its pause is over; what it answers in the end is returned by the next receive.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use queue_core::backend::{Backend as _, ReceivedMessage};
use queue_core::clock::BoxFuture;
use queue_core::internal::LockExt as _;
use queue_core::{Operation, QueueName, Result};

use crate::asked::{Answer, Asked, Learning};
use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::round::{Known, Plan};

/// How long an answer is waited for before others are asked.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long a shard that does not answer is waited for before the others, which had nothing, are asked again. It doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// How long an answer is waited for at least, if the others have nothing.
const LEAST_WAIT: Duration = Duration::from_secs(10);

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
        let known = self.rounds.of(queue);
        let late = |known: &Known| {
            let now = self.clock.monotonic();
            known.round.hold().take_late(now, max as usize)
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
        // A message that is found after that has less than half of its lease left, as it is counted.
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
        let room = |found: &[ReceivedMessage]| receive.max.saturating_sub(found.len() as u32);
        // The first by itself, because it may have as many as there is room for.
        let (mut rest, mut group) = (&*warm, 1);
        while !rest.is_empty() && room(found) > 0 {
            let (some, more) = rest.split_at(group.min(rest.len()));
            self.ask_all(receive, asked, some, room(found))?;
            self.wait(asked, patience, found).await?;
            (rest, group) = (more, room(found) as usize);
        }
        for some in cold.chunks(receive.max as usize) {
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
        max: u32,
    ) -> Result<()> {
        let all = shards.len() as u32;
        for (shard, position) in shards.iter().zip(0..) {
            let share = max / all + u32::from(position < max % all);
            asked.push(*shard, self.ask(receive, *shard, share)?);
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

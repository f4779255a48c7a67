//! What is known of the shards of a queue, from one receive to the next.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::backend::ReceivedMessage;
use queue_core::internal::{LockExt as _, later};
use queue_core::{Error, QueueName};
use tokio::sync::watch;

/// The pauses of a shard that has no messages.
const FIRST_EMPTY: Duration = Duration::from_millis(50);
const LONGEST_EMPTY: Duration = Duration::from_secs(2);

/// The pauses of a shard that fails.
const FIRST_FAILING: Duration = Duration::from_secs(1);
const LONGEST_FAILING: Duration = Duration::from_secs(30);

/// What is known of the shards of each queue.
#[derive(Default)]
pub(crate) struct Rounds(Mutex<HashMap<QueueName, Arc<Known>>>);

/// What is known of the shards of a queue.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) round: Mutex<Round>,
    /// Changes when a request is answered that nobody waited for.
    pub(crate) answered: watch::Sender<()>,
}

#[derive(Default)]
pub(crate) struct Round {
    shards: Vec<State>,
    /// The shard that is asked first.
    next: u32,
    /// The shards of requests that a receive has not waited for.
    pub(crate) slow: Vec<u32>,
    /// Messages that a slow request has brought.
    late: VecDeque<Late>,
}

/// What is known of a shard.
#[derive(Debug, Default)]
struct State {
    /// The pause of an empty shard while others have messages.
    empty: Pause,
    failing: Pause,
    /// Why the shard is left out, and whether a caller was told.
    failure: Option<Error>,
    is_told: bool,
}

/// A message that is leased to this program since some time.
struct Late {
    message: ReceivedMessage,
    asked_at: Duration,
    visibility: Duration,
}

impl Rounds {
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<Known> {
        let mut rounds = self.0.hold();
        match rounds.get(queue) {
            Some(known) => Arc::clone(known),
            None => Arc::clone(rounds.entry(queue.clone()).or_default()),
        }
    }

    /// Records that a message was put on a shard.
    pub(crate) fn has_messages(&self, queue: &QueueName, shard: u32) {
        let known = self.0.hold().get(queue).map(Arc::clone);
        if let Some(known) = known
            && let Some(state) = known.round.hold().shards.get_mut(shard as usize)
        {
            state.empty = Pause::default();
        }
    }

    /// Returns the error of each shard that has not answered since it failed.
    pub(crate) fn failing(&self, queue: &QueueName) -> Vec<Error> {
        let known = self.0.hold().get(queue).map(Arc::clone);
        known.map_or_else(Vec::new, |known| {
            let round = known.round.hold();
            let failures = round.shards.iter().map(|state| state.failure.clone());
            failures.flatten().collect()
        })
    }

    pub(crate) fn forget(&self, queue: &QueueName) {
        self.0.hold().remove(queue);
    }
}

/// Which shards to ask, in this order.
pub(crate) struct Plan {
    pub(crate) warm: Vec<u32>,
    /// Asked if the warm shards have nothing.
    pub(crate) cold: Vec<u32>,
}

impl Round {
    /// Plans which shards to ask, except `without`.
    pub(crate) fn plan(&mut self, now: Duration, all: u32, without: &[u32]) -> Plan {
        let all = all.max(1);
        self.shards.resize_with(all as usize, State::default);
        let start = self.next % all;
        let turns = (0..all).map(|turn| (start + turn) % all);
        let state = |shard: &u32| &self.shards[*shard as usize];
        let asked =
            turns.filter(|shard| state(shard).failing.is_over(now) && !without.contains(shard));
        let (warm, cold): (Vec<u32>, _) = asked.partition(|shard| state(shard).empty.is_over(now));
        self.next = warm.first().map_or(start, |first| first + 1);
        Plan { warm, cold }
    }

    /// Records that a shard has answered, with messages or without.
    pub(crate) fn answers(
        &mut self,
        shard: u32,
        is_empty: bool,
        now: Duration,
        idle_cap: Duration,
    ) {
        let Some(state) = self.shards.get_mut(shard as usize) else {
            return;
        };
        let mut empty = state.empty;
        *state = State::default();
        if is_empty {
            let longest = LONGEST_EMPTY.min(idle_cap);
            empty.again(now, FIRST_EMPTY.min(longest), longest, None);
            state.empty = empty;
        }
    }

    /// Leaves out a shard until a pause is over.
    pub(crate) fn fails(
        &mut self,
        shard: u32,
        now: Duration,
        least: Option<Duration>,
        error: Option<Error>,
    ) {
        if let Some(state) = self.shards.get_mut(shard as usize) {
            let failing = &mut state.failing;
            failing.again(now, FIRST_FAILING, LONGEST_FAILING, least);
            (state.failure, state.is_told) = (error, false);
        }
    }

    /// Returns the error of a shard, once for each time that it fails.
    pub(crate) fn tell(&mut self) -> Option<Error> {
        let mut states = self.shards.iter_mut();
        let untold = states.find(|state| state.failure.is_some() && !state.is_told)?;
        untold.is_told = true;
        untold.failure.clone()
    }

    /// Whether the pause of a shard that fails is not over.
    pub(crate) fn is_failing(&self, shard: u32, now: Duration) -> bool {
        let state = self.shards.get(shard as usize);
        state.is_some_and(|state| !state.failing.is_over(now))
    }

    /// Keeps messages for the next receive.
    pub(crate) fn keep(
        &mut self,
        messages: Vec<ReceivedMessage>,
        asked_at: Duration,
        visibility: Duration,
    ) {
        self.late.extend(messages.into_iter().map(|message| Late {
            message,
            asked_at,
            visibility,
        }));
    }

    /// Takes up to `max` messages that a slow request has brought, as they are leased now. A message whose lease is
    /// almost over is left out.
    pub(crate) fn take_late(&mut self, now: Duration, max: usize) -> Vec<ReceivedMessage> {
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

impl fmt::Debug for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues: Vec<QueueName> = self.0.hold().keys().cloned().collect();
        f.debug_tuple("Rounds").field(&queues).finish()
    }
}

/// A pause that grows each time it is repeated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pause {
    times: u32,
    /// The end, on the monotonic clock.
    until: Duration,
}

impl Pause {
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// Pauses again: twice as long as before, from `first` on and up to `longest`, of which a part is random, but at
    /// least for `least`.
    pub(crate) fn again(
        &mut self,
        now: Duration,
        first: Duration,
        longest: Duration,
        least: Option<Duration>,
    ) {
        let doubled = first.saturating_mul(2_u32.saturating_pow(self.times));
        let pause = doubled.min(longest).mul_f64(rand::random_range(0.75..=1.0));
        self.times = self.times.saturating_add(1);
        self.until = now.saturating_add(pause.max(least.unwrap_or_default()));
    }
}

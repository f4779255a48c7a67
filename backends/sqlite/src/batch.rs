//! The commands that share a transaction, and the receives among them that share a read or a claim.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{Swap, SwapIf};
use queue_core::store_clock::after;

use crate::command::{Answer, Command, Request, ResultsRequest};
use crate::failure::Result;
use crate::rows::attachments::Staging;
use crate::rows::stored::Attaching;
use crate::rows::tables::{Step, Tables};

/// What a transaction writes at most, except for renewals and for the last command of each kind.
const MAX: Weight = Weight {
    messages: 1024,
    bytes: 8 * 1024 * 1024,
};

/// The part of [`MAX`] that each kind of command has, whatever else is waiting.
const SHARE: Weight = Weight {
    messages: MAX.messages / 4,
    bytes: MAX.bytes / 4,
};

/// An answer for each command of a batch; `None` for a receive that continues in the next batch.
pub(super) type Answers = Vec<Option<Result<Answer>>>;

/// The commands that wait for a transaction, by kind.
///
/// Receives have transactions of their own, which do not wait for the disk. Receives alternate with the other commands
/// while both are waiting. Deletes without other commands wait for a second transaction of receives: they are then
/// committed together with the deletes of the messages that it receives. Without that wait, the messages of a listener,
/// once received in two parts, would be settled in two commits from then on.
///
/// Among the other commands, renewals and settlements go first, because a late one loses its lease: a batch takes all
/// that wait, which are no more than there are leases. The remaining kinds of commands share the rest of the batch, so
/// that none waits for another.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Updates, deletes, and what waits for other connections' transactions.
    leases: VecDeque<Command>,
    /// Settlements with follow-ups.
    settlements: VecDeque<Command>,
    receives: VecDeque<Command>,
    /// Puts, and operations on queues.
    singles: VecDeque<Command>,
    /// Puts of several messages at once.
    bulk: VecDeque<Command>,
    closing: Vec<Command>,
    /// The number of batches of receives in a row.
    received: u32,
}

/// A number of messages and of body bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    messages: usize,
    bytes: usize,
}

impl Pending {
    pub(super) fn push(&mut self, command: Command) {
        let kind = match &command.request {
            Request::Close => return self.closing.push(command),
            Request::Ended { .. } => &mut self.leases,
            Request::Results(ResultsRequest::Swap(swap)) if is_of_lease(swap) => &mut self.leases,
            Request::Apply(steps) => match &steps[..] {
                [Step::Update { .. } | Step::Delete { .. }] => &mut self.leases,
                [Step::Put { .. } | Step::Swap { .. }] | [Step::Put { .. }, Step::Swap { .. }] => {
                    &mut self.singles
                }
                steps if steps.iter().all(Step::is_put) => &mut self.bulk,
                _ => &mut self.settlements,
            },
            Request::Receive { .. } => &mut self.receives,
            _ => &mut self.singles,
        };
        kind.push_back(command);
    }

    /// Puts receives that are not finished back at the front.
    pub(super) fn put_back(&mut self, commands: Vec<Command>) {
        for command in commands.into_iter().rev() {
            self.receives.push_front(command);
        }
    }

    fn others(&self) -> usize {
        self.leases.len() + self.settlements.len() + self.singles.len() + self.bulk.len()
    }

    /// Whether all commands besides receives are deletes.
    fn only_deletes(&self) -> bool {
        let is_delete = |command: &Command| match &command.request {
            Request::Apply(steps) => matches!(steps[..], [Step::Delete { .. }]),
            _ => false,
        };
        self.others() == self.leases.len() && self.leases.iter().all(is_delete)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.receives.is_empty() && self.others() == 0
    }

    pub(super) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Returns the requests to close, to be answered when the file is closed.
    pub(super) fn into_closing(self) -> Vec<Command> {
        self.closing
    }

    /// Whether the next transaction is one of receives.
    fn is_turn_of_receives(&self) -> bool {
        let in_a_row = if self.only_deletes() { 2 } else { 1 };
        let turn_of_others = self.others() > 0 && self.received >= in_a_row;
        !self.receives.is_empty() && !turn_of_others
    }

    /// Takes the commands of the next transaction: receives, or at least one of each other kind that is
    /// pending.
    pub(super) fn take_batch(&mut self) -> Vec<Command> {
        if self.is_turn_of_receives() {
            self.received = self.received.saturating_add(1);
            let mut batch = Vec::new();
            let room = if self.others() > 0 { SHARE } else { MAX };
            take(&mut self.receives, room, &mut batch);
            return batch;
        }
        self.received = 0;
        let mut batch: Vec<Command> = self.leases.drain(..).collect();
        let mut taken = weigh(&batch);
        let mut kinds = [&mut self.settlements, &mut self.singles, &mut self.bulk];
        for kind in &mut kinds {
            taken.add(take(kind, SHARE, &mut batch));
        }
        for kind in &mut kinds {
            taken.add(take(kind, MAX.less(taken), &mut batch));
        }
        batch
    }
}

/// Moves commands to the batch while there is room for their kind, and returns their weight.
fn take(kind: &mut VecDeque<Command>, room: Weight, batch: &mut Vec<Command>) -> Weight {
    let mut taken = Weight::default();
    while taken.messages < room.messages && taken.bytes < room.bytes {
        let Some(command) = kind.pop_front() else {
            break;
        };
        taken.add(command.request.weight());
        batch.push(command);
    }
    taken
}

fn weigh(commands: &[Command]) -> Weight {
    let mut sum = Weight::default();
    for command in commands {
        sum.add(command.request.weight());
    }
    sum
}

impl Weight {
    fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    fn less(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(other.messages),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

impl Request {
    /// Returns the maximum that the request writes.
    fn weight(&self) -> Weight {
        let (messages, bytes) = match self {
            Self::Receive { max, .. } => (*max, 0),
            Self::Stage(Staging::Part { data, .. }) => (1, data.len()),
            Self::Apply(steps) => (steps.len(), steps.iter().map(Step::bytes).sum()),
            Self::Results(ResultsRequest::Swap(swap)) => (1, swap.value().map_or(0, Bytes::len)),
            _ => (1, 0),
        };
        Weight { messages, bytes }
    }
}

/// Whether a swap renews or releases a claim.
fn is_of_lease(swap: &Swap) -> bool {
    matches!(swap.condition, SwapIf::Owner(_)) && swap.value().is_none()
}

impl Step {
    fn bytes(&self) -> usize {
        match self {
            Self::Put { parcel, .. } => match &parcel.attachment {
                Some(Attaching::Whole(data)) => parcel.message.body.len() + data.len(),
                _ => parcel.message.body.len(),
            },
            Self::Update { body, .. } => body.as_ref().map_or(0, |(body, _)| body.len()),
            Self::Delete { .. } | Self::DeleteItems { .. } => 0,
            Self::Swap { swap, .. } => swap.value().map_or(0, Bytes::len),
        }
    }
}

/// Decides how long a transaction waits for further commands.
///
/// Callers whose operations were answered together send their next commands at about the same time. A
/// transaction that started with the first of these commands would leave the others to a second commit.
#[derive(Debug, Default)]
pub(super) struct Pace {
    commit: Duration,
    receives: Expected,
    others: Expected,
    /// The commands besides receives that wait while receives are executed.
    waiting: usize,
}

/// How many commands of a kind were expected, or pending, for the last two transactions of that kind.
#[derive(Debug, Default)]
struct Expected([usize; 2]);

impl Expected {
    fn record(&mut self, commands: usize) {
        self.0 = [commands, self.0[0]];
    }

    /// Whether so many commands are all that were expected.
    fn are_all(&self, pending: usize) -> bool {
        pending > 0 && self.0.iter().all(|&expected| expected <= pending)
    }
}

impl Pace {
    /// Records the commands that are pending for the next transaction: their callers may soon send others.
    pub(super) fn begin(&mut self, pending: &Pending) {
        self.waiting = pending.others();
        if pending.is_turn_of_receives() {
            self.receives.record(pending.receives.len())
        } else {
            self.others.record(self.waiting)
        }
    }

    /// Records the messages that were received: each may soon be settled by a command of its own.
    pub(super) fn answered(&mut self, answers: &[Option<Result<Answer>>]) {
        let received = |answer: &Option<Result<Answer>>| match answer {
            Some(Ok(Answer::Received(messages))) => messages.len(),
            _ => 0,
        };
        match answers.iter().map(received).sum::<usize>() {
            0 => {}
            received => self.others.record(self.waiting + received),
        }
    }

    /// Returns whether a transaction waits for more commands: it starts once all expected receives or all other
    /// expected commands are pending.
    fn expects_more(&self, pending: &Pending) -> bool {
        !self.receives.are_all(pending.receives.len()) && !self.others.are_all(pending.others())
    }

    /// Records the duration of a commit that waited for the disk.
    pub(super) fn note(&mut self, commit: Duration) {
        self.commit = commit;
    }

    /// Takes the queued commands. If [more are expected](Self::expects_more), waits for them, for less
    /// than the duration of a commit and only while commands keep arriving. Returns `false` once every
    /// sender is gone.
    pub(super) fn gather(&self, commands: &Receiver<Command>, pending: &mut Pending) -> bool {
        let longest = self.commit.min(Duration::from_millis(2));
        let gap = (longest / 4).min(Duration::from_micros(200));
        let mut start = None;
        loop {
            match commands.try_recv() {
                Ok(command) => {
                    pending.push(command);
                    continue;
                }
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => {}
            }
            let few = !pending.is_empty() && !pending.is_closing() && self.expects_more(pending);
            if !few || start.get_or_insert_with(Instant::now).elapsed() >= longest {
                return true;
            }
            match commands.recv_timeout(gap) {
                Ok(command) => pending.push(command),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

/// A receive and its share of a claim.
struct Waiting {
    index: usize,
    max: usize,
    until: i64,
}

impl Tables<'_> {
    /// Answers the receives of a batch that find nothing and returns the others. Takes no write lock, so that
    /// idle pollers of many processes do not block each other.
    pub(super) fn answer_idle_receives(
        &mut self,
        batch: Vec<Command>,
        now: &Result<i64>,
    ) -> Vec<Command> {
        let mut checked: Vec<(QueueName, bool)> = Vec::new();
        let mut busy = Vec::new();
        for command in batch {
            let Request::Receive { queue, .. } = &command.request else {
                busy.push(command);
                continue;
            };
            if command.reply.is_closed() {
                continue;
            }
            let known = checked.iter().find(|(name, _)| name == queue);
            let visible = match (known, now) {
                (Some(&(_, visible)), _) => Ok(visible),
                (None, Ok(now)) => self.any_visible(queue, *now),
                (None, Err(failure)) => Err(failure.clone()),
            };
            if let Ok(visible) = visible {
                checked.push((queue.clone(), visible));
            }
            match visible {
                Ok(true) => busy.push(command),
                Ok(false) => command.answer(Ok(Answer::Received(Vec::new()))),
                // The receive's transaction waits for the lock and reads around damage.
                Err(failure) if failure.is_busy() || failure.is_damage() => busy.push(command),
                Err(failure) => command.fail(&failure),
            }
        }
        busy
    }

    fn any_visible(&mut self, queue: &QueueName, now: i64) -> Result<bool> {
        let id = self.queues.id(queue)?;
        self.messages.any_visible(id, now)
    }

    /// Answers all receives of a batch, those of one queue with one claim.
    pub(super) fn answer_receives(
        &mut self,
        batch: &[Command],
        answers: &mut Answers,
        now: i64,
    ) -> Result<()> {
        let mut by_queue: Vec<(&QueueName, Vec<Waiting>)> = Vec::new();
        for (index, command) in batch.iter().enumerate() {
            let Request::Receive {
                queue,
                max,
                visibility,
            } = &command.request
            else {
                continue;
            };
            if command.reply.is_closed() {
                answers[index] = Some(Ok(Answer::Done));
                continue;
            }
            let waiting = Waiting {
                index,
                max: *max,
                until: after(now, *visibility),
            };
            match by_queue.iter_mut().find(|(name, _)| *name == queue) {
                Some((_, several)) => several.push(waiting),
                None => by_queue.push((queue, vec![waiting])),
            }
        }
        for (queue, waiting) in by_queue {
            self.receive(queue, &waiting, answers, now)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        queue: &QueueName,
        waiting: &[Waiting],
        answers: &mut Answers,
        now: i64,
    ) -> Result<()> {
        let id = match self.queues.id(queue) {
            Ok(id) => id,
            Err(failure) if failure.is_refusal() => {
                for one in waiting {
                    answers[one.index] = Some(Err(failure.clone()));
                }
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        let max = waiting.iter().map(|one| one.max).sum();
        let mut leases = waiting
            .iter()
            .flat_map(|one| std::iter::repeat_n(one.until, one.max));
        let Some(claimed) = self.messages.claim(id, &mut leases, max, now)? else {
            return Ok(());
        };
        let mut claimed = claimed.into_iter();
        for one in waiting {
            let received = claimed.by_ref().take(one.max).collect();
            answers[one.index] = Some(Ok(Answer::Received(received)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

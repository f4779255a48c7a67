//! The commands that share a transaction.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::command::{Answer, Command, Request, Step};
use super::failure::Result;

/// The number of messages after which a transaction takes no further command.
const MAX_MESSAGES: usize = 1024;

/// The number of body bytes after which a transaction takes no further command, to keep the log small.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// An answer for each command of a batch; `None` for a receive that continues in the next one.
pub(super) type Answers = Vec<Option<Result<Answer>>>;

/// The commands that wait for a transaction.
///
/// Renewals and settlements go first, because a late one loses its lease. Their number is bounded by
/// that of the messages received before, so other commands do not starve.
#[derive(Debug, Default)]
pub(super) struct Pending {
    urgent: VecDeque<Command>,
    normal: VecDeque<Command>,
    closing: Vec<Command>,
}

impl Pending {
    pub(super) fn push(&mut self, command: Command) {
        match &command.request {
            Request::Close => self.closing.push(command),
            Request::Step(Step::Update { .. } | Step::Delete { .. }) | Request::Apply(_) => {
                self.urgent.push_back(command);
            }
            _ => self.normal.push_back(command),
        }
    }

    /// Puts commands back at the front of the queue.
    pub(super) fn put_back(&mut self, commands: Vec<Command>) {
        for command in commands.into_iter().rev() {
            self.normal.push_front(command);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.normal.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Returns the requests to close, to be answered when the file is closed.
    pub(super) fn into_closing(self) -> Vec<Command> {
        self.closing
    }

    /// Takes the commands of the next transaction: at least one if any is pending.
    pub(super) fn take_batch(&mut self) -> Vec<Command> {
        let mut batch = Vec::with_capacity(self.len().min(MAX_MESSAGES));
        let (mut messages, mut bytes) = (0, 0);
        while messages < MAX_MESSAGES && bytes < MAX_BYTES {
            let Some(command) = self.urgent.pop_front().or_else(|| self.normal.pop_front()) else {
                break;
            };
            let (more_messages, more_bytes) = command.request.weight();
            messages += more_messages;
            bytes += more_bytes;
            batch.push(command);
        }
        batch
    }
}

impl Request {
    /// Returns the maximum number of messages and of body bytes that it writes.
    fn weight(&self) -> (usize, usize) {
        match self {
            Self::Receive { max, .. } => (*max as usize, 0),
            Self::Step(step) => (1, step.bytes()),
            Self::Apply(steps) => (steps.len(), steps.iter().map(Step::bytes).sum()),
            _ => (1, 0),
        }
    }
}

impl Step {
    fn bytes(&self) -> usize {
        match self {
            Self::Put { parcel, .. } => parcel.message.body.len(),
            Self::Update { body, .. } => body.as_ref().map_or(0, |(body, _)| body.len()),
            Self::Delete { .. } => 0,
        }
    }
}

/// Decides how long a transaction waits for further commands.
///
/// Callers whose operations were answered together send their next commands at about the same time. A
/// transaction that started with the first of these would leave the others to a second commit.
#[derive(Debug, Default)]
pub(super) struct Pace {
    commit: Duration,
    sizes: [usize; 2],
}

impl Pace {
    /// Records the size of a batch and the duration of its commit.
    pub(super) fn note(&mut self, commands: usize, commit: Duration) {
        self.sizes = [commands, self.sizes[0]];
        self.commit = commit;
    }

    /// Records a batch that needed no commit.
    pub(super) fn note_idle(&mut self, commands: usize) {
        self.note(commands, self.commit);
    }

    /// Takes the queued commands. If they are fewer than the recent batches, waits for more, for less
    /// than the duration of a commit and only while commands keep arriving. Returns `false` once every
    /// sender is gone.
    pub(super) fn gather(&self, commands: &Receiver<Command>, pending: &mut Pending) -> bool {
        let expected = self.sizes[0].max(self.sizes[1]);
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
            let few = pending.len() < expected && !pending.is_empty() && !pending.is_closing();
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

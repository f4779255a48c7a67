//! Which commands share a transaction.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::command::{Answer, Command, Request, Step};
use super::failure::Result;

/// How much work one transaction takes, in messages.
const MOST_MESSAGES: usize = 1024;

/// How many bytes of bodies one transaction writes, so that the log stays small.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// An answer for each command of a batch; `None` for a receive that continues in the next one.
pub(super) type Answers = Vec<Option<Result<Answer>>>;

/// The commands that wait for a transaction.
///
/// Renewals and settlements go ahead of everything else: they keep leases that exist from being
/// lost. Those are bounded by what was received before, so nothing starves.
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

    /// Puts commands back that have waited longest.
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

    /// Those who wait for the end.
    pub(super) fn into_closing(self) -> Vec<Command> {
        self.closing
    }

    /// The next transaction's commands: at least one, if there is any.
    pub(super) fn take_batch(&mut self) -> Vec<Command> {
        let mut batch = Vec::with_capacity(self.len().min(MOST_MESSAGES));
        let (mut messages, mut bytes) = (0, 0);
        while messages < MOST_MESSAGES && bytes < MOST_BYTES {
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
    /// How many messages and bytes of bodies it writes at most.
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
            Self::Put { message, .. } => message.body.len(),
            Self::Update { body, .. } => body.as_ref().map_or(0, bytes::Bytes::len),
            Self::Delete { .. } => 0,
        }
    }
}

/// How long to hold a transaction back for commands that are on their way.
///
/// Callers that wait for an answer ask again as soon as they have it. Starting at the first of them
/// would leave the others to the next commit, and every round would pay for two.
#[derive(Debug, Default)]
pub(super) struct Pace {
    commit: Duration,
    sizes: [usize; 2],
}

impl Pace {
    /// Takes note of a batch and of what its commit cost.
    pub(super) fn note(&mut self, commands: usize, commit: Duration) {
        self.sizes = [commands, self.sizes[0]];
        self.commit = commit;
    }

    /// Takes note of commands that needed no commit.
    pub(super) fn note_idle(&mut self, commands: usize) {
        self.note(commands, self.commit);
    }

    /// Takes what has queued up, and waits a little for as many as came lately: for less than a
    /// commit, and only while they keep coming. Whether more may come.
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

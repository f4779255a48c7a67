//! Which commands share a transaction.

use std::collections::VecDeque;

use super::command::{Command, Request, Step};

/// How much work one transaction takes, in messages.
const MOST_MESSAGES: usize = 1024;

/// How many bytes of bodies one transaction writes, so that the log stays small.
const MOST_BYTES: usize = 8 * 1024 * 1024;

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

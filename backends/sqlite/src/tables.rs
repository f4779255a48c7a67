//! What a transaction works on, on whichever connection it is.

use queue_core::QueueName;
use rusqlite::Connection;

use super::attachments::Attaching;
use super::command::{MessageRef, Step, StepDone};
use super::failure::{Failure, Result};
use super::messages::Messages;
use super::queues::Queues;
use super::results::Results;

/// The statements on the tables of a connection, within its transaction.
pub(super) struct Tables<'c> {
    pub(super) connection: &'c Connection,
    pub(super) queues: Queues<'c>,
    pub(super) messages: Messages<'c>,
}

impl<'c> Tables<'c> {
    pub(super) fn new(connection: &'c Connection) -> Self {
        Self {
            connection,
            queues: Queues::new(connection),
            messages: Messages::new(connection),
        }
    }

    pub(super) fn results(&self, now: i64) -> Results<'c> {
        let connection = self.connection;
        Results { connection, now }
    }

    pub(super) fn clear(&mut self, queue: &QueueName) -> Result<()> {
        // Otherwise what this transaction has put before would be counted for nothing.
        self.messages.counts.write()?;
        self.queues.clear(queue)
    }

    /// Executes a step, after the put of a message.
    pub(super) fn step(
        &mut self,
        step: &Step,
        put: Option<MessageRef>,
        now: i64,
    ) -> Result<StepDone> {
        match step {
            Step::Put { queue, parcel } => {
                let queue = self.queues.id(queue)?;
                let attachment = match &parcel.attachment {
                    Some(attaching) => self.attachment(attaching, now)?,
                    None => None,
                };
                let placed = self.messages.put(queue, parcel, now)?;
                if let Some(attachment) = attachment {
                    self.messages.attachments.attach(placed.seq, attachment)?;
                }
                Ok(StepDone::Put(placed))
            }
            Step::Update {
                queue,
                handle,
                visibility,
                body,
            } => {
                let queue = self.queues.id(queue)?;
                self.messages
                    .update(queue, *handle, *visibility, body.as_ref(), now)
                    .map(|(visible_at, nonce)| StepDone::Updated { visible_at, nonce })
            }
            Step::Delete { queue, handle } => {
                let queue = self.queues.id(queue)?;
                let deleted = self.messages.delete(queue, *handle, now);
                deleted.map(|()| StepDone::Deleted)
            }
            Step::DeleteItems {
                queue,
                handle,
                items,
                of,
            } => {
                let queue = self.queues.id(queue)?;
                let deleted = self
                    .messages
                    .delete_items(queue, *handle, (items, *of), now);
                deleted.map(|()| StepDone::Deleted)
            }
            Step::Swap { swap, .. } => {
                let swapped = self.results(now).swap_in_step(swap, put);
                swapped.map(|()| StepDone::Swapped)
            }
        }
    }

    fn attachment(&mut self, attaching: &Attaching, now: i64) -> Result<Option<i64>> {
        let of = match attaching {
            Attaching::Of { queue, .. } => match self.queues.id(queue) {
                Err(Failure::QueueNotFound) => return Ok(None),
                id => Some(id?),
            },
            Attaching::Whole(_) | Attaching::Staged(_) => None,
        };
        self.messages.attachments.take(attaching, of, now)
    }

    /// Executes all steps or none. A refused step changes nothing itself; the savepoint undoes those
    /// before it.
    pub(super) fn steps(&mut self, steps: &[Step], now: i64) -> Result<Vec<StepDone>> {
        let connection = self.connection;
        connection.execute_batch("SAVEPOINT apply")?;
        let saved = self.messages.counts.save();
        let mut done = Vec::with_capacity(steps.len());
        let mut put = None;
        for (index, step) in steps.iter().enumerate() {
            match self.step(step, put, now) {
                Ok(step) => {
                    put = step.put().or(put);
                    done.push(step);
                }
                Err(failure) if failure.is_refusal() => {
                    connection.execute_batch("ROLLBACK TO apply; RELEASE apply")?;
                    self.messages.counts.roll_back(saved);
                    let queue = step.queue().clone();
                    return Err(Failure::Step(index, queue, Box::new(failure)));
                }
                Err(failure) => return Err(failure),
            }
        }
        connection.execute_batch("RELEASE apply")?;
        Ok(done)
    }
}

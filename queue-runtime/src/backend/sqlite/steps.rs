//! The changes to messages within a transaction, on whichever connection it is.

use rusqlite::Connection;

use super::command::{Step, StepDone};
use super::failure::{Failure, Result};
use super::messages::Messages;
use super::queues::Queues;

/// Executes steps within a transaction.
pub(super) struct Steps<'a, 'c> {
    pub(super) queues: &'a mut Queues<'c>,
    pub(super) messages: &'a mut Messages<'c>,
}

impl Steps<'_, '_> {
    pub(super) fn one(&mut self, step: &Step, now: i64) -> Result<StepDone> {
        let queue = self.queues.id(step.queue())?;
        match step {
            Step::Put { parcel, .. } => self.messages.put(queue, parcel, now).map(StepDone::Put),
            Step::Update {
                handle,
                visibility,
                body,
                ..
            } => self
                .messages
                .update(queue, *handle, *visibility, body.as_ref(), now)
                .map(|(visible_at, nonce)| StepDone::Updated { visible_at, nonce }),
            Step::Delete { handle, .. } => self
                .messages
                .delete(queue, *handle, now)
                .map(|()| StepDone::Deleted),
        }
    }

    /// Executes all steps or none. A refused step changes nothing itself; the savepoint undoes those
    /// before it.
    pub(super) fn all(
        &mut self,
        connection: &Connection,
        steps: &[Step],
        now: i64,
    ) -> Result<Vec<StepDone>> {
        connection.execute_batch("SAVEPOINT apply")?;
        let saved = self.messages.counts.save();
        let mut done = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            match self.one(step, now) {
                Ok(step) => done.push(step),
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

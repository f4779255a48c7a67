//! A change to one message or value, and its execution, on any connection.

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{
    Attachment, ItemSet, NewMessage, Op, OpOutcome, PopReceipt, StorageId, Swap,
};
use rusqlite::Connection;
use smallvec::SmallVec;

use crate::failure::{Failure, Result};
use crate::rows::messages::{Change, Messages};
use crate::rows::queues::{Known, Queues, group_limit};
use crate::rows::results::Results;
use crate::rows::stored::{self, Attaching, Handle, MessageRef, Parcel, Placed, Updated, checksum};

/// A change to one message, or to a recorded value.
#[derive(Debug)]
pub(crate) enum Step {
    Put {
        queue: QueueName,
        parcel: Parcel,
    },
    Update {
        queue: QueueName,
        handle: Handle,
        change: Change,
        /// The new body and its checksum.
        body: Option<(Bytes, i64)>,
    },
    Delete {
        queue: QueueName,
        handle: Handle,
    },
    DeleteItems {
        queue: QueueName,
        handle: Handle,
        items: ItemSet,
        of: u32,
    },
    Swap {
        queue: QueueName,
        swap: Swap,
    },
}

/// The steps of one request. A single step stands inline.
pub(crate) type Steps = SmallVec<[Step; 1]>;

#[derive(Debug)]
pub(crate) enum StepDone {
    Put(Placed),
    Updated(Updated),
    Deleted,
    Swapped,
}

/// The statements on the tables of a connection, within its transaction.
pub(crate) struct Tables<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) queues: Queues<'c>,
    pub(crate) messages: Messages<'c>,
}

impl<'c> Tables<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self {
            connection,
            queues: Queues::new(connection),
            messages: Messages::new(connection),
        }
    }

    pub(crate) fn results(&self, now: i64) -> Results<'c> {
        let connection = self.connection;
        Results { connection, now }
    }

    pub(crate) fn clear(&mut self, queue: &QueueName) -> Result<()> {
        // After `clear`, what this transaction has put before would be counted for nothing.
        self.messages.counts.write()?;
        self.queues.clear(queue)
    }

    /// Replaces the metadata of a queue, unless messages are in groups that it would keep in another way.
    pub(crate) fn set_metadata(
        &mut self,
        queue: &QueueName,
        metadata: &str,
        now: i64,
    ) -> Result<()> {
        let Known {
            id,
            group_limit: before,
        } = self.queues.known(queue)?;
        let after = group_limit(metadata);
        let changes_kind = before.is_in_order() != after.is_in_order();
        if changes_kind && self.messages.groups.are_on(id)? {
            return Err(Failure::GroupsInUse);
        }
        self.queues.set_metadata(queue, metadata)?;
        if before != after {
            self.messages.groups.all_turns(id, now)?;
        }
        Ok(())
    }

    /// Executes a step, after the put of a message.
    fn step(&mut self, step: &Step, put: Option<MessageRef>, now: i64) -> Result<StepDone> {
        match step {
            Step::Put { queue, parcel } => {
                let queue = self.queues.known(queue)?;
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
                change,
                body,
            } => {
                let queue = self.queues.id(queue)?;
                self.messages
                    .update(queue, *handle, *change, body.as_ref(), now)
                    .map(StepDone::Updated)
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
                let swapped = self.results(now).swap(swap, put).map_err(of_record);
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

    /// Executes all steps or none. A refused step changes nothing itself; the savepoint undoes the steps before it.
    pub(crate) fn steps(&mut self, steps: &[Step], now: i64) -> Result<SmallVec<[StepDone; 1]>> {
        let connection = self.connection;
        if let [step] = steps {
            let done = self.step(step, None, now);
            let done = done.map_err(|failure| failure.of_step(0, step.queue()))?;
            return Ok(SmallVec::from([done]));
        }
        // A conflict is refused without a write, since a repeated submission of one message is common.
        if let [
            put @ Step::Put { queue, .. },
            Step::Swap { queue: named, swap },
        ] = steps
        {
            let known = self.queues.id(queue);
            known.map_err(|failure| failure.of_step(0, queue))?;
            let results = self.results(now);
            let checked = results.check(swap).map_err(of_record);
            let row = checked.map_err(|failure| failure.of_step(1, named))?;
            let done = self.step(put, None, now);
            let done = done.map_err(|failure| failure.of_step(0, queue))?;
            results.record_checked(swap, row, done.put())?;
            return Ok(SmallVec::from_iter([done, StepDone::Swapped]));
        }
        // A savepoint copies each page that is written.
        let has_savepoint = !steps.iter().skip(1).all(|step| self.is_never_refused(step));
        if has_savepoint {
            connection.execute_batch("SAVEPOINT apply")?;
        }
        let saved = self.messages.counts.save();
        let mut done = SmallVec::with_capacity(steps.len());
        let mut put = None;
        for (index, step) in steps.iter().enumerate() {
            match self.step(step, put, now) {
                Ok(step) => {
                    put = step.put().or(put);
                    done.push(step);
                }
                Err(failure) if failure.is_refusal() => {
                    if has_savepoint {
                        connection.execute_batch("ROLLBACK TO apply; RELEASE apply")?;
                    } else if index > 0 {
                        return Err(Failure::Corrupt("a queue has gone within a transaction"));
                    }
                    self.messages.counts.roll_back(saved);
                    return Err(failure.of_step(index, step.queue()));
                }
                Err(failure) => return Err(failure),
            }
        }
        if has_savepoint {
            connection.execute_batch("RELEASE apply")?;
        }
        Ok(done)
    }

    /// Whether a step after the first cannot be refused: a follow-up, above all.
    fn is_never_refused(&mut self, step: &Step) -> bool {
        match step {
            Step::Put { queue, parcel } => {
                parcel.attachment.is_none() && self.queues.known(queue).is_ok()
            }
            _ => false,
        }
    }
}

/// The failure of a step whose record is damaged, which is no failure of the file.
fn of_record(failure: Failure) -> Failure {
    match failure {
        Failure::Corrupt(_) => Failure::DamagedRecord,
        failure => failure,
    }
}

impl Step {
    pub(crate) fn put(queue: QueueName, mut message: NewMessage) -> Self {
        // By the salt's last bit, a test that asks what was submitted knows what was only moved.
        let salt = stored::new_salt(message.group.is_some(), message.tracked.is_some()) & !1
            | i64::from(message.moved);
        let attachment = message
            .attachment
            .take()
            .map(|attachment| match attachment {
                Attachment::New(data) => Attaching::Whole(data),
                Attachment::Of { queue, id } => {
                    let (seq, salt) = stored::parse_id(&id);
                    Attaching::Of { queue, seq, salt }
                }
            });
        let parcel = Parcel {
            salt,
            checksum: checksum(salt, &message.body),
            message,
            attachment,
        };
        Self::Put { queue, parcel }
    }

    fn update(
        queue: QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        change: Change,
        body: Option<Bytes>,
    ) -> Self {
        let handle = Handle::parse(id, receipt);
        Self::Update {
            queue,
            handle,
            change,
            body: body.map(|body| {
                let checksum = checksum(handle.salt, &body);
                (body, checksum)
            }),
        }
    }

    pub(crate) fn from_op(op: Op) -> Self {
        match op {
            Op::Put { queue, message } => Self::put(queue, message),
            Op::Renew {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => Self::update(queue, &id, &receipt, Change::Renew(visibility), body),
            Op::PutBack {
                queue,
                id,
                receipt,
                place,
                body,
            } => Self::update(queue, &id, &receipt, Change::PutBack(place), body),
            Op::Delete {
                queue, id, receipt, ..
            } => Self::Delete {
                queue,
                handle: Handle::parse(&id, &receipt),
            },
            Op::DeleteItems {
                queue,
                id,
                receipt,
                items,
                of,
            } => Self::DeleteItems {
                queue,
                handle: Handle::parse(&id, &receipt),
                items,
                of,
            },
            Op::Swap { queue, swap } => Self::Swap { queue, swap },
            _ => unreachable!("`apply` checks the operations before it sends them"),
        }
    }

    /// The attachment that is staged for the message that is put, if any.
    pub(crate) fn staged(&self) -> Option<i64> {
        match self {
            Self::Put { parcel, .. } => match parcel.attachment {
                Some(Attaching::Staged(id)) => Some(id),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn is_put(&self) -> bool {
        matches!(self, Self::Put { .. })
    }

    pub(crate) fn queue(&self) -> &QueueName {
        match self {
            Self::Put { queue, .. }
            | Self::Update { queue, .. }
            | Self::Delete { queue, .. }
            | Self::DeleteItems { queue, .. }
            | Self::Swap { queue, .. } => queue,
        }
    }
}

impl StepDone {
    /// The message that was put, if the step was a put.
    pub(crate) fn put(&self) -> Option<MessageRef> {
        match self {
            Self::Put(placed) => Some((placed.seq, placed.salt)),
            _ => None,
        }
    }

    pub(crate) fn into_outcome(self) -> OpOutcome {
        match self {
            Self::Put(placed) => OpOutcome::Put(placed.into_receipt()),
            Self::Updated(updated) => OpOutcome::Updated(updated.into_lease()),
            Self::Deleted => OpOutcome::Deleted,
            Self::Swapped => OpOutcome::Swapped,
        }
    }
}

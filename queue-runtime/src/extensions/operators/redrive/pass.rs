use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{ApplyError, Atomicity, Groups, MessageState, Op, PopReceipt, StorageId};
use queue_core::envelope::{Envelope, PoisonRecord};
use queue_core::wire::{Body, Event};
use queue_core::{
    ClientId, Error, ErrorKind, MessageId, Operation, Outcome, QueueName, RetryAdvice, Timestamp,
};

use super::super::cancelled;
use super::Redrive;
use super::report::{RedriveError, RedriveOutcome, RedriveStep, Redriven};
use crate::kernel::attachment::moved;
use crate::kernel::clock::Pace;
use crate::kernel::notify::Announced;
use crate::kernel::repeat::Repeats;
use crate::kernel::send::take_again;

/// One pass over a poison queue.
pub(super) struct RedrivePass<'r> {
    pub(super) redrive: &'r Redrive,
    pub(super) counts: Redriven,
    dry: bool,
    moved: HashSet<Identity>,
    pace: Pace,
}

/// A message of the poison queue, with the right to move it.
pub(super) struct Candidate {
    pub(super) id: StorageId,
    receipt: PopReceipt,
    body: Body,
    /// The body as it is stored, unless it is damaged.
    stored: Option<Bytes>,
    /// When the lease of a received message ends, on the monotonic clock.
    pub(super) leased_until: Duration,
}

/// A message to be moved, or to be deleted if a copy of it is moved before.
pub(super) struct Move {
    item: Candidate,
    put: Put,
}

/// What to put, and where.
struct Put {
    queue: QueueName,
    body: Bytes,
    /// `None` if copies are not recognised.
    identity: Option<Identity>,
    /// Whether the move to the poison queue has left the message only a key that it held.
    is_key_proven: bool,
}

/// What has become of a message that was to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveEnd {
    /// The message was moved or deleted, or another consumer has it.
    Gone,
    /// The message stays on the poison queue, with the same receipt.
    Left,
}

impl<'r> RedrivePass<'r> {
    pub(super) fn new(redrive: &'r Redrive, dry: bool) -> Self {
        Self {
            redrive,
            counts: Redriven::default(),
            dry,
            moved: HashSet::new(),
            pace: Pace::new(redrive.interval),
        }
    }

    /// Returns a message of the poison queue that is not leased.
    pub(super) fn item(
        &self,
        id: StorageId,
        receipt: PopReceipt,
        (body, damage): (Bytes, Option<&str>),
    ) -> Candidate {
        let limit = self.redrive.context.backend.capabilities().max_moved_body;
        Candidate {
            body: Body::of_stored(&body, damage, limit),
            stored: damage.is_none().then_some(body),
            id,
            receipt,
            leased_until: Duration::MAX,
        }
    }

    /// Returns the move of a message, or reports that it stays on the poison queue.
    ///
    /// # Errors
    /// If the pass must stop.
    pub(super) async fn plan(
        &mut self,
        item: Candidate,
        now: Timestamp,
    ) -> Result<Option<Move>, RedriveError> {
        let outcome = match self.put(&item, now) {
            Ok(_) if self.is_cancelled(&item).await? => RedriveOutcome::Cancelled,
            Ok(put) => return Ok(Some(Move { item, put })),
            Err(outcome) => outcome,
        };
        self.report(&item, &outcome);
        Ok(None)
    }

    /// Whether the message is a copy of one that was cancelled.
    async fn is_cancelled(&self, item: &Candidate) -> Result<bool, RedriveError> {
        let stored = item
            .stored
            .as_ref()
            .filter(|_| !self.redrive.moves_cancelled);
        let (Some(id), Some(record)) = (stored.and_then(Body::tracked), item.body.poison()) else {
            return Ok(false);
        };
        let asked = cancelled::is(&self.redrive.context, &id, record.first).await;
        asked.map_err(|error| self.stopped(error, 0))
    }

    fn put(&self, item: &Candidate, now: Timestamp) -> Result<Put, RedriveOutcome> {
        let restored = match &item.body {
            Body::Event(event) => self.restored(event),
            Body::Bare(_) | Body::Malformed(_) => None,
        };
        let Some((event, record, queue, body)) = restored else {
            let (queue, body) = self.unrecorded(item).ok_or(RedriveOutcome::WithoutRecord)?;
            check_destination(&queue)?;
            return Ok(Put {
                queue,
                body,
                identity: None,
                is_key_proven: false,
            });
        };
        if !self.redrive.filters.admit(event, &record, now) {
            return Err(RedriveOutcome::Filtered);
        }
        check_destination(&queue)?;
        if !self.redrive.destinations.contains(&queue) {
            return Err(RedriveOutcome::NotAllowed(queue));
        }
        Ok(Put {
            queue,
            body,
            is_key_proven: !record.raw,
            identity: Some(Identity::of(&event.envelope, record)),
        })
    }

    /// Returns where to put a message without a record, if it is to be moved.
    fn unrecorded(&self, item: &Candidate) -> Option<(QueueName, Bytes)> {
        let queue = self.redrive.unrecorded_to.as_ref();
        let queue = queue.filter(|_| self.redrive.filters.admit_all())?;
        Some((queue.clone(), item.stored.clone()?))
    }

    fn restored<'e>(
        &self,
        event: &'e Event,
    ) -> Option<(&'e Event, PoisonRecord, QueueName, Bytes)> {
        let record = event.envelope.poison.clone()?;
        let queue = record.queue.parse().ok()?;
        let earlier = if self.redrive.keeps_attempts {
            record.attempts
        } else {
            0
        };
        let body = self.redrive.context.encoder.restore(event, earlier)?;
        Some((event, record, queue, body))
    }

    /// Counts and reports what happened to a message.
    pub(super) fn report(&mut self, item: &Candidate, outcome: &RedriveOutcome) {
        self.counts.count(outcome);
        if let Some(observer) = &self.redrive.observer {
            observer(&RedriveStep {
                storage_id: &item.id,
                envelope: item.body.envelope(),
                outcome,
            });
        }
    }

    /// Moves several messages, in one step if the storage allows it.
    ///
    /// # Errors
    /// If not all messages can be accounted for.
    pub(super) async fn move_all(&mut self, moves: Vec<Move>) -> Result<(), RedriveError> {
        if self.dry {
            moves.iter().for_each(|one| self.done(one));
            return Ok(());
        }
        if moves.len() > 1 && self.is_atomic() {
            let Err((error, _)) = self.apply_all(&moves, Duration::MAX).await else {
                return Ok(());
            };
            if error.outcome() == Outcome::Unknown || error.retry() != RetryAdvice::Permanent {
                return Err(self.stopped(error, moves.len()));
            }
            // One message failed the whole step: move them one by one.
        }
        for one in &moves {
            self.wait().await;
            self.move_one(one).await?;
        }
        Ok(())
    }

    /// Moves one message, which an error without [unknown](RedriveError::unknown) messages leaves as [`MoveEnd::Left`]
    /// does.
    ///
    /// # Errors
    /// If the pass must stop.
    pub(super) async fn move_one(&mut self, one: &Move) -> Result<MoveEnd, RedriveError> {
        let until = one.item.leased_until;
        if !self.is_atomic() && self.redrive.context.clock.monotonic() >= until {
            // Another redrive may be moving the message.
            self.counts.unseen += 1;
            return Ok(MoveEnd::Left);
        }
        let Err((error, was_put)) = self.apply_all(std::slice::from_ref(one), until).await else {
            return Ok(MoveEnd::Gone);
        };
        match error.kind() {
            // Without the lease nobody can tell whether the poison queue still has the message; its own queue does.
            _ if error.is_lease_gone() && was_put => self.done(one),
            _ if error.is_lease_gone() => self.report(&one.item, &RedriveOutcome::Taken),
            ErrorKind::TooLarge | ErrorKind::InvalidInput | ErrorKind::Unsupported
                if !was_put && error.outcome() == Outcome::NotDone =>
            {
                self.report(&one.item, &RedriveOutcome::Refused(error));
                return Ok(MoveEnd::Left);
            }
            ErrorKind::Conflict => {
                let error = error.with_detail(
                    "another message holds its unique key, or the record of the key cannot be read",
                );
                self.report(&one.item, &RedriveOutcome::Refused(error));
                return Ok(MoveEnd::Left);
            }
            _ => {
                let mut stopped = self.stopped(error, 1);
                // The message is on its own queue, and may be on the poison queue still.
                stopped.unknown = stopped.unknown.max(usize::from(was_put));
                return Err(stopped);
            }
        }
        Ok(MoveEnd::Gone)
    }

    /// Applies moves together, and tries again until `until` while they were certainly not carried out.
    ///
    /// # Errors
    /// The error of the last try, and whether a message was put on its own queue by then.
    async fn apply_all(&mut self, moves: &[Move], until: Duration) -> Result<(), (Error, bool)> {
        let (mut ops, mut in_step, mut was_put) = (Vec::new(), HashSet::new(), false);
        for one in moves {
            let identity = one.put.identity.as_ref();
            let is_copy = identity
                .is_some_and(|identity| self.moved.contains(identity) || !in_step.insert(identity));
            ops.extend(self.ops(one, is_copy));
        }
        let repeats = self.repeats(until);
        let mut repeats = repeats.creating(&self.redrive.context.creations);
        loop {
            let Err(failed) = self.apply(ops.clone()).await else {
                moves.iter().for_each(|one| self.done(one));
                return Ok(());
            };
            let at_key = matches!(ops.get(failed.index), Some(Op::Swap { .. }));
            if !self.is_atomic() && failed.index > 0 {
                was_put |= matches!(ops[0], Op::Put { .. });
                ops.drain(..failed.index);
            }
            let error = match failed.error {
                // Nobody knows whose a key is if its record cannot be read.
                error if at_key && error.kind() == ErrorKind::Corrupt => {
                    let conflict = Error::new(ErrorKind::Conflict, error.operation());
                    conflict.with_outcome(error.outcome()).with_source(error)
                }
                error => error,
            };
            if error.outcome() == Outcome::Unknown || self.is_own_queue_gone(&error) {
                return Err((error, was_put));
            }
            let again = repeats.put_again(error).await;
            again.map_err(|error| (error, was_put))?;
        }
    }

    fn is_atomic(&self) -> bool {
        self.redrive.context.backend.capabilities().atomicity == Atomicity::Atomic
    }

    /// Returns whether the error is that the poison queue does not exist: created again, it would be empty.
    fn is_own_queue_gone(&self, error: &Error) -> bool {
        error.is_queue_gone()
            && error
                .queue()
                .is_none_or(|queue| *queue == self.redrive.queue)
    }

    /// Carries out an operation on the poison queue, and repeats it if it changes nothing or was certainly not carried
    /// out.
    ///
    /// # Errors
    /// If the pass must stop.
    pub(super) async fn ask<T, F>(&self, operation: impl Fn() -> F) -> Result<T, RedriveError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let repeats = self.repeats(Duration::MAX);
        let asked = repeats.ask(operation, |error| self.is_own_queue_gone(error));
        asked.await.map_err(|error| self.stopped(error, 0))
    }

    fn repeats(&self, until: Duration) -> Repeats<'r> {
        let context = &self.redrive.context;
        Repeats::until(until, &context.storage_retry, &*context.clock)
    }

    pub(super) async fn wait(&mut self) {
        self.pace.wait(&*self.redrive.context.clock).await;
    }

    fn done(&mut self, one: &Move) {
        let identity = one.put.identity.clone();
        let is_first = identity.is_none_or(|identity| self.moved.insert(identity));
        let outcome = if is_first {
            RedriveOutcome::Redriven(one.put.queue.clone())
        } else {
            RedriveOutcome::Duplicate
        };
        self.report(&one.item, &outcome);
    }

    fn ops(&self, one: &Move, is_copy: bool) -> Vec<Op> {
        let (context, id) = (&self.redrive.context, &one.item.id);
        let put = (!is_copy).then(|| Op::Put {
            queue: one.put.queue.clone(),
            message: moved(context, &self.redrive.queue, id, one.put.body.clone())
                .with_group(self.group(&one.put.body).as_deref()),
        });
        let delete = Op::Delete {
            queue: self.redrive.queue.clone(),
            id: one.item.id.clone(),
            receipt: one.item.receipt.clone(),
            moved: true,
        };
        let key = put
            .as_ref()
            .filter(|_| one.put.is_key_proven)
            .and_then(|_| take_again(context, &one.put.queue, &one.put.body));
        put.into_iter().chain([delete]).chain(key).collect()
    }

    /// Returns the group of a message, which foreign events may have where the storage keeps none.
    fn group(&self, body: &Bytes) -> Option<Box<str>> {
        match self.redrive.context.backend.capabilities().groups {
            Groups::Supported => Body::group(body),
            _ => None,
        }
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<(), ApplyError> {
        let context = &self.redrive.context;
        let applied = context.backend.apply(ops.clone().into()).await;
        // Even after an error messages may have been put.
        context.notifiers.publish(Announced::puts_of(&ops));
        applied.map(drop)
    }

    /// Returns the error that ends the pass. `involved` messages were part of the operation that failed.
    pub(super) fn stopped(&self, error: Error, involved: usize) -> RedriveError {
        let is_unknown = error.outcome() == Outcome::Unknown;
        RedriveError {
            so_far: self.counts,
            unknown: if is_unknown { involved } else { 0 },
            error,
        }
    }
}

/// Refuses reply queues: their owner deletes what it has not asked for, and without an owner nobody cleans them up.
fn check_destination(queue: &QueueName) -> Result<(), RedriveOutcome> {
    if !queue.is_reply_queue() {
        return Ok(());
    }
    let error = Error::new(ErrorKind::InvalidInput, Operation::Put)
        .with_queue(queue)
        .with_detail("a redrive puts nothing on a reply queue");
    Err(RedriveOutcome::Refused(error))
}

/// What identifies a poisoned message: equal for its copies, different for all others.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity {
    queue: String,
    storage_id: String,
    /// `None` if the message is inside an event of whoever moved it, and each copy may have been moved by somebody
    /// else.
    client: Option<ClientId>,
    id: MessageId,
}

impl Identity {
    fn of(envelope: &Envelope, record: PoisonRecord) -> Self {
        Self {
            client: (!record.raw).then(|| envelope.client_id.clone()),
            queue: record.queue,
            storage_id: record.storage_id,
            id: envelope.id.clone(),
        }
    }
}

/// The most messages that are moved in one step.
const STEP: usize = 32;

/// Looks at all messages that are on the queue at the start.
pub(super) async fn browse(pass: &mut RedrivePass<'_>) -> Result<(), RedriveError> {
    let redrive = pass.redrive;
    let step = redrive.interval.map_or(STEP, |_| 1);
    let backend = &redrive.context.backend;
    let most = backend.capabilities().max_receive;
    let properties = pass.ask(|| backend.properties(&redrive.queue)).await?;
    // Redriven messages may fail and come back: the number at the start, and the time, bound the pass.
    let (mut unseen, mut start, mut from) = (properties.approximate_count, None, None);
    while unseen > 0 {
        let page = pass.ask(|| backend.browse(&redrive.queue, from.as_ref(), most));
        let page = page.await?;
        let start = *start.get_or_insert(page.now);
        let mut moves = Vec::new();
        for message in page.messages {
            if unseen == 0 || message.inserted_at > start {
                continue;
            }
            unseen -= 1;
            let body = (message.body, message.damage.as_deref());
            let item = pass.item(message.id, message.receipt, body);
            if message.state != MessageState::Visible {
                pass.report(&item, &RedriveOutcome::Hidden);
                continue;
            }
            moves.extend(pass.plan(item, page.now).await?);
        }
        while !moves.is_empty() {
            let rest = moves.split_off(step.min(moves.len()));
            pass.move_all(moves).await?;
            moves = rest;
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    Ok(())
}

//! Completing a message within a transaction of the application's, and learning its outcome.

use std::ops::ControlFlow;
use std::sync::Arc;

use queue_core::backend::{
    Completion, Finish, NewMessage, PutReceipt, StorageTransaction, Swap, Token, Transactions,
    Writes,
};
use queue_core::envelope::Envelope;
use queue_core::{Error, ErrorKind, FollowUp, Operation, QueueName};

use super::incoming::{Incoming, Meta};
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::lease::{CompletedItem, Completer, Promise};
use crate::kernel::repeat::Repeats;
use crate::kernel::send::{Role, Unreplied, announce_later, encode_follow_ups, release, write};
use crate::kernel::settlement::{
    MIN_PATIENCE, Recorded, SettleProblem, leave_out_replies, no_answer,
};

/// The completion of a message with its follow-ups, to be written within a transaction.
pub(super) struct CompletionWrites {
    context: Arc<Context>,
    completer: Completer,
    meta: Meta,
    puts: Vec<(QueueName, NewMessage)>,
    finish: Option<Finish>,
    release: Option<Swap>,
    token: Token,
    /// If the message is an item of a pack.
    item: Option<CompletedItem>,
}

impl CompletionWrites {
    /// Encodes the follow-ups, the first of which has this ordinal.
    pub(super) fn new(
        context: &Arc<Context>,
        completer: &Completer,
        envelope: &Envelope,
        meta: Meta,
        (follow_ups, first): (&[FollowUp], u32),
        finish: Option<&Finish>,
    ) -> Result<Self, SettleProblem> {
        let puts = encode_follow_ups(context, envelope, follow_ups, Role::Handler, first);
        let mut puts = puts.map_err(|refusal| {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Apply).with_source(refusal);
            SettleProblem::NotDone(error)
        })?;
        let finish = finish.map(|finish| recording_replies(finish, &puts));
        Unreplied::Completed.tell(context, envelope, &mut puts);
        let abandoned = completer.check();
        let ((queue, id), receipt) = (completer.message(), completer.receipt());
        let item = || {
            context
                .packs
                .completed_item(queue, id, &receipt)
                .transpose()
        };
        let item = abandoned.and_then(|()| item());
        let item = item.map_err(|error| not_written(context, completer, meta, error))?;
        Ok(Self {
            context: Arc::clone(context),
            completer: completer.clone(),
            meta,
            puts,
            finish,
            release: release(context, envelope),
            token: Token::random(),
            item,
        })
    }

    /// Writes within the transaction, and passes the result through `then`.
    pub(super) fn write<E, T, O, F>(self, transaction: T, then: F) -> T::Output<O>
    where
        E: Transactions,
        T: StorageTransaction<E>,
        O: Send + 'static,
        F: FnOnce(Result<(), SettleProblem>) -> O + Send + 'static,
    {
        let context = Arc::clone(&self.context);
        write(&context, transaction, Then { writes: self, then })
    }

    /// Handles the result of one try. Continues without the replies that nobody waits for.
    fn written(
        mut self,
        written: Result<Vec<PutReceipt>, Error>,
    ) -> ControlFlow<Result<(), SettleProblem>, Self> {
        let Err(error) = written else {
            self.completer.promise(self.token);
            announce_later(&self.context, &self.puts);
            return ControlFlow::Break(Ok(()));
        };
        if leave_out_replies(self.completer.message(), &mut self.puts, &error) {
            return ControlFlow::Continue(self);
        }
        let problem = not_written(&self.context, &self.completer, self.meta, error);
        ControlFlow::Break(Err(problem))
    }
}

struct Then<F> {
    writes: CompletionWrites,
    then: F,
}

impl<O, F> Writes for Then<F>
where
    O: Send + 'static,
    F: FnOnce(Result<(), SettleProblem>) -> O + Send + 'static,
{
    type Output = O;

    fn puts(&self) -> &[(QueueName, NewMessage)] {
        &self.writes.puts
    }

    fn completion(&self) -> Option<Completion<'_>> {
        let CompletionWrites {
            completer,
            meta,
            token,
            finish,
            release,
            item,
            ..
        } = &self.writes;
        let recorded = (finish.clone(), release.clone());
        Some(completer.completion(meta.dequeue_count, *token, recorded, item.as_ref()))
    }

    fn written(self, written: Result<Vec<PutReceipt>, Error>) -> ControlFlow<O, Self> {
        let Self { writes, then } = self;
        match writes.written(written) {
            ControlFlow::Break(completed) => ControlFlow::Break(then(completed)),
            ControlFlow::Continue(writes) => ControlFlow::Continue(Self { writes, then }),
        }
    }
}

/// Returns why nothing was written: the message or its lease is gone, or the storage refuses.
fn not_written(
    context: &Context,
    completer: &Completer,
    meta: Meta,
    error: Error,
) -> SettleProblem {
    let (queue, _) = completer.message();
    let is_own_queue_missing =
        error.kind() == ErrorKind::QueueNotFound && error.queue() == Some(queue);
    if !error.is_lease_gone() && !is_own_queue_missing {
        return SettleProblem::NotDone(error);
    }
    let now = context.clock.monotonic();
    let is_claim_lost = error.operation() == Operation::Idempotency;
    let is_expired = |expiry| now >= completer.storage_time().latest(expiry);
    if !is_claim_lost && meta.expires_at.is_some_and(is_expired) {
        SettleProblem::Expired(error)
    } else {
        SettleProblem::LeaseLost(error)
    }
}

/// Returns what is recorded for the key of the message: its replies, which a later request for the same work gets too.
/// The other follow-ups are in the same transaction, so a duplicate need not store them again.
fn recording_replies(finish: &Finish, puts: &[(QueueName, NewMessage)]) -> Finish {
    let replies = puts.iter().filter(|(queue, _)| queue.is_reply_queue());
    let mut finish = finish.clone();
    finish.result = Recorded::encode(&replies.cloned().collect::<Vec<_>>());
    finish
}

/// Returns what became of the transaction that completed the message, if there was one. Waits for its end, as long as
/// the lease may last, and at least two seconds.
pub(crate) async fn outcome(
    context: &Context,
    incoming: &Incoming,
) -> Result<Promise, SettleProblem> {
    if !incoming.lease.is_promised() {
        return Ok(Promise::None);
    }
    let clock = &*context.clock;
    let mut locked = incoming.lease.lock().await;
    let patience = locked.remaining().max(MIN_PATIENCE);
    let give_up_at = clock.monotonic().saturating_add(patience);
    let mut repeats = Repeats::within_lease(give_up_at, clock);
    loop {
        let concluded = ready_by(clock, give_up_at, locked.conclude()).await;
        let concluded = concluded.unwrap_or_else(|| Err(no_answer(&incoming.lease)));
        match concluded {
            Ok(Promise::Committed) => {
                let (queue, id) = (incoming.lease.queue(), incoming.lease.id());
                context.packs.completed(queue, id).await;
                incoming.leave_claim();
                return Ok(Promise::Committed);
            }
            Ok(promise) => return Ok(promise),
            Err(error) => repeats.pause(error).await.map_err(SettleProblem::Unknown)?,
        }
    }
}

/// Returns the error of a transaction that was not committed.
pub(super) fn not_committed(incoming: &Incoming) -> SettleProblem {
    let error = Error::new(ErrorKind::NotCommitted, Operation::Delete);
    SettleProblem::NotDone(error.with_queue(incoming.lease.queue()))
}

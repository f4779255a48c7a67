//! Completing a message within a transaction of the application's, and learning its outcome.

use std::any::Any;
use std::sync::Arc;

use queue_core::backend::{Finish, NewMessage};
use queue_core::envelope::Envelope;
use queue_core::{Error, ErrorKind, FollowUp, Operation, QueueName};

use super::incoming::{Incoming, Meta};
use super::recorded;
use super::settle::{MIN_PATIENCE, leave_out_replies, no_answer};
use super::settled::SettleProblem;
use crate::clock::ready_by;
use crate::context::Context;
use crate::lease::{Completer, Promise};
use crate::repeat::Repeats;
use crate::send::{Role, Unreplied, announce_later, encode_follow_ups, release};

/// Why an attempt has failed whose handler returned as if its transaction was committed.
pub(crate) const NOT_COMMITTED: &str =
    "the transaction in which the message was completed was not committed";

/// Completes the message and submits follow-ups, the first of which has this ordinal, within the transaction that is
/// open on the connection.
pub(super) fn complete_in(
    context: &Arc<Context>,
    completer: &Completer,
    envelope: &Envelope,
    meta: Meta,
    connection: &dyn Any,
    (follow_ups, first): (&[FollowUp], u32),
    finish: Option<&Finish>,
) -> Result<(), SettleProblem> {
    let puts = encode_follow_ups(context, envelope, follow_ups, Role::Handler, first);
    let mut puts = puts.map_err(|refusal| {
        let error = Error::new(ErrorKind::InvalidInput, Operation::Apply).with_source(refusal);
        SettleProblem::NotDone(error)
    })?;
    let finish = finish.map(|finish| recording_replies(finish, &puts));
    Unreplied::Completed.tell(context, envelope, &mut puts);
    let release = release(context, envelope);
    loop {
        let recorded = (finish.clone(), release.clone());
        let completed = completer.complete_in(connection, meta.dequeue_count, &puts, recorded);
        let Err(error) = completed else {
            announce_later(context, &puts);
            return Ok(());
        };
        if leave_out_replies(completer.message(), &mut puts, &error) {
            continue;
        }
        return Err(not_written(context, completer, meta, error));
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
    finish.result = recorded::encode(&replies.cloned().collect::<Vec<_>>());
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

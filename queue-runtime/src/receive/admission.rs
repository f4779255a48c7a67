//! Deciding whether a received message is handled. It is not if it was completed before, has no attempts
//! left, or does not decode; such a message is settled here.

use std::sync::Arc;

use queue_core::envelope::{AttemptRecord, PoisonReason};
use queue_core::{DecodeError, Error, ErrorKind, Operation};

use super::attempts::{Verdict, judge_bare};
use super::consumer::Consumer;
use super::incoming::Incoming;
use super::poison::poison;
use super::put_back;
use super::settle::lost;
use super::settled::{SettleProblem, Settled};
use super::unreplied::delete_and_tell;
use crate::context::Context;
use crate::lease::Purpose;
use crate::panic;
use crate::send::Unreplied;

/// The decision on a received message.
#[derive(Debug)]
pub(crate) enum Admission<T> {
    /// The message is to be handled.
    Handle(T),
    /// The message is not to be handled. The result is that of settling it.
    Refused(Result<Settled, SettleProblem>),
}

/// Decides on a message, and decodes it with `decode` if it is to be handled.
///
/// Whatever else may happen is boxed: it is rare, and its state would be a part of every message's.
pub(crate) async fn admit<T>(
    context: &Context,
    consumer: &Consumer,
    incoming: &mut Incoming,
    decode: impl FnOnce(&Incoming) -> Result<T, DecodeError>,
) -> Admission<T> {
    if context
        .completed
        .contains(&consumer.queue, incoming.lease.id())
    {
        let (purpose, puts) = (Purpose::Complete { follow_ups: 0 }, Vec::new());
        // A reply that its handler gave is stored, and is the answer.
        let deleted = delete_and_tell(context, incoming, purpose, puts, &Unreplied::Completed);
        let deleted = Box::pin(deleted).await.map_err(SettleProblem::from);
        return Admission::Refused(deleted.map(|()| Settled::Completed));
    }
    if let Err(problem) = renew_if_overdue(context, incoming).await {
        return Admission::Refused(Err(problem));
    }
    if let Some(damage) = &incoming.damage {
        let (reason, error) = (PoisonReason::Damaged, Some(damage.to_string()));
        let poisoned = poison(context, consumer, incoming, reason, error);
        return Admission::Refused(Box::pin(poisoned).await);
    }
    let mut unmarked = None;
    match incoming.verdict {
        Verdict::Run { mark: false, .. } => {}
        Verdict::Run {
            mark: true,
            attempt,
        } => match Box::pin(mark_last_chance(context, incoming)).await {
            Ok(Mark::Tried) => {}
            Ok(Mark::NoRoom) => unmarked = Some(judge_bare(attempt, incoming.settings.threshold)),
            Err(problem) => return Admission::Refused(Err(problem)),
        },
        Verdict::Poison { reason, attempts } => {
            let refused = out_of_attempts(context, consumer, incoming, reason, attempts);
            return Admission::Refused(Box::pin(refused).await);
        }
    }
    // Before decoding, which may be what ends the process each time. Not if the version is newer: receives that
    // postponed the message were no attempts.
    let is_newer = incoming.envelope.version > consumer.message_type.version();
    if let Some(verdict @ Verdict::Poison { reason, attempts }) = unmarked
        && !is_newer
    {
        incoming.verdict = verdict;
        let refused = out_of_attempts(context, consumer, incoming, reason, attempts);
        return Admission::Refused(Box::pin(refused).await);
    }
    match panic::catch(|| decode(incoming)) {
        Ok(Ok(decoded)) => {
            // The process may have been stopped since the lease was looked at.
            match renew_if_overdue(context, incoming).await {
                Ok(()) => Admission::Handle(decoded),
                Err(problem) => Admission::Refused(Err(problem)),
            }
        }
        Ok(Err(error)) => {
            let refused = undecodable(context, consumer, incoming, &error);
            Admission::Refused(Box::pin(refused).await)
        }
        Err(panic) => {
            let error = format!("decoding panicked: {panic}").into();
            let failed = put_back::fail(context, consumer, incoming, None, &error);
            Admission::Refused(Box::pin(failed).await)
        }
    }
}

/// Moves a message that gets no further attempt to the poison queue.
async fn out_of_attempts(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    reason: PoisonReason,
    attempts: u32,
) -> Result<Settled, SettleProblem> {
    let record = &incoming.envelope.attempts;
    let error = match reason {
        PoisonReason::Crashed => Some(crashed(attempts, record)),
        _ => record.last_error.clone(),
    };
    let moved = poison(context, consumer, incoming, reason, error).await;
    if put_back::is_not_done(&moved) {
        put_back::keep_judged(context, consumer, incoming).await;
    }
    moved
}

/// Returns the error of a message of which not all attempts have left a record.
fn crashed(attempts: u32, record: &AttemptRecord) -> String {
    let with_a_record = record.failures.saturating_add(record.earlier);
    let without = attempts.saturating_sub(with_a_record);
    let text = format!("{without} attempts ended without a record, as when a process is killed");
    match &record.last_error {
        Some(error) if record.failures > 0 => {
            let failures = record.failures;
            format!("{text}; {failures} failed, the last one with: {error}")
        }
        _ => text,
    }
}

/// Renews a lease that may have ended, as after a stop of the process, so that no handler starts on it.
pub(super) async fn renew_if_overdue(
    context: &Context,
    incoming: &Incoming,
) -> Result<(), SettleProblem> {
    if !incoming.lease.is_overdue() {
        return Ok(());
    }
    let renewed = finish(context, incoming, incoming.lease.renew_if_overdue());
    // Boxed, because it is rare.
    Box::pin(renewed).await.map_err(|error| match error {
        error if error.is_lease_gone() => lost(context, incoming, error),
        error => SettleProblem::NotDone(error),
    })
}

/// Runs an update of the lease to its end even if the consumer is dropped meanwhile, so that the message can
/// still be handed back.
async fn finish(
    context: &Context,
    incoming: &Incoming,
    update: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> Result<(), Error> {
    let finished = context.background.finish(update).await;
    finished.unwrap_or_else(|| {
        let closed = Error::new(ErrorKind::Closed, Operation::Update);
        Err(closed.with_queue(incoming.lease.queue()))
    })
}

/// Postpones a message from a newer program; moves any other that does not decode to the poison queue.
async fn undecodable(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    error: &DecodeError,
) -> Result<Settled, SettleProblem> {
    let text = queue_core::internal::error_chain(error);
    match error {
        DecodeError::NewerVersion { .. } => {
            put_back::postpone(context, consumer, incoming, text).await
        }
        _ => {
            let reason = PoisonReason::Undecodable;
            poison(context, consumer, incoming, reason, Some(text)).await
        }
    }
}

/// Whether the mark of the last chance could be asked for.
enum Mark {
    Tried,
    /// The body has no room for it.
    NoRoom,
}

/// Marks a message as on its last chance. If the mark fails, or its outcome is unknown, the handler still
/// runs, within the remaining lease. Only a lost lease is an error.
async fn mark_last_chance(
    context: &Context,
    incoming: &mut Incoming,
) -> Result<Mark, SettleProblem> {
    let mut record = incoming.envelope.attempts.clone();
    record.last_chance = true;
    let Some(body) = incoming.rewritten(context, &record) else {
        return Ok(Mark::NoRoom);
    };
    let marked = finish(context, incoming, incoming.lease.rewriter().rewrite(body)).await;
    match marked {
        Ok(()) => {
            Arc::make_mut(&mut incoming.envelope).attempts = record;
            Ok(Mark::Tried)
        }
        Err(error) if error.is_lease_gone() => Err(lost(context, incoming, error)),
        Err(error) => {
            let (queue, id) = (incoming.lease.queue(), &incoming.envelope.id);
            tracing::warn!(%queue, %id, %error, "failed to mark a message as on its last chance");
            Ok(Mark::Tried)
        }
    }
}

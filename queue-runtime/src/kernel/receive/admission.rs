//! Deciding whether a received message is handled: one that was completed before, has no attempts left, or does not
//! decode is not, and is settled here. Data that a body does not have is fetched before decoding.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::envelope::{AttemptRecord, PoisonReason};
use queue_core::idempotency::WorkKey;
use queue_core::internal::error_chain;
use queue_core::{DecodeError, DecodeErrorKind, Error, ErrorKind, Operation};

use super::attempts::{AttemptVerdict, judge_bare};
use super::consumer::Consumer;
use super::incoming::Incoming;
use crate::kernel::context::Context;
use crate::kernel::panic;
use crate::kernel::send::submitted_again;
use crate::kernel::settlement::{
    End, RecordedFollowUps, SettleErrorKind, Settled, Settling, fingerprint, lost,
};

/// Whether a message may be handled, as far as can be said without asking anybody. [`admit`] decides.
pub(crate) fn is_admissible(context: &Context, consumer: &Consumer, incoming: &Incoming) -> bool {
    let was_completed = || {
        let id = incoming.lease.id();
        context.completed.contains(&consumer.queue, id)
    };
    matches!(incoming.verdict, AttemptVerdict::Run { .. })
        && incoming.damage.is_none()
        && incoming.not_due(context).is_none()
        && consumer.serves.position(&incoming.body).is_some()
        && !was_completed()
}

/// Whether a message can be decoded before it is admitted. A message that may have ended processes cannot, because its
/// last chance is marked when it is admitted.
pub(crate) fn can_decode_early(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
) -> bool {
    let is_unsuspected = matches!(incoming.verdict, AttemptVerdict::Run { mark: false, .. });
    is_unsuspected && is_admissible(context, consumer, incoming)
}

/// Decides whether a message gets an attempt, of which fetching its data, decoding and handling it are parts: each may
/// end the process.
///
/// Whatever is rare is boxed: its state would be a part of every message's.
pub(crate) async fn admit(
    context: &Context,
    consumer: &Consumer,
    incoming: &mut Incoming,
) -> Result<(), Refusal> {
    if context
        .completed
        .contains(&consumer.queue, incoming.lease.id())
    {
        // The message's follow-ups are stored, and so is a reply that its handler gave.
        let settling = Settling::new(context, consumer, incoming);
        let again = Box::pin(settling.complete_again(Vec::new(), 0)).await;
        return Err(Refusal::Settled(again));
    }
    if let Some(after) = incoming.not_due(context) {
        return Err(postponed(after, "the message is not due yet"));
    }
    renew_if_overdue(context, incoming).await?;
    if let Some(damage) = &incoming.damage {
        let end = End::Unusable {
            reason: PoisonReason::Damaged,
            error: Some(damage.to_string()),
        };
        return Err(refuse(context, consumer, incoming, end).await);
    }
    let mut unmarked = None;
    match incoming.verdict {
        AttemptVerdict::Run { mark: false, .. } => {}
        AttemptVerdict::Run {
            mark: true,
            attempt,
        } => match Box::pin(mark_last_chance(context, incoming)).await {
            Ok(Mark::Tried) => {}
            Ok(Mark::NoRoom) => unmarked = Some(judge_bare(attempt, incoming.threshold)),
            Err(problem) => return Err(problem.into()),
        },
        AttemptVerdict::Poison { reason, attempts } => {
            let end = out_of_attempts(incoming, reason, attempts);
            return Err(refuse(context, consumer, incoming, end).await);
        }
    }
    // A message of a newer version is exempt: it was postponed each time, which is not an attempt.
    let is_newer = |incoming: &Incoming| {
        let message_type = consumer.serves.of_body(&incoming.body);
        message_type.is_some_and(|one| incoming.envelope.version > one.version())
    };
    if let Some(verdict @ AttemptVerdict::Poison { reason, attempts }) = unmarked
        && !is_newer(incoming)
    {
        incoming.verdict = verdict;
        let end = out_of_attempts(incoming, reason, attempts);
        return Err(refuse(context, consumer, incoming, end).await);
    }
    Ok(())
}

/// Decodes a message that is admitted, and sees to it that its lease holds.
pub(crate) async fn decode<T>(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    decode: impl FnOnce(&Incoming) -> Result<T, DecodeError>,
) -> Result<T, Refusal> {
    let end = match panic::catch(|| decode(incoming)) {
        // The process may have been stopped since the lease was looked at.
        Ok(Ok(decoded)) => {
            renew_if_overdue(context, incoming).await?;
            return Ok(decoded);
        }
        Ok(Err(error)) => undecodable(&error),
        Err(panic) => End::failed(format!("decoding panicked: {panic}")),
    };
    Err(refuse(context, consumer, incoming, end).await)
}

/// Settles a message that is not handled.
async fn refuse(context: &Context, consumer: &Consumer, incoming: &Incoming, end: End) -> Refusal {
    let settling = Settling::new(context, consumer, incoming);
    Refusal::Settled(settling.end(end).await)
}

/// Returns how a message ends that gets no further attempt.
fn out_of_attempts(incoming: &Incoming, reason: PoisonReason, attempts: usize) -> End {
    let record = &incoming.envelope.attempts;
    let error = match reason {
        PoisonReason::Crashed => Some(crashed(attempts, record)),
        _ => record.last_error.clone(),
    };
    End::OutOfAttempts { reason, error }
}

/// Returns the error of a message of which not all attempts have left a record.
fn crashed(attempts: usize, record: &AttemptRecord) -> String {
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
) -> Result<(), SettleErrorKind> {
    if !incoming.lease.is_overdue() {
        return Ok(());
    }
    let renewed = finish(context, incoming, incoming.lease.renew_if_overdue());
    // Boxed, because a renewal is rare.
    Box::pin(renewed).await.map_err(|error| match error {
        error if error.is_lease_gone() => lost(context, incoming, error),
        error => SettleErrorKind::NotDone(error),
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

/// Returns how a message ends that does not decode.
fn undecodable(error: &DecodeError) -> End {
    let text = error_chain(error);
    match error.kind {
        DecodeErrorKind::NewerVersion { .. } => End::NewerProgram {
            reason: PoisonReason::NewerVersion,
            error: text,
        },
        _ => End::undecodable(text),
    }
}

/// Whether the mark of the last chance could be asked for.
enum Mark {
    Tried,
    /// The body has no room for the mark.
    NoRoom,
}

/// Marks a message as on its last chance. If the mark fails, or its outcome is unknown, the handler still
/// runs, within the remaining lease. Only a lost lease is an error.
async fn mark_last_chance(
    context: &Context,
    incoming: &mut Incoming,
) -> Result<Mark, SettleErrorKind> {
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

/// Why a message is not handled now. The decision may be dropped while it waits; settling the message is a step of its
/// own.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The message ends like this.
    Ends(End),
    /// The message is a copy of a message that is done.
    Copy,
    /// The work of the message's key was done before, with this recorded result.
    DoneBefore { key: WorkKey, result: Bytes },
    /// The message was settled, or its settlement was tried.
    Settled(Result<Settled, SettleErrorKind>),
    /// The result store failed. The message was handed back to the caller of `accept`, who can decide what to do.
    NoClaim(Error),
    /// The data of the message could not be fetched. The message was handed back to the caller of `accept`.
    NoData(Error),
}

impl Refusal {
    /// Settles the message, unless that was done.
    pub(crate) async fn settle(self, settling: Settling<'_>) -> Result<Settled, SettleErrorKind> {
        match self {
            Self::Ends(end) => settling.end(end).await,
            Self::Copy => settling.end(End::Completed).await.map(duplicate),
            Self::DoneBefore { key, result } => complete_again(settling, &key, &result).await,
            Self::Settled(settled) => settled,
            Self::NoClaim(error) | Self::NoData(error) => Err(SettleErrorKind::NotDone(error)),
        }
    }
}

impl From<SettleErrorKind> for Refusal {
    fn from(problem: SettleErrorKind) -> Self {
        Self::Settled(Err(problem))
    }
}

/// How a message ends that is put back without counting the attempt.
pub(super) fn postponed(after: Duration, reason: &str) -> Refusal {
    Refusal::Ends(End::Postponed {
        after,
        reason: Some(reason.to_owned()),
    })
}

/// Completes a message whose work was done before: stores the recorded follow-ups again, with the same ids. If the work
/// was done for another message, a recorded reply goes to the sender of this one.
async fn complete_again(
    settling: Settling<'_>,
    key: &WorkKey,
    result: &[u8],
) -> Result<Settled, SettleErrorKind> {
    let Settling {
        context,
        consumer,
        incoming,
    } = settling;
    let puts = match RecordedFollowUps::decode(result) {
        Ok(puts) => puts,
        Err(problem) => {
            let error = format!("the recorded result of `{key}` cannot be read: {problem}");
            return settling.end(End::failed(error)).await;
        }
    };
    let puts = puts.into_iter();
    let puts: Vec<_> = puts
        .filter_map(|put| submitted_again(context, &incoming.envelope, put))
        .collect();
    let (queue, id) = (&consumer.queue, &incoming.envelope.id);
    let follow_ups = puts.len();
    tracing::info!(%queue, %id, %key, follow_ups, "the work of a message was done before; completing it");
    let hash = fingerprint(result);
    // Boxed, because this future is rare and large.
    let completed = Box::pin(settling.complete_again(puts, hash)).await;
    completed.map(duplicate)
}

fn duplicate(settled: Settled) -> Settled {
    match settled {
        Settled::Completed => Settled::Duplicate,
        other => other,
    }
}

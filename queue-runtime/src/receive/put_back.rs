//! Putting a message back: one update makes it visible again and records the attempt.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::ReceivedMessage;
use queue_core::envelope::{AttemptRecord, PoisonReason};
use queue_core::internal::{between, clip, error_chain, escape_text, later};
use queue_core::wire::Body;

use super::attempts::believe;
use super::consumer::{Caller, Consumer};
use super::incoming::Incoming;
use super::poison::poison;
use super::settle::{Settlement, fingerprint, settle};
use super::settled::{SettleProblem, Settled};
use crate::context::Context;
use crate::lease::Purpose;
use crate::policy::{RetryPolicy, jitter};

/// The shortest and the longest delay before a message from a newer program is received again.
const MIN_POSTPONEMENT: Duration = Duration::from_secs(1);
const MAX_POSTPONEMENT: Duration = Duration::from_secs(60 * 60);
/// The longest `lasterror`, in bytes. It fits into the space that `submit` reserves.
const MAX_LAST_ERROR: usize = 1024;

/// The delay before a retry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Delay<'a> {
    ByPolicy(&'a RetryPolicy),
    Exactly(Duration),
}

impl Delay<'_> {
    fn after(self, attempt: u32) -> Duration {
        match self {
            Self::ByPolicy(policy) => policy.delay(attempt, jitter()),
            Self::Exactly(after) => after,
        }
    }
}

/// Counts a failed attempt. The message is retried after the given delay or, without one, according to the
/// consumer's retry policy. After the last attempt it is moved to the poison queue.
pub(crate) async fn fail(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    after: Option<Duration>,
    error: &str,
) -> Result<Settled, SettleProblem> {
    let by_policy = Delay::ByPolicy(&consumer.retry);
    let delay = after.map_or(by_policy, Delay::Exactly);
    fail_after(context, consumer, incoming, delay, error).await
}

/// Counts a failed attempt, as [`fail`] does.
pub(crate) async fn fail_after(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    delay: Delay<'_>,
    error: &str,
) -> Result<Settled, SettleProblem> {
    let purpose = Purpose::Retry {
        after: match delay {
            Delay::ByPolicy(_) => None,
            Delay::Exactly(after) => Some(after),
        },
        error: fingerprint(error),
    };
    let attempt = incoming.attempt();
    let to_poison = |reason| poison(context, consumer, incoming, reason, Some(error.to_owned()));
    if attempt >= incoming.settings.threshold {
        let moved = to_poison(PoisonReason::Failed).await;
        // The caller of `accept` still has it, and decides.
        if is_not_done(&moved) && consumer.caller == Caller::Listener {
            keep_failed(context, consumer, incoming, error).await;
        }
        return moved;
    }
    let after = delay.after(attempt);
    let after = after.min(context.backend.capabilities().max_visibility);
    if incoming.expires_within(context, after) {
        return to_poison(PoisonReason::Expiring).await;
    }
    let error = escape_text(error).into_owned();
    put_back(context, incoming, purpose, after, |record| {
        record.failures = record.failures.saturating_add(1);
        record.last_error = last_error(&error);
    })
    .await?;
    tracing::warn!(
        queue = %consumer.queue,
        id = %incoming.envelope.id,
        kind = &*escape_text(&incoming.envelope.kind),
        attempt,
        error,
        ?after,
        next_at = %later(context.clock.now(), after),
        "an attempt failed; the message will be retried"
    );
    Ok(Settled::Retried { after, error })
}

/// Puts a message back after a failed attempt that does not count. It is retried as after one that does, but
/// at once if it would expire before.
pub(crate) async fn forgive_failure(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    delay: Delay<'_>,
    error: &str,
) -> Result<Settled, SettleProblem> {
    let attempt = incoming.attempt();
    let after = delay.after(attempt);
    let after = after.min(context.backend.capabilities().max_visibility);
    let after = match incoming.expires_within(context, after) {
        true => Duration::ZERO,
        false => after,
    };
    let error = escape_text(error).into_owned();
    put_back(context, incoming, Purpose::Release, after, |record| {
        forgive(record);
        record.last_error = last_error(&error);
    })
    .await?;
    tracing::warn!(
        queue = %consumer.queue,
        id = %incoming.envelope.id,
        attempt,
        %error,
        ?after,
        "an attempt failed while the circuit breaker is open; it does not count"
    );
    Ok(Settled::Released)
}

/// Makes a message visible at once, without counting the attempt.
pub(crate) async fn release(
    context: &Context,
    incoming: &Incoming,
) -> Result<Settled, SettleProblem> {
    let purpose = Purpose::Release;
    put_back(context, incoming, purpose, Duration::ZERO, forgive).await?;
    Ok(Settled::Released)
}

/// Whether a message was certainly not moved.
pub(super) fn is_not_done(moved: &Result<Settled, SettleProblem>) -> bool {
    matches!(moved, Err(SettleProblem::NotDone(_)))
}

/// Puts a message back that has no attempts left and could not be moved to the poison queue, so that this receive is not
/// taken for one in which moving it ended the process. If that fails, it is left to its lease.
pub(crate) async fn keep_judged(context: &Context, consumer: &Consumer, incoming: &Incoming) {
    keep(context, consumer, incoming, forgive).await;
}

/// Puts a message back whose last attempt has failed and that could not be moved to the poison queue, so that it is moved
/// when it is received next, for that reason, without another attempt. All its receives are counted as failures.
async fn keep_failed(context: &Context, consumer: &Consumer, incoming: &Incoming, error: &str) {
    let error = escape_text(error);
    let receives = incoming.meta.dequeue_count;
    let count = |record: &mut AttemptRecord| {
        record.last_chance = false;
        record.failures = receives.saturating_sub(record.forgiven);
        record.last_error = last_error(&error);
    };
    keep(context, consumer, incoming, count).await;
}

async fn keep(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    account: impl FnOnce(&mut AttemptRecord),
) {
    let delay = Delay::ByPolicy(&consumer.retry).after(incoming.attempt());
    let delay = delay.min(context.backend.capabilities().max_visibility);
    let mut record = incoming.envelope.attempts.clone();
    account(&mut record);
    let Some(body) = incoming.rewritten(context, &record) else {
        return;
    };
    if incoming.expires_within(context, delay) {
        return;
    }
    let body = Some(body);
    let put_back = Settlement::PutBack { delay, body };
    let kept = settle(context, incoming, Purpose::Release, Vec::new(), put_back).await;
    if let Err(unsettled) = kept {
        let (queue, id) = (&consumer.queue, &incoming.envelope.id);
        let error = error_chain(&unsettled.problem);
        tracing::warn!(%queue, %id, error, "failed to put back a message that could not be moved to the poison queue");
    }
}

/// Hands back a message whose consumer does not wait for the result.
pub(crate) async fn release_unasked(context: &Context, incoming: &Incoming) {
    if let Err(problem) = release(context, incoming).await {
        let (queue, id) = (incoming.lease.queue(), &incoming.envelope.id);
        let error = error_chain(&problem);
        tracing::warn!(%queue, %id, error, "failed to hand back a message that nobody handles");
    }
}

/// Postpones a message from a newer program without counting the attempt, so that a program that supports
/// its version can receive it. Once the consumer's `version_patience` is over, it is moved to the poison
/// queue. The patience is counted from the first postponement or, if the body has no room to record that, from
/// when the message was stored.
pub(crate) async fn postpone(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    error: String,
) -> Result<Settled, SettleProblem> {
    let now = incoming.storage_now(context);
    let attempts = &incoming.envelope.attempts;
    let mut record = unmarked(attempts);
    record.newer_since = attempts.newer_since.or(Some(now));
    forgive(&mut record);
    let body = incoming.rewritten(context, &record);
    let inserted_at = incoming.meta.inserted_at;
    let (since, after) = match &body {
        Some(_) => {
            let doubled = MIN_POSTPONEMENT.saturating_mul(2_u32.saturating_pow(attempts.forgiven));
            (attempts.newer_since.unwrap_or(now), doubled)
        }
        // Nothing can be recorded, so the storage's own time has to do. It doubles the delays, too.
        None => (inserted_at, between(inserted_at, now)),
    };
    let after = after
        .clamp(MIN_POSTPONEMENT, MAX_POSTPONEMENT)
        .mul_f64(0.8 + 0.2 * jitter())
        .min(context.backend.capabilities().max_visibility);
    let to_poison = |reason| poison(context, consumer, incoming, reason, Some(error));
    if incoming.expires_within(context, after) {
        return to_poison(PoisonReason::Expiring).await;
    }
    if between(since, now) >= consumer.version_patience {
        return to_poison(PoisonReason::NewerVersion).await;
    }
    let put_back = Settlement::PutBack { delay: after, body };
    settle(context, incoming, Purpose::Postpone, Vec::new(), put_back).await?;
    let (queue, id) = (&consumer.queue, &incoming.envelope.id);
    tracing::info!(%queue, %id, ?after, "postponed a message from a newer program");
    Ok(Settled::Postponed { after })
}

/// Puts a message back because its handler cannot do the work yet, without counting the attempt. If the message
/// would expire meanwhile, it is moved to the poison queue.
pub(crate) async fn postpone_for(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    after: Duration,
    reason: Option<String>,
) -> Result<Settled, SettleProblem> {
    let purpose = Purpose::PostponeFor(after);
    let after = after.min(context.backend.capabilities().max_visibility);
    if incoming.expires_within(context, after) {
        return poison(context, consumer, incoming, PoisonReason::Expiring, reason).await;
    }
    put_back(context, incoming, purpose, after, forgive).await?;
    tracing::debug!(
        queue = %consumer.queue,
        id = %incoming.envelope.id,
        ?after,
        reason = reason.map(|reason| escape_text(&reason).into_owned()),
        "postponed a message"
    );
    Ok(Settled::Postponed { after })
}

/// Returns the body of a received message that is handed back without being handled, so that the receive does not count
/// as an attempt. `None` if it is not an event, or there is no room to record that.
pub(crate) fn body_unhandled(context: &Context, message: &ReceivedMessage) -> Option<Bytes> {
    let limit = context.backend.capabilities().max_moved_body;
    let Body::Event(event) = Body::of_stored(&message.body, message.damage.as_deref(), limit)
    else {
        return None;
    };
    let mut record = unmarked(&event.envelope.attempts);
    believe(&mut record, message);
    forgive(&mut record);
    context.encoder.put_back(&event, &record)
}

/// Returns the record without the mark of the last chance, which is for one attempt only.
fn unmarked(record: &AttemptRecord) -> AttemptRecord {
    let mut record = record.clone();
    record.last_chance = false;
    record
}

/// Returns what a message keeps of an error whose control characters are escaped.
fn last_error(error: &str) -> Option<String> {
    Some(clip(error, MAX_LAST_ERROR).to_owned())
}

fn forgive(record: &mut AttemptRecord) {
    record.forgiven = record.forgiven.saturating_add(1);
}

/// Writes the update. If the accounting does not fit into the body, only the visibility changes.
async fn put_back(
    context: &Context,
    incoming: &Incoming,
    purpose: Purpose,
    delay: Duration,
    account: impl FnOnce(&mut AttemptRecord),
) -> Result<(), SettleProblem> {
    let mut record = unmarked(&incoming.envelope.attempts);
    account(&mut record);
    let body = incoming.rewritten(context, &record);
    let put_back = Settlement::PutBack { delay, body };
    settle(context, incoming, purpose, Vec::new(), put_back).await?;
    Ok(())
}

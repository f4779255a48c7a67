//! Carrying out the disposition that a handler returned, with storage operations.

use std::time::Duration;

use queue_core::backend::NewMessage;
use queue_core::encoder::Encoded;
use queue_core::envelope::PoisonReason;
use queue_core::internal::{canonical, error_chain};
use queue_core::{Disposition, Error, ErrorKind, Failure, FollowUp, QueueName};
use serde_json::Value;

use super::classify::OnError;
use super::consumer::{Caller, Consumer};
use super::incoming::Incoming;
use super::poison::poison;
use super::put_back::{self, Delay};
use super::recorded;
use super::settle::{Unsettled, fingerprint};
use super::settled::{SettleProblem, Settled};
use super::transaction;
use super::unreplied::delete_and_tell;
use crate::context::Context;
use crate::lease::{Promise, Purpose};
use crate::panic;
use crate::send::{Role, Unreplied, encode_follow_ups};

/// Carries out a disposition. What completing a message seldom needs is boxed: its state is large.
pub(crate) async fn apply(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    disposition: &Disposition,
) -> Result<Settled, SettleProblem> {
    // The caller has dealt with one that was rolled back.
    if transaction::outcome(context, incoming).await? == Promise::Committed {
        report_ignored(consumer, incoming, disposition);
        return Ok(Settled::Completed);
    }
    match disposition {
        Disposition::Complete(follow_ups) => {
            complete(context, consumer, incoming, follow_ups).await
        }
        other => Box::pin(not_completed(context, consumer, incoming, other)).await,
    }
}

/// Carries out a disposition that does not complete the message.
async fn not_completed(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    disposition: &Disposition,
) -> Result<Settled, SettleProblem> {
    // Before the message can be received again.
    incoming.release_claim().await;
    match disposition {
        Disposition::Retry { after: None, error } => {
            classified(context, consumer, incoming, error).await
        }
        Disposition::Retry { after, error } => {
            put_back::fail(context, consumer, incoming, *after, &text(error)).await
        }
        Disposition::Reject(error) => reject(context, consumer, incoming, error).await,
        Disposition::Postpone { after, reason } => {
            let reason = reason.as_ref().map(text);
            put_back::postpone_for(context, consumer, incoming, *after, reason).await
        }
        other => {
            let error = format!("the disposition {other:?} is unknown to this runtime");
            put_back::fail(context, consumer, incoming, None, &error).await
        }
    }
}

/// Carries out what the consumer's classifiers decide about an error.
async fn classified(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    error: &Failure,
) -> Result<Settled, SettleProblem> {
    let (fail, text) = (put_back::fail_after, text(error));
    match consumer.options.classifiers.decide(error) {
        OnError::Retry => put_back::fail(context, consumer, incoming, None, &text).await,
        OnError::RetryBy(policy) => {
            fail(context, consumer, incoming, Delay::ByPolicy(&policy), &text).await
        }
        OnError::RetryAfter(after) => {
            fail(context, consumer, incoming, Delay::Exactly(after), &text).await
        }
        OnError::Reject => reject(context, consumer, incoming, error).await,
        OnError::Postpone(after) => {
            put_back::postpone_for(context, consumer, incoming, after, Some(text)).await
        }
    }
}

/// Puts a message back without counting its failed attempt, after the delay that its handler or a classifier asked
/// for.
pub(crate) async fn forgive(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    after: Option<Duration>,
    error: &Failure,
) -> Result<Settled, SettleProblem> {
    let decided = consumer.options.classifiers.decide(error);
    let delay = match (after, &decided) {
        (Some(after), _) => Delay::Exactly(after),
        (None, OnError::RetryAfter(after)) => Delay::Exactly(*after),
        (None, OnError::RetryBy(policy)) => Delay::ByPolicy(policy),
        (None, _) => Delay::ByPolicy(&consumer.retry),
    };
    incoming.release_claim().await;
    put_back::forgive_failure(context, consumer, incoming, delay, &text(error)).await
}

/// Reports what a handler returned although a transaction had completed its message.
fn report_ignored(consumer: &Consumer, incoming: &Incoming, disposition: &Disposition) {
    let (queue, id) = (&consumer.queue, &incoming.envelope.id);
    match disposition {
        Disposition::Complete(follow_ups) if follow_ups.is_empty() => {}
        Disposition::Complete(follow_ups) => {
            let lost = follow_ups.len();
            tracing::error!(%queue, %id, lost, "the follow-ups and replies that a handler returned are not submitted: a transaction has completed the message without them; pass them to `complete_in`");
        }
        _ => {
            tracing::warn!(%queue, %id, ?disposition, "a message was completed by a transaction, whatever its handler returned after that");
        }
    }
}

async fn reject(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    error: &Failure,
) -> Result<Settled, SettleProblem> {
    let reason = PoisonReason::Rejected;
    poison(context, consumer, incoming, reason, Some(text(error))).await
}

/// Returns the text of the application's error. Its `Display` may panic.
pub(crate) fn text(failure: &Failure) -> String {
    panic::catch(|| failure.chain())
        .unwrap_or_else(|panic| format!("the text of the error panicked: {panic}"))
}

/// Submits the follow-ups and deletes the message.
async fn complete(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    follow_ups: &[FollowUp],
) -> Result<Settled, SettleProblem> {
    let first = incoming.shared.ordinals.of_settlement(follow_ups.len());
    let envelope = &incoming.envelope;
    let puts = match encode_follow_ups(context, envelope, follow_ups, Role::Handler, first) {
        Ok(puts) => puts,
        Err(error) => {
            let (reason, error) = (PoisonReason::Rejected, Failure::from(error).chain());
            let poisoned = async {
                incoming.release_claim().await;
                poison(context, consumer, incoming, reason, Some(error)).await
            };
            return Box::pin(poisoned).await;
        }
    };
    if incoming.claim.is_some()
        && let Some(settled) = Box::pin(recorded::record(context, consumer, incoming, &puts)).await
    {
        return settled;
    }
    finish_with(
        context,
        consumer,
        incoming,
        puts,
        fingerprint_of(follow_ups),
    )
    .await
}

/// Submits encoded follow-ups and deletes the message. If there is no reply among them, the sender of a request is told.
/// `hash` tells different follow-ups apart.
pub(super) async fn finish_with(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    puts: Vec<(QueueName, NewMessage)>,
    hash: u64,
) -> Result<Settled, SettleProblem> {
    let purpose = Purpose::Complete { follow_ups: hash };
    let settled = delete_and_tell(context, incoming, purpose, puts, &Unreplied::Completed).await;
    let refused = settled.as_ref().err().and_then(Unsettled::refused_put);
    if let Some(error) = refused
        && consumer.caller == Caller::Listener
    {
        return Box::pin(follow_ups_refused(context, consumer, incoming, error)).await;
    }
    if let Err(unsettled) = &settled {
        insert_completed(context, consumer, incoming, unsettled);
    }
    settled?;
    Ok(Settled::Completed)
}

/// Returns a hash of the follow-ups without what differs each time they are encoded.
fn fingerprint_of(follow_ups: &[FollowUp]) -> u64 {
    let parts = follow_ups.iter().map(|follow_up| {
        let encoded = follow_up.encoded().ok();
        let key = encoded.and_then(Encoded::key);
        let key = key.map(|key| canonical(&Value::from(key.to_vec())));
        let payload = encoded.map(Encoded::payload);
        let kind = follow_up.message_type().kind();
        (kind, follow_up.queue(), follow_up.delay(), key, payload)
    });
    fingerprint(parts.collect::<Vec<_>>())
}

/// Inserts a message whose handler has succeeded into the completed ids, so that it is deleted without running the
/// handler if it is delivered again. Not if follow-ups may be missing, which only the handler can submit again, and
/// not if the caller learns of the failure and can undo its work.
fn insert_completed(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    unsettled: &Unsettled,
) {
    if unsettled.puts.is_empty() && consumer.caller == Caller::Listener {
        let id = incoming.lease.id();
        context.completed.insert(&consumer.queue, id);
    }
}

/// Settles a message whose follow-ups the backend refuses for good, although they are within its limits. Left
/// alone, the message would be handled again and again, until it counts as crashed.
///
/// Others can lift some refusals, such as missing rights, so these are failed attempts with that error.
async fn follow_ups_refused(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    error: &Error,
) -> Result<Settled, SettleProblem> {
    let text = error_chain(error);
    match error.kind() {
        ErrorKind::TooLarge | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
            poison(
                context,
                consumer,
                incoming,
                PoisonReason::Rejected,
                Some(text),
            )
            .await
        }
        _ => put_back::fail(context, consumer, incoming, None, &text).await,
    }
}

//! From a disposition to storage operations. Only `accept`'s deliveries and the listener's executor
//! come here: handlers answer, they never touch a backend.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::NewMessage;
use queue_core::clock::{between, later};
use queue_core::envelope::{PoisonReason, PoisonRecord};
use queue_core::wire::{Body, escape_text};
use queue_core::{DecodeError, Disposition, Failure, FollowUp, QueueName};

use crate::intake::{Incoming, Route};
use crate::outgoing::{Position, Role, pack_follow_up};
use crate::poison::{OnPoison, clip, set_aside};
use crate::policy::jitter;
use crate::service::Shared;
use crate::settle::{Last, SettleFailure, Settlement, settle};

/// What finally became of a received message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It was acknowledged.
    Completed,
    /// Its attempt failed and it will be tried again.
    Retried {
        /// In how long.
        after: Duration,
    },
    /// It was handed back without an attempt being counted.
    Released,
    /// It is newer than this program knows and was put back for a newer one.
    Parked {
        /// In how long it is looked at again.
        after: Duration,
    },
    /// It was set aside on the poison queue.
    Poisoned(PoisonReason),
}

/// The longest pause before a message that is newer than this program is looked at again.
const MAX_PARK: Duration = Duration::from_secs(60 * 60);
/// The longest `lasterror`, in bytes; within what `submit` keeps free.
const MAX_LAST_ERROR: usize = 1024;
/// The longest `poisonerror`, in bytes.
const MAX_POISON_ERROR: usize = 8 * 1024;

/// Carries out what a handler wants done.
pub(crate) async fn dispose(
    shared: &Shared,
    route: &Route,
    incoming: &Incoming,
    disposition: Disposition,
) -> Result<Fate, SettleFailure> {
    match disposition {
        Disposition::Complete(follow_ups) => {
            match pack_all(shared, incoming, &follow_ups, Role::Handler) {
                Ok(puts) => complete(shared, route, incoming, puts).await,
                Err(error) => {
                    let text = Failure::from(error).chain();
                    poison(shared, route, incoming, PoisonReason::Rejected, Some(text)).await
                }
            }
        }
        Disposition::Retry { after, error } => {
            fail(shared, route, incoming, after, &error.chain()).await
        }
        Disposition::Reject(error) => {
            let text = error.chain();
            poison(shared, route, incoming, PoisonReason::Rejected, Some(text)).await
        }
        other => {
            let text = format!("the disposition {other:?} is unknown to this runtime");
            fail(shared, route, incoming, None, &text).await
        }
    }
}

async fn complete(
    shared: &Shared,
    route: &Route,
    incoming: &Incoming,
    puts: Vec<(QueueName, NewMessage)>,
) -> Result<Fate, SettleFailure> {
    if finish(shared, incoming, puts, Last::Delete).await? == Settlement::Presumed {
        shared.remembered.insert(&route.queue, incoming.lease.id());
    }
    Ok(Fate::Completed)
}

/// Counts a failed attempt: the message is tried again, or set aside.
pub(crate) async fn fail(
    shared: &Shared,
    route: &Route,
    incoming: &Incoming,
    after: Option<Duration>,
    error: &str,
) -> Result<Fate, SettleFailure> {
    let text = Some(error.to_owned());
    if incoming.attempt >= incoming.terms.threshold {
        return poison(shared, route, incoming, PoisonReason::Failed, text).await;
    }
    let after = after.unwrap_or_else(|| route.retry.delay(incoming.attempt, jitter()));
    let after = after.min(shared.backend.capabilities().max_visibility);
    if would_expire(shared, incoming, after) {
        return poison(shared, route, incoming, PoisonReason::Expiring, text).await;
    }
    let mut record = incoming.envelope.attempts.clone();
    record.failures = record.failures.saturating_add(1);
    record.last_error = Some(clip(&escape_text(error), MAX_LAST_ERROR).to_owned());
    record.last_chance = false;
    let body = incoming.rewritten(shared, &record);
    finish(
        shared,
        incoming,
        Vec::new(),
        Last::PutBack { delay: after, body },
    )
    .await?;
    Ok(Fate::Retried { after })
}

/// Hands a message back at once, without counting the attempt.
pub(crate) async fn release(shared: &Shared, incoming: &Incoming) -> Result<Fate, SettleFailure> {
    let mut record = incoming.envelope.attempts.clone();
    record.forgiven = record.forgiven.saturating_add(1);
    record.last_chance = false;
    let body = incoming.rewritten(shared, &record);
    let last = Last::PutBack {
        delay: Duration::ZERO,
        body,
    };
    finish(shared, incoming, Vec::new(), last).await?;
    Ok(Fate::Released)
}

/// Deals with a body that does not decode.
pub(crate) async fn undecodable(
    shared: &Shared,
    route: &Route,
    incoming: &Incoming,
    error: &DecodeError,
) -> Result<Fate, SettleFailure> {
    let text = queue_core::disposition::error_chain(error);
    if !matches!(error, DecodeError::NewerVersion { .. }) {
        return poison(
            shared,
            route,
            incoming,
            PoisonReason::Undecodable,
            Some(text),
        )
        .await;
    }
    let now = shared.clock.now();
    let mut record = incoming.envelope.attempts.clone();
    let since = *record.newer_since.get_or_insert(now);
    let after = Duration::from_secs(1)
        .saturating_mul(2_u32.saturating_pow(record.forgiven))
        .min(MAX_PARK)
        .mul_f64(0.8 + 0.2 * jitter());
    let out_of_patience = between(since, now) >= route.version_patience;
    if would_expire(shared, incoming, after) {
        return poison(shared, route, incoming, PoisonReason::Expiring, Some(text)).await;
    }
    if out_of_patience {
        return poison(
            shared,
            route,
            incoming,
            PoisonReason::NewerVersion,
            Some(text),
        )
        .await;
    }
    record.forgiven = record.forgiven.saturating_add(1);
    record.last_chance = false;
    let body = incoming.rewritten(shared, &record);
    finish(
        shared,
        incoming,
        Vec::new(),
        Last::PutBack { delay: after, body },
    )
    .await?;
    Ok(Fate::Parked { after })
}

/// Sets a message aside on the poison queue, with its record and the follow-ups of `on_poison`.
pub(crate) async fn poison(
    shared: &Shared,
    route: &Route,
    incoming: &Incoming,
    reason: PoisonReason,
    error: Option<String>,
) -> Result<Fate, SettleFailure> {
    let id = incoming.lease.id().as_str();
    let mut record = PoisonRecord::new(reason, route.queue.as_str(), id, incoming.meta.inserted_at);
    record.last = shared.clock.now();
    record.attempts = incoming.attempt;
    record.raw = !matches!(incoming.body, Body::Event(_));
    record.error = error.map(|error| clip(&escape_text(&error), MAX_POISON_ERROR).to_owned());
    let body = set_aside(incoming, &shared.client, &record, shared.body_limit());
    let body = body.map_or_else(|| incoming.original.clone(), |body| shared.stored(body));
    let mut puts = vec![(route.poison_queue.clone(), NewMessage::new(body))];
    if let Some(on_poison) = &route.on_poison {
        match react(on_poison, shared, incoming, record.clone()) {
            Ok(follow_ups) => puts.extend(follow_ups),
            Err(error) => tracing::error!(
                queue = %route.queue, id = %incoming.envelope.id, error,
                "failed to submit what `on_poison` asked for"
            ),
        }
    }
    finish(shared, incoming, puts, Last::Delete).await?;
    tracing::warn!(
        queue = %route.queue,
        poison_queue = %route.poison_queue,
        id = %incoming.envelope.id,
        kind = %incoming.envelope.kind,
        %reason,
        attempts = record.attempts,
        error = record.error.as_deref().unwrap_or_default(),
        "set a message aside as poison"
    );
    Ok(Fate::Poisoned(reason))
}

/// Asks the application what else to submit. Its panic must not keep the message from being set aside.
fn react(
    on_poison: &OnPoison,
    shared: &Shared,
    incoming: &Incoming,
    record: PoisonRecord,
) -> Result<Vec<(QueueName, NewMessage)>, Box<dyn std::error::Error + Send + Sync>> {
    let envelope = Arc::clone(&incoming.envelope);
    let react = || on_poison.follow_ups(&incoming.body, envelope, record);
    let follow_ups = catch_unwind(AssertUnwindSafe(react))
        .map_err(|panic| format!("`on_poison` panicked: {}", panic_text(&*panic)))?;
    pack_all(shared, incoming, &follow_ups, Role::OnPoison)
}

async fn finish(
    shared: &Shared,
    incoming: &Incoming,
    puts: Vec<(QueueName, NewMessage)>,
    last: Last,
) -> Result<Settlement, SettleFailure> {
    let settled = settle(
        &*shared.backend,
        &*shared.clock,
        &incoming.lease,
        puts,
        last,
    )
    .await;
    settled.map_err(|failure| match failure {
        SettleFailure::LeaseLost(error) if would_expire(shared, incoming, Duration::ZERO) => {
            SettleFailure::Expired(error)
        }
        failure => failure,
    })
}

fn pack_all(
    shared: &Shared,
    incoming: &Incoming,
    follow_ups: &[FollowUp],
    role: Role,
) -> Result<Vec<(QueueName, NewMessage)>, Box<dyn std::error::Error + Send + Sync>> {
    let now = shared.clock.now();
    let first = match role {
        Role::Handler => incoming.settlement_ordinal(),
        Role::OnPoison => 0,
    };
    follow_ups
        .iter()
        .zip(first..)
        .map(|(follow_up, ordinal)| {
            pack_follow_up(
                follow_up,
                &incoming.envelope,
                Position { role, ordinal },
                shared.encoder(),
                |queue| shared.backend.queue_uri(queue),
                now,
            )
        })
        .collect()
}

fn would_expire(shared: &Shared, incoming: &Incoming, after: Duration) -> bool {
    incoming
        .meta
        .expires_at
        .is_some_and(|expiry| later(shared.clock.now(), after) >= expiry)
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with a value that is not text")
}

//! Handling a message at most once: the claim of its key in an idempotency store.
//!
//! ```text
//!              ┌─ fresh ──────► handle ─► record the result and the follow-ups ─► settle
//!  admitted ─► begin ─ done ──► store the recorded follow-ups again ─► delete
//!              ├─ in flight ──► put back until the other's lease ends, or wait in place
//!              └─ failed ─────► wait in place; after a visibility timeout, put back
//! ```
//!
//! A message that cannot record that it was put back, or would expire meanwhile, always waits in place: its receives
//! would count as attempts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::NewMessage;
use queue_core::idempotency::{Begun, IdempotencyStore, Owner, Standing, WorkKey};
use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, IdempotencyKey, Operation, QueueName};

use super::admission::renew_if_overdue;
use super::consumer::{Caller, Consumer};
use super::disposition::finish_with;
use super::incoming::Incoming;
use super::put_back;
use super::recorded;
use super::settle::{fingerprint, lost};
use super::settled::{SettleProblem, Settled};
use crate::context::Context;
use crate::idempotency::{DEFAULT_RETENTION, HeldClaim, finish_within, no_answer};
use crate::lease::Cause;
use crate::policy::{jitter, outage_pause};

/// The store in front of a consumer's handler.
#[derive(Debug, Clone)]
pub(crate) struct Idempotency {
    pub(crate) store: Arc<dyn IdempotencyStore>,
    pub(crate) retention: Duration,
    outage: Arc<Mutex<Outage>>,
}

/// The failures of a store in a row, which all messages of a consumer share, so that they do not ask a store that is
/// down more often than one does.
#[derive(Debug, Default)]
struct Outage {
    failures: u32,
    /// When to try again, on the service's clock.
    until: Duration,
}

/// The answer to the claim of a message's key.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The message is to be handled.
    Ours,
    /// It is not. The result is that of settling it.
    Refused(Result<Settled, SettleProblem>),
    /// The store failed. The message was handed back to the caller of `accept`, who can decide what to do.
    Failed(Error),
}

/// The shortest and the longest pause between two looks at work that is in flight elsewhere, of a message that waits in
/// place.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(5);

impl Idempotency {
    pub(crate) fn new(store: Arc<dyn IdempotencyStore>) -> Self {
        Self {
            store,
            retention: DEFAULT_RETENTION,
            outage: Arc::default(),
        }
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failure of a request that was sent at `asked_at`. Returns the pause if it is the first of its kind: the
    /// others were sent before it was known.
    fn failed(&self, error: &Error, asked_at: Duration, now: Duration) -> Option<Duration> {
        let mut outage = self.outage();
        if asked_at < outage.until {
            return None;
        }
        outage.failures = outage.failures.saturating_add(1);
        let pause = outage_pause(error.retry(), outage.failures, jitter());
        outage.until = now.saturating_add(pause);
        Some(pause)
    }
}

/// Claims the key of a message that has been admitted, if its consumer has a store. `report` hears of failures of the
/// store, with the pause before the next try.
///
/// # Cancel safety
/// If the future is dropped, a claim that was begun is released in the background.
pub(crate) async fn claim(
    context: &Arc<Context>,
    consumer: &Consumer,
    incoming: &mut Incoming,
    report: impl Fn(&Error, Duration),
) -> Claimed {
    let Some(idempotency) = &consumer.options.idempotency else {
        return Claimed::Ours;
    };
    let Some(key) = incoming.key.get() else {
        return Claimed::Ours;
    };
    let key = WorkKey::of_message(&consumer.queue, key);
    match Box::pin(wait_for(
        context,
        consumer,
        incoming,
        idempotency,
        &key,
        report,
    ))
    .await
    {
        Ok(claim) => {
            incoming.claim = Some(claim);
            Claimed::Ours
        }
        Err(refused) => refused,
    }
}

async fn wait_for(
    context: &Arc<Context>,
    consumer: &Consumer,
    incoming: &Incoming,
    idempotency: &Idempotency,
    key: &WorkKey,
    report: impl Fn(&Error, Duration),
) -> Result<HeldClaim, Claimed> {
    let clock = &*context.clock;
    let patience_over = clock
        .monotonic()
        .saturating_add(incoming.settings.visibility);
    let mut look = SHORTEST_LOOK;
    loop {
        let outage = idempotency.outage().until;
        rest(context, incoming, outage.saturating_sub(clock.monotonic())).await?;
        let now = clock.monotonic();
        keep_leased(context, incoming, Duration::ZERO);
        let renewed = renew_if_overdue(context, incoming).await;
        renewed.map_err(|problem| Claimed::Refused(Err(problem)))?;
        // Each time another owner: what an earlier try may have claimed has been ageing since, unrenewed.
        let owner = Owner::random();
        let error = match begin(context, incoming, idempotency, key, owner).await {
            Ok(begun) => {
                *idempotency.outage() = Outage::default();
                match begun {
                    Begin::Ours(claim) => return Ok(claim),
                    Begin::Done(result) => {
                        let again = complete_again(context, consumer, incoming, key, &result);
                        return Err(Claimed::Refused(again.await));
                    }
                    Begin::InFlight(remaining) => {
                        let remaining = remaining.max(SHORTEST_LOOK);
                        if can_wait_outside(context, incoming, remaining) {
                            return Err(put_back_for(context, consumer, incoming, remaining).await);
                        }
                        let pause = remaining.min(look.mul_f64(0.5 + 0.5 * jitter()));
                        rest(context, incoming, pause).await?;
                        look = (look * 2).min(LONGEST_LOOK);
                        continue;
                    }
                }
            }
            Err(error) => error,
        };
        if error.kind() == ErrorKind::Corrupt {
            // It concerns this key only, and waiting does not mend it.
            let error = error_chain(&error);
            let failed = put_back::fail(context, consumer, incoming, None, &error);
            return Err(Claimed::Refused(failed.await));
        }
        if let Some(pause) = idempotency.failed(&error, now, clock.monotonic()) {
            let queue = &consumer.queue;
            let text = error_chain(&error);
            tracing::warn!(%queue, error = text, ?pause, "failed to claim the key of a message; it is not handled before that succeeds");
            report(&error, pause);
        }
        if consumer.caller == Caller::Accept {
            put_back::release_unasked(context, incoming).await;
            return Err(Claimed::Failed(error));
        }
        let now = clock.monotonic();
        let pause = idempotency.outage().until.saturating_sub(now);
        if now >= patience_over && can_wait_outside(context, incoming, pause) {
            return Err(put_back_for(context, consumer, incoming, pause).await);
        }
    }
}

/// Has the lease renewed for as long as a wait takes, a request to the store after it, and the handler, whose time
/// begins with it.
fn keep_leased(context: &Context, incoming: &Incoming, wait: Duration) {
    let settings = &incoming.settings;
    let wait = wait.saturating_add(settings.visibility);
    let until = context.clock.monotonic().saturating_add(wait);
    let until = until.saturating_add(settings.handler_timeout);
    incoming.lease.renew_until(until);
}

/// Waits, unless the lease is lost meanwhile.
async fn rest(context: &Context, incoming: &Incoming, pause: Duration) -> Result<(), Claimed> {
    let ended = || Claimed::Refused(Err(lost(context, incoming, incoming.lease.ended())));
    let cancellation = incoming.lease.cancellation();
    if pause.is_zero() && cancellation.cause().is_none() {
        return Ok(());
    }
    keep_leased(context, incoming, pause);
    tokio::select! {
        _ = cancellation.cancelled() => Err(ended()),
        () = context.clock.sleep(pause) => Ok(()),
    }
}

/// Whether the message can be put back for this long without counting the attempt.
fn can_wait_outside(context: &Context, incoming: &Incoming, pause: Duration) -> bool {
    let has_room = incoming.rewritten(context, &incoming.envelope.attempts);
    has_room.is_some() && !incoming.expires_within(context, pause)
}

async fn put_back_for(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    pause: Duration,
) -> Claimed {
    let reason = Some("its key is claimed elsewhere, or cannot be claimed".to_owned());
    Claimed::Refused(put_back::postpone_for(context, consumer, incoming, pause, reason).await)
}

enum Begin {
    Ours(HeldClaim),
    Done(Bytes),
    InFlight(Duration),
}

/// Asks the store in the background, so that a claim is released if nobody waits for it any more. Gives up after half a
/// visibility timeout.
async fn begin(
    context: &Arc<Context>,
    incoming: &Incoming,
    idempotency: &Idempotency,
    key: &WorkKey,
    owner: Owner,
) -> Result<Begin, Error> {
    let (shared, key) = (Arc::clone(context), key.clone());
    let store = Arc::clone(&idempotency.store);
    let lease = incoming.settings.visibility;
    let cancellation = Arc::clone(incoming.lease.cancellation());
    let begin = async move {
        let clock = store.clock();
        let asked_at = clock.monotonic();
        let begun = tokio::select! {
            begun = store.begin(&key, owner, lease) => begun?,
            () = clock.sleep(lease / 2) => return Err(no_answer()),
        };
        Ok(match begun {
            Begun::Fresh(claim) => Begin::Ours(HeldClaim::hold(
                store,
                key,
                claim,
                lease,
                asked_at,
                move || cancellation.cancel(Cause::ClaimLost),
                |renewals| shared.background.spawn(renewals),
            )),
            Begun::Done(result) => Begin::Done(result),
            Begun::InFlight { remaining } => Begin::InFlight(remaining),
        })
    };
    let begun = context.background.finish(begin).await;
    begun.unwrap_or_else(|| Err(Error::new(ErrorKind::Closed, Operation::Idempotency)))
}

/// Completes a message whose work was done before: stores the recorded follow-ups again, with the same ids.
async fn complete_again(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    key: &WorkKey,
    result: &[u8],
) -> Result<Settled, SettleProblem> {
    let puts = match recorded::decode(result) {
        Ok(puts) => puts,
        Err(problem) => {
            let error = format!("the recorded result of `{key}` cannot be read: {problem}");
            return put_back::fail(context, consumer, incoming, None, &error).await;
        }
    };
    let (queue, id) = (&consumer.queue, &incoming.envelope.id);
    let follow_ups = puts.len();
    tracing::info!(%queue, %id, %key, follow_ups, "the work of a message was done before; completing it");
    let hash = fingerprint(result);
    let completed = finish_with(context, consumer, incoming, puts, hash).await?;
    Ok(match completed {
        Settled::Completed => Settled::Duplicate,
        other => other,
    })
}

/// Records that the work of a message is done, with its follow-ups, before they are stored and the message is deleted.
/// Returns `None` if the message is to be completed, and the result of settling it otherwise.
pub(super) async fn record(
    context: &Context,
    consumer: &Consumer,
    incoming: &Incoming,
    puts: &[(QueueName, NewMessage)],
) -> Option<Result<Settled, SettleProblem>> {
    let (claim, idempotency) = (
        incoming.claim.as_ref()?,
        consumer.options.idempotency.as_ref()?,
    );
    let patience = incoming.settings.visibility;
    let result = recorded::encode(puts);
    keep_leased(context, incoming, patience);
    match finish_within(claim, result, idempotency.retention, patience).await {
        Ok(Standing::Held) => None,
        // The record of the other will say what follows.
        Ok(Standing::Lost) => Some(match put_back::release(context, incoming).await {
            // Its caller must not take the message for completed.
            Ok(_) if consumer.caller == Caller::Accept => {
                let error = Error::new(ErrorKind::ReceiptMismatch, Operation::Idempotency);
                let detail = "another consumer has taken over the claim of its key";
                Err(SettleProblem::LeaseLost(
                    error.with_queue(&consumer.queue).with_detail(detail),
                ))
            }
            released => released,
        }),
        Err(error) => {
            let (queue, id, key) = (&consumer.queue, &incoming.envelope.id, claim.key());
            let error = error_chain(&error);
            tracing::error!(%queue, %id, %key, error, "failed to record that the work of a message is done; a duplicate of the message may be handled again");
            None
        }
    }
}

/// Returns the key of a message, once it is decoded.
pub(super) fn keep_key(incoming: &Incoming, key: impl FnOnce() -> IdempotencyKey) {
    if incoming.wants_key {
        incoming.key.get_or_init(key);
    }
}

//! Handling a message at most once: the claim of its key in a result store.
//!
//! ```text
//!              ┌─ fresh ──────► handle ─► record the result and the follow-ups, and settle
//!  admitted ─► begin ─ done ──► store the recorded follow-ups again ─► delete
//!              ├─ in flight ──► put back until the other's lease ends, or wait in place
//!              └─ failed ─────► wait in place; after a visibility timeout, put back
//! ```
//!
//! A message that would expire while put back, or cannot record it, always waits for its claim in place: its receives
//! would count as attempts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::idempotency::{ClaimOutcome, Owner, WorkKey};
use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, Operation, Outcome};

use super::admission::{Refusal, postponed};
use super::consumer::{Consumer, Idempotency};
use super::incoming::Incoming;
use super::waiting::{WaitingMessage, can_wait_outside};
use crate::kernel::claim::{HeldClaim, no_answer};
use crate::kernel::context::Context;
use crate::kernel::lease::Cause;
use crate::kernel::policy::jitter;
use crate::kernel::settlement::{End, RecordedFollowUps, Settling};

/// The shortest and the longest pause before a message that waits in place asks again whether another consumer still
/// does its work.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(5);

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
) -> Result<(), Refusal> {
    let Some(idempotency) = &consumer.options.idempotency else {
        return Ok(());
    };
    let Some(key) = incoming.key.get() else {
        return Ok(());
    };
    let scope = idempotency.scope.as_ref().unwrap_or(&consumer.queue);
    let key = WorkKey::of_message(scope, key);
    let settling = Settling::new(context, consumer, incoming);
    let claim = Box::pin(wait_for(context, settling, idempotency, &key, report)).await?;
    // A transaction replaces the result by its replies.
    let finish = claim.finish_by_swap(RecordedFollowUps::encode(&[]), idempotency.retention);
    incoming.shared.finish.get_or_init(|| finish);
    incoming.claim = Some(claim);
    Ok(())
}

async fn wait_for(
    context: &Arc<Context>,
    settling: Settling<'_>,
    idempotency: &Idempotency,
    key: &WorkKey,
    report: impl Fn(&Error, Duration),
) -> Result<HeldClaim, Refusal> {
    let mut waiting = WaitingMessage::new(settling, &idempotency.outage);
    let mut look = SHORTEST_LOOK;
    loop {
        waiting.before_request().await?;
        // A new owner for each try: a claim that an earlier try may hold was not renewed and may expire at any time.
        let owner = Owner::random();
        let error = match begin(context, settling.incoming, idempotency, key, owner).await {
            Ok(begun) => {
                idempotency.outage.end();
                match begun {
                    Begin::Ours(claim) => return Ok(claim),
                    Begin::Done(result) => {
                        let key = key.clone();
                        return Err(Refusal::DoneBefore { key, result });
                    }
                    Begin::InFlight(remaining) => {
                        let remaining = remaining.max(SHORTEST_LOOK);
                        if can_wait_outside(settling, remaining) {
                            let reason = "another consumer has claimed the key of the message";
                            return Err(postponed(remaining, reason));
                        }
                        let Settling {
                            consumer, incoming, ..
                        } = settling;
                        if consumer.options.several {
                            let after = incoming.settings.visibility;
                            return Err(postponed(
                                after,
                                "another consumer has claimed the key of the message",
                            ));
                        }
                        let pause = remaining.min(look.mul_f64(0.5 + 0.5 * jitter()));
                        waiting.rest(pause).await?;
                        look = (look * 2).min(LONGEST_LOOK);
                        continue;
                    }
                }
            }
            Err(error) => error,
        };
        if error.is_damage() {
            // The error concerns this key only, and waiting does not mend it.
            return Err(Refusal::Ends(End::failed(error_chain(&error))));
        }
        waiting.failed(error, &report, Refusal::NoClaim).await?;
    }
}

enum Begin {
    Ours(HeldClaim),
    Done(Bytes),
    InFlight(Duration),
}

/// Asks the store in the background, so that a claim is released if nobody waits for it. Gives up after half a
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
            ClaimOutcome::Fresh(claim) => Begin::Ours(HeldClaim::hold(
                store,
                key,
                claim,
                lease,
                asked_at,
                move || cancellation.cancel(Cause::ClaimLost),
                |renewals| shared.background.spawn(renewals),
            )),
            ClaimOutcome::Done(result) => Begin::Done(result),
            ClaimOutcome::InFlight { remaining } => Begin::InFlight(remaining),
        })
    };
    let begun = context.background.finish(begin).await;
    begun.unwrap_or_else(|| {
        Err(Error::new(ErrorKind::Closed, Operation::Results).with_outcome(Outcome::Unknown))
    })
}

//! Completing a message: its follow-ups and replies are put, and it is deleted.

use std::time::Duration;

use queue_core::backend::NewMessage;
use queue_core::encoder::Encoded;
use queue_core::idempotency::ClaimStatus;
use queue_core::internal::{canonical, error_chain};
use queue_core::{Error, ErrorKind, Failure, FollowUp, Operation, QueueName};
use serde_json::Value;

use super::carry_out::{FollowUps, Settling};
use super::end::End;
use super::settled::{SettleProblem, Settled};
use super::write::{Unsettled, fingerprint};
use super::{LOG, recorded};
use crate::extensions::idempotency::finish_within;
use crate::kernel::lease::Purpose;
use crate::kernel::receive::Caller;
use crate::kernel::send::{Role, Unreplied, encode_follow_ups};

impl Settling<'_> {
    /// Submits the follow-ups and deletes the message. What is seldom needed is boxed: its state is large.
    pub(super) async fn complete(
        self,
        follow_ups: FollowUps<'_>,
    ) -> Result<Settled, SettleProblem> {
        let (puts, hash) = match follow_ups {
            FollowUps::Recorded { puts, hash } => (puts, hash),
            FollowUps::Returned(follow_ups) => {
                let puts = match self.encode(follow_ups) {
                    Ok(puts) => puts,
                    Err(error) => return self.end(End::rejected(error)).await,
                };
                if self.incoming.claim.is_some()
                    && let Some(settled) = Box::pin(self.record(&puts)).await
                {
                    return settled;
                }
                (puts, fingerprint_of(follow_ups))
            }
        };
        let purpose = Purpose::Complete { follow_ups: hash };
        let settled = self
            .delete_and_tell(purpose, puts, &Unreplied::Completed)
            .await;
        let Err(unsettled) = settled else {
            return Ok(Settled::Completed);
        };
        if let Some(error) = unsettled.refused_put()
            && self.consumer.caller == Caller::Listener
        {
            return self.end(refused(error)).await;
        }
        self.insert_completed(&unsettled);
        Err(unsettled.problem)
    }

    fn encode(self, follow_ups: &[FollowUp]) -> Result<Vec<(QueueName, NewMessage)>, String> {
        if follow_ups.is_empty() {
            return Ok(Vec::new());
        }
        let (envelope, ordinals) = (&self.incoming.envelope, &self.incoming.shared.ordinals);
        let first = ordinals.of_settlement(follow_ups.len());
        let encoded = encode_follow_ups(self.context, envelope, follow_ups, Role::Handler, first);
        encoded.map_err(|error| Failure::from(error).chain())
    }

    /// Records in the idempotency store that the work of the message is done, with its follow-ups, before they are stored
    /// and the message is deleted. Returns `None` if the message is to be completed, and the result of settling it
    /// otherwise.
    async fn record(
        self,
        puts: &[(QueueName, NewMessage)],
    ) -> Option<Result<Settled, SettleProblem>> {
        let (consumer, incoming) = (self.consumer, self.incoming);
        let claim = incoming.claim.as_ref()?;
        let retention = consumer.options.idempotency.as_ref()?.retention;
        let patience: Duration = incoming.settings.visibility;
        incoming.keep_leased(self.context, patience);
        match finish_within(claim, recorded::encode(puts), retention, patience).await {
            Ok(ClaimStatus::Held) => None,
            // The record of the other will say what follows.
            Ok(ClaimStatus::Lost) => Some(match self.end(End::Released).await {
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
                tracing::error!(target: LOG, %queue, %id, %key, error, "failed to record that the work of a message is done; a duplicate of the message may be handled again");
                None
            }
        }
    }

    /// Inserts a message whose handler has succeeded into the completed ids, so that it is deleted without running the
    /// handler if it is delivered again. Not if follow-ups may be missing, which only the handler can submit again, and
    /// not if the caller learns of the failure and can undo its work.
    fn insert_completed(self, unsettled: &Unsettled) {
        if unsettled.puts.is_empty() && self.consumer.caller == Caller::Listener {
            let id = self.incoming.lease.id();
            self.context.completed.insert(&self.consumer.queue, id);
        }
    }
}

/// Returns how a message ends whose follow-ups the backend refuses for good, although they are within its limits. Left
/// alone, the message would be handled again and again, until it counts as crashed.
fn refused(error: &Error) -> End {
    let text = error_chain(error);
    match error.kind() {
        ErrorKind::TooLarge | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
            End::rejected(text)
        }
        // Somebody can mend the others, such as missing rights, so that a retry succeeds.
        _ => End::failed(text),
    }
}

/// Returns a hash of the follow-ups without what differs each time they are encoded.
fn fingerprint_of(follow_ups: &[FollowUp]) -> u64 {
    if follow_ups.is_empty() {
        return 0;
    }
    let parts = follow_ups.iter().map(|follow_up| {
        let encoded = follow_up.encoded().ok();
        let key = encoded.and_then(Encoded::key);
        let key = key.map(|key| canonical(Value::from(key.to_vec())));
        let payload = encoded.map(Encoded::payload);
        let kind = follow_up.message_type().kind();
        (kind, follow_up.queue(), follow_up.delay(), key, payload)
    });
    fingerprint(parts.collect::<Vec<_>>())
}

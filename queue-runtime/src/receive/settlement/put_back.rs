//! Putting a message back: one update makes it visible again and records the attempt.

use bytes::Bytes;
use queue_core::Failure;
use queue_core::backend::ReceivedMessage;
use queue_core::internal::{MAX_LOGGED, error_chain, escape_short, later};
use queue_core::wire::Body;

use super::LOG;
use super::carry_out::Settling;
use super::plan::PutBack;
use super::settled::{SettleProblem, Settled};
use super::write::{Change, write};
use crate::context::Context;
use crate::receive::attempts::{Account, believe};

impl Settling<'_> {
    /// Writes the update. If the record does not fit into the body, only the visibility changes.
    pub(super) async fn put_back(self, put_back: PutBack<'_>) -> Result<Settled, SettleProblem> {
        let PutBack {
            delay,
            account,
            purpose,
        } = put_back;
        let body = self.body_with(&account);
        let change = Change::PutBack { delay, body };
        write(self.context, self.incoming, purpose, Vec::new(), change).await?;
        self.log(&put_back);
        Ok(match account {
            Account::Failed { error, failure } => Settled::Retried {
                after: delay,
                error: failure.map_or_else(|| error.into(), Failure::clone),
            },
            Account::Postponed(_) | Account::NewerVersion { .. } => {
                Settled::Postponed { after: delay }
            }
            _ => Settled::Released,
        })
    }

    /// Puts back a message that could not be moved to the poison queue, with the record that has it moved when it is
    /// received next. Without room for that, or if it fails, the message is left to its lease.
    pub(super) async fn put_back_unmoved(self, put_back: &PutBack<'_>) {
        let PutBack {
            delay,
            account,
            purpose,
        } = put_back;
        let Some(body) = self.body_with(account) else {
            return;
        };
        // The move may have been tried for long.
        if self.incoming.expires_within(self.context, *delay) {
            return;
        }
        let change = Change::PutBack {
            delay: *delay,
            body: Some(body),
        };
        let written = write(self.context, self.incoming, *purpose, Vec::new(), change).await;
        if let Err(unsettled) = written {
            let (queue, id) = (&self.consumer.queue, &self.incoming.envelope.id);
            let error = error_chain(&unsettled.problem);
            tracing::warn!(target: LOG, %queue, %id, error, "failed to put back a message that could not be moved to the poison queue");
        }
    }

    /// Returns the body with the record of this attempt. `None` if it has no room for one.
    pub(super) fn body_with(self, account: &Account<'_>) -> Option<Bytes> {
        let record = account.applied_to(&self.incoming.envelope.attempts);
        self.incoming.rewritten(self.context, &record)
    }

    fn log(self, put_back: &PutBack<'_>) {
        let (queue, id) = (&self.consumer.queue, &self.incoming.envelope.id);
        let (after, attempt) = (put_back.delay, self.incoming.attempt());
        match put_back.account {
            Account::Failed { error, .. } => tracing::warn!(target: LOG, %queue,
                %id,
                kind = &*escape_short(&self.incoming.envelope.kind, MAX_LOGGED),
                attempt,
                error = &*escape_short(error, MAX_LOGGED),
                ?after,
                next_at = %later(self.context.clock.now(), after),
                "an attempt failed; the message will be retried"
            ),
            Account::Forgiven(error) => {
                let error = &*escape_short(error, MAX_LOGGED);
                tracing::warn!(target: LOG, %queue, %id, attempt, error, ?after, "an attempt failed while the circuit breaker is open; it does not count");
            }
            Account::NewerVersion { .. } => {
                tracing::info!(target: LOG, %queue, %id, ?after, "postponed a message from a newer program");
            }
            Account::Postponed(reason) => {
                let reason = reason.map(|reason| escape_short(reason, MAX_LOGGED).into_owned());
                tracing::debug!(target: LOG, %queue, %id, ?after, reason, "postponed a message");
            }
            Account::Released | Account::Judged | Account::Exhausted { .. } => {}
        }
    }
}

/// Returns the body of a received message that is handed back without being handled, so that the receive does not count
/// as an attempt. `None` if it is not an event, or there is no room to record that.
pub(crate) fn body_unhandled(context: &Context, message: &ReceivedMessage) -> Option<Bytes> {
    let limit = context.backend.capabilities().max_moved_body;
    let Body::Event(event) = Body::of_stored(&message.body, message.damage.as_deref(), limit)
    else {
        return None;
    };
    let mut record = event.envelope.attempts.clone();
    believe(&mut record, message);
    let record = Account::Released.applied_to(&record);
    context.encoder.put_back(&event, &record)
}

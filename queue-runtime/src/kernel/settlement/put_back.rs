//! Putting a message back: one update makes it visible again and records the attempt.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::ReceivedMessage;
use queue_core::envelope::PoisonReason;
use queue_core::internal::{MAX_LOGGED, error_chain, escape_short, later};
use queue_core::wire::Body;
use queue_core::{Failure, Timestamp};

use super::LOG;
use super::carry_out::Settling;
use super::plan::PutBack;
use super::settled::{SettleProblem, Settled};
use super::write::{Change, write};
use crate::kernel::context::Context;
use crate::kernel::receive::{Account, believe};

impl Settling<'_> {
    /// Writes the update. If the record does not fit into the body, only the visibility changes, unless the delay is over
    /// the storage's limit: the message is poison then, since it would come back too early.
    pub(super) async fn put_back(self, put_back: PutBack<'_>) -> Result<Settled, SettleProblem> {
        let PutBack {
            delay,
            account,
            purpose,
            ..
        } = put_back;
        let due = self.due(delay);
        let body = self.body_with(&account, due);
        if due.is_some() && body.is_none() {
            let longest = self.longest_delay();
            let error = format!(
                "it is to be put back for {delay:?}; the storage hides a message for at most {longest:?}, and the body \
                 has no room to record more"
            );
            return self.poison(PoisonReason::Rejected, Some(&*error)).await;
        }
        let change = self.change(&put_back, body);
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
            ..
        } = put_back;
        let Some(body) = self.body_with(account, self.due(*delay)) else {
            return;
        };
        // The move may have been tried for long.
        if self.incoming.expires_within(self.context, *delay) {
            return;
        }
        let change = self.change(put_back, Some(body));
        let written = write(self.context, self.incoming, *purpose, Vec::new(), change).await;
        if let Err(unsettled) = written {
            let (queue, id) = (&self.consumer.queue, &self.incoming.envelope.id);
            let error = error_chain(&unsettled.problem);
            tracing::warn!(target: LOG, %queue, %id, error, "failed to put back a message that could not be moved to the poison queue");
        }
    }

    fn change(self, put_back: &PutBack<'_>, body: Option<Bytes>) -> Change {
        if put_back.keeps_place() {
            return Change::HandBack { body };
        }
        let delay = put_back.delay.min(self.longest_delay());
        Change::PutBack { delay, body }
    }

    /// Returns when a message is due that is put back for longer than the storage can hide it, in the storage's time. It is
    /// recorded, and [`admit`](crate::receive::admit) puts the message back again until then.
    fn due(self, delay: Duration) -> Option<Timestamp> {
        let is_longer = delay > self.longest_delay();
        is_longer.then(|| later(self.incoming.storage_now(self.context), delay))
    }

    fn longest_delay(self) -> Duration {
        self.context.backend.capabilities().max_delay
    }

    /// Returns the body with the record of this attempt. `None` if it has no room for one.
    pub(super) fn body_with(self, account: &Account<'_>, due: Option<Timestamp>) -> Option<Bytes> {
        let mut record = account.applied_to(&self.incoming.envelope.attempts);
        record.not_before = due.or(record.not_before);
        self.incoming.rewritten(self.context, &record)
    }

    fn log(self, put_back: &PutBack<'_>) {
        let (queue, id) = (&self.consumer.queue, &self.incoming.envelope.id);
        let (after, attempt) = (put_back.delay, self.incoming.attempt());
        if put_back.is_slowed {
            let receives = self.incoming.meta.dequeue_count;
            tracing::warn!(target: LOG, %queue, %id, receives, "a message is put back again and again; its delays become longer than was asked for, up to a second");
        }
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

//! Carrying out the plan for a message that has ended. If the message is put back, one update makes it visible again
//! and records the attempt.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{NewMessage, PutBackPlace, ReceivedMessage};
use queue_core::clock::BoxFuture;
use queue_core::envelope::PoisonReason;
use queue_core::internal::{MAX_LOGGED, error_chain, escape_short, later};
use queue_core::wire::Body;
use queue_core::{Failure, FollowUp, QueueName, Timestamp};

use super::LOG;
use super::end::{End, SettleErrorKind, Settled};
use super::plan::{ClaimEnd, Known, PutBack, Step, completes, plan};
use super::riders::Riders;
use super::write::{MIN_PATIENCE, MessageChange, lost, no_answer, write};
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::lease::Promise;
use crate::kernel::policy::jitter;
use crate::kernel::receive::{Consumer, Incoming, Tally, believe};
use crate::kernel::repeat::Repeats;

/// A received message that is to be settled, and who settles it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settling<'a> {
    pub(crate) context: &'a Context,
    pub(crate) consumer: &'a Consumer,
    pub(crate) incoming: &'a Incoming,
}

/// What is submitted when a message is completed.
#[derive(Debug)]
pub(super) enum FollowUps<'a> {
    /// The handler's follow-ups.
    Returned(&'a [FollowUp]),
    /// Follow-ups encoded when the same work was done before. The hash tells different follow-ups apart.
    Recorded {
        puts: Vec<(QueueName, NewMessage)>,
        hash: u64,
    },
}

/// How a handler ended, for the settlement of its message.
#[derive(Debug)]
pub(crate) struct Handled<'a> {
    pub(crate) end: &'a End,
    pub(crate) follow_ups: &'a [FollowUp],
    /// Whether the handler's code still runs, on a thread that it blocks.
    pub(crate) still_runs: bool,
}

impl<'a> Handled<'a> {
    pub(crate) fn new(end: &'a End, follow_ups: &'a [FollowUp]) -> Self {
        Self {
            end,
            follow_ups,
            still_runs: false,
        }
    }
}

impl<'a> Settling<'a> {
    pub(crate) fn new(
        context: &'a Context,
        consumer: &'a Consumer,
        incoming: &'a Incoming,
    ) -> Self {
        Self {
            context,
            consumer,
            incoming,
        }
    }

    /// Settles a message whose handler has ended. `counts` tells whether a failed attempt counts, once it is known what
    /// became of the transaction that completed the message, if there was one.
    pub(crate) async fn settle(
        self,
        handled: Handled<'_>,
        counts: impl FnOnce(Promise) -> bool,
    ) -> Result<Settled, SettleErrorKind> {
        let transaction = transaction_outcome(self.context, self.incoming).await?;
        let counts = counts(transaction);
        let settled = if completes(handled.end, transaction) {
            let follow_ups = FollowUps::Returned(handled.follow_ups);
            self.complete(follow_ups).await
        } else {
            // Boxed, because this future is rare and large.
            Box::pin(self.settle_otherwise(&handled, transaction, counts)).await
        };
        // A handler that went on may have completed the message in a transaction meanwhile, for whose end this has waited.
        if handled.still_runs && transaction == Promise::None && self.incoming.lease.is_promised() {
            let outcome = Box::pin(transaction_outcome(self.context, self.incoming)).await;
            if outcome? == Promise::Committed {
                return Ok(Settled::Completed);
            }
        }
        settled
    }

    /// Settles a message of which more must be known than how it ended.
    async fn settle_otherwise(
        self,
        handled: &Handled<'_>,
        transaction: Promise,
        counts: bool,
    ) -> Result<Settled, SettleErrorKind> {
        let known = Known {
            transaction,
            counts,
            still_runs: handled.still_runs,
            ..self.known(handled.end)
        };
        match plan(&known).step {
            Step::Complete => self.complete(FollowUps::Returned(handled.follow_ups)).await,
            step => {
                if step == Step::Nothing {
                    self.report_ignored(handled);
                }
                self.carry_out(known).await
            }
        }
    }

    /// Settles a message for a reason other than what its handler returned.
    pub(crate) fn end(self, end: End) -> BoxFuture<'a, Result<Settled, SettleErrorKind>> {
        Box::pin(async move { self.carry_out(self.known(&end)).await })
    }

    /// Completes a message again whose work was done before, with the recorded follow-ups.
    pub(crate) async fn complete_again(
        self,
        puts: Vec<(QueueName, NewMessage)>,
        hash: u64,
    ) -> Result<Settled, SettleErrorKind> {
        self.complete(FollowUps::Recorded { puts, hash }).await
    }

    /// Hands back a message whose consumer does not wait for the result.
    pub(crate) async fn release_unasked(self) {
        if let Err(problem) = self.end(End::Released).await {
            let (queue, id) = (self.incoming.lease.queue(), &self.incoming.envelope.id);
            let error = error_chain(&problem);
            tracing::warn!(target: LOG, %queue, %id, error, "failed to hand back a message that nobody handles");
        }
    }

    /// Carries out what is planned.
    async fn carry_out(self, mut known: Known<'_>) -> Result<Settled, SettleErrorKind> {
        match plan(&known).claim {
            // Recorded together with the follow-ups, below.
            ClaimEnd::Record => {}
            ClaimEnd::Leave => self.incoming.leave_claim(),
            // Released before the message can be received again. A release may take long, and the message expires
            // meanwhile.
            ClaimEnd::Release => {
                self.incoming.release_claim().await;
                known.expires_in = self.incoming.expires_in(self.context);
            }
        }
        match plan(&known).step {
            Step::Nothing => Ok(Settled::Completed),
            Step::Complete => {
                let completed = self.complete(FollowUps::Returned(&[]));
                let completed: BoxFuture<'_, _> = Box::pin(completed);
                completed.await
            }
            Step::PutBack(put_back) => self.put_back(put_back).await,
            Step::Poison {
                reason,
                error,
                unless_moved,
            } => {
                let moved = self.poison(reason, error).await;
                if let (Err(SettleErrorKind::NotDone(_)), Some(put_back)) = (&moved, unless_moved) {
                    self.put_back_unmoved(&put_back).await;
                }
                moved
            }
            Step::Leave => {
                let ended = self.incoming.lease.ended();
                Err(lost(self.context, self.incoming, ended))
            }
        }
    }

    /// Returns what is known of the message, apart from how a handler ended.
    fn known<'e>(self, end: &'e End) -> Known<'e>
    where
        'a: 'e,
    {
        let Self {
            context,
            consumer,
            incoming,
        } = self;
        let now = incoming.storage_now(context);
        let attempts = &incoming.envelope.attempts;
        let has_room = match end {
            End::NewerProgram { .. } => {
                let since = attempts.newer_since.unwrap_or(now);
                let tally = Tally::NewerVersion { since };
                self.body_with(&tally, None).is_some()
            }
            _ => true,
        };
        Known {
            end,
            caller: consumer.caller,
            transaction: Promise::None,
            counts: true,
            still_runs: false,
            attempt: incoming.attempt(),
            threshold: incoming.threshold,
            attempts,
            dequeue_count: incoming.meta.dequeue_count,
            has_room,
            expires_in: incoming.expires_in(context),
            now,
            inserted_at: incoming.meta.inserted_at,
            retry: &consumer.retry,
            version_patience: consumer.version_patience,
            random: jitter(),
        }
    }

    /// Reports what a handler returned although a transaction had completed its message.
    fn report_ignored(self, handled: &Handled<'_>) {
        let (queue, id) = (&self.consumer.queue, &self.incoming.envelope.id);
        match handled.end {
            End::Completed if handled.follow_ups.is_empty() => {}
            End::Completed => {
                let lost = handled.follow_ups.len();
                tracing::error!(target: LOG, %queue, %id, lost, "the follow-ups and replies that a handler returned are not submitted: a transaction has completed the message without them; pass them to `complete_within`");
            }
            End::Released | End::LeaseLost => {}
            end => {
                tracing::warn!(target: LOG, %queue, %id, ?end, "a transaction has completed a message; how its handler ended after that has no effect");
            }
        }
    }
}

impl Settling<'_> {
    /// Writes the update. If the record does not fit into the body, only the visibility changes, unless the delay is over
    /// the storage's limit: the message is poison then, since it would come back too early.
    async fn put_back(self, put_back: PutBack<'_>) -> Result<Settled, SettleErrorKind> {
        let PutBack {
            delay,
            tally,
            purpose,
            ..
        } = put_back;
        let due = self.due(delay);
        let body = self.body_with(&tally, due);
        if due.is_some() && body.is_none() {
            let longest = self.longest_delay();
            let error = format!(
                "it is to be put back for {delay:?}; the storage hides a message for at most {longest:?}, and the body \
                 has no room to record more"
            );
            return self.poison(PoisonReason::Rejected, Some(&*error)).await;
        }
        let change = self.change(&put_back, body);
        write(
            self.context,
            self.incoming,
            purpose,
            Riders::default(),
            change,
        )
        .await?;
        self.log(&put_back);
        Ok(match tally {
            Tally::Failed { error, failure } => Settled::Retried {
                after: delay,
                error: failure.map_or_else(|| error.into(), Failure::clone),
            },
            Tally::Postponed(_) | Tally::NewerVersion { .. } => Settled::Postponed { after: delay },
            _ => Settled::Released,
        })
    }

    /// Puts back a message that could not be moved to the poison queue, with the record that has it moved at the next
    /// receive. Without room for the record, or if the update fails, the message is left to its lease.
    async fn put_back_unmoved(self, put_back: &PutBack<'_>) {
        let PutBack {
            delay,
            tally,
            purpose,
            ..
        } = put_back;
        let Some(body) = self.body_with(tally, self.due(*delay)) else {
            return;
        };
        // The move may have been tried for long.
        if self.incoming.expires_within(self.context, *delay) {
            return;
        }
        let change = self.change(put_back, Some(body));
        let written = write(
            self.context,
            self.incoming,
            *purpose,
            Riders::default(),
            change,
        )
        .await;
        if let Err(unsettled) = written {
            let (queue, id) = (&self.consumer.queue, &self.incoming.envelope.id);
            let error = error_chain(&unsettled.kind);
            tracing::warn!(target: LOG, %queue, %id, error, "failed to put back a message that could not be moved to the poison queue");
        }
    }

    fn change(self, put_back: &PutBack<'_>, body: Option<Bytes>) -> MessageChange {
        if put_back.keeps_place() {
            let place = PutBackPlace::Kept;
            return MessageChange::PutBack { place, body };
        }
        let delay = put_back.delay.min(self.longest_delay());
        let place = PutBackPlace::After(delay);
        MessageChange::PutBack { place, body }
    }

    /// Returns when a message is due that is put back for longer than the storage can hide it, in the storage's time.
    /// The due time is recorded, and [`admit`](crate::receive::admit) puts the message back until then.
    fn due(self, delay: Duration) -> Option<Timestamp> {
        let is_longer = delay > self.longest_delay();
        is_longer.then(|| later(self.incoming.storage_now(self.context), delay))
    }

    fn longest_delay(self) -> Duration {
        self.context.backend.capabilities().max_delay
    }

    /// Returns the body with the record of this attempt, or `None` without room for one.
    fn body_with(self, tally: &Tally<'_>, due: Option<Timestamp>) -> Option<Bytes> {
        let mut record = tally.applied_to(&self.incoming.envelope.attempts);
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
        match put_back.tally {
            Tally::Failed { error, .. } => tracing::warn!(target: LOG, %queue,
                %id,
                kind = &*escape_short(&self.incoming.envelope.kind, MAX_LOGGED),
                attempt,
                error = &*escape_short(error, MAX_LOGGED),
                ?after,
                next_at = %later(self.context.clock.now(), after),
                "an attempt failed; the message will be retried"
            ),
            Tally::Forgiven(error) => {
                let error = &*escape_short(error, MAX_LOGGED);
                tracing::warn!(target: LOG, %queue, %id, attempt, error, ?after, "an attempt failed while the circuit breaker is open; it does not count");
            }
            Tally::NewerVersion { .. } => {
                tracing::info!(target: LOG, %queue, %id, ?after, "postponed a message from a newer program");
            }
            Tally::Postponed(reason) => {
                let reason = reason.map(|reason| escape_short(reason, MAX_LOGGED).into_owned());
                tracing::debug!(target: LOG, %queue, %id, ?after, reason, "postponed a message");
            }
            Tally::Released | Tally::Judged | Tally::Exhausted { .. } => {}
        }
    }
}

/// Returns what became of the transaction that completed the message, if there was one. Waits for the transaction's
/// end, as long as the lease may last, and at least two seconds.
pub(crate) async fn transaction_outcome(
    context: &Context,
    incoming: &Incoming,
) -> Result<Promise, SettleErrorKind> {
    if !incoming.lease.is_promised() {
        return Ok(Promise::None);
    }
    let clock = &*context.clock;
    let mut locked = incoming.lease.lock().await;
    let at_least = clock.monotonic().saturating_add(MIN_PATIENCE);
    let give_up_at = locked.certain_end().max(at_least);
    let mut repeats = Repeats::within_lease(give_up_at, clock);
    loop {
        let concluded = ready_by(clock, give_up_at, locked.conclude()).await;
        let concluded = concluded.unwrap_or_else(|| Err(no_answer(&incoming.lease)));
        match concluded {
            Ok(Promise::Committed) => {
                let (queue, id) = (incoming.lease.queue(), incoming.lease.id());
                Arc::clone(&context.parts).completed(queue, id).await;
                incoming.leave_claim();
                return Ok(Promise::Committed);
            }
            Ok(promise) => return Ok(promise),
            Err(error) => repeats
                .pause(error)
                .await
                .map_err(SettleErrorKind::Unknown)?,
        }
    }
}

/// Returns the body of a received message that is handed back unhandled, so that the receive does not count
/// as an attempt. `None` if the body is not an event, or has no room for a record.
pub(crate) fn body_unhandled(context: &Context, message: &ReceivedMessage) -> Option<Bytes> {
    let limit = context.backend.capabilities().max_moved_body;
    let Body::Event(event) = Body::of_stored(&message.body, message.damage.as_deref(), limit)
    else {
        return None;
    };
    let mut record = event.envelope.attempts.clone();
    believe(&mut record, message);
    let record = Tally::Released.applied_to(&record);
    context.encoder.put_back(&event, &record)
}

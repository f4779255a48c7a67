//! What a message needs from elsewhere before it can be handled, and waits for without being to blame.
//!
//! A message that waits is leased. Once a visibility timeout is over, it is put back without counting the attempt,
//! unless it cannot record that, or would expire meanwhile.

use std::time::Duration;

use queue_core::Error;
use queue_core::internal::error_chain;

use super::admission::renew_if_overdue;
use super::consumer::Caller;
use super::parking::can_wait_outside;
use super::refusal::Refusal;
use crate::kernel::policy::Outage;
use crate::kernel::settlement::{End, Settling, lost};

/// A message that waits.
pub(super) struct Waiting<'a> {
    pub(super) settling: Settling<'a>,
    outage: &'a Outage,
    patience_over: Duration,
    asked_at: Duration,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(settling: Settling<'a>, outage: &'a Outage) -> Self {
        let now = settling.context.clock.monotonic();
        Self {
            settling,
            outage,
            patience_over: now.saturating_add(settling.incoming.settings.visibility),
            asked_at: now,
        }
    }

    /// Waits until an outage that is known is over, and sees to it that the lease holds.
    pub(super) async fn before_request(&mut self) -> Result<(), Refusal> {
        let Settling {
            context, incoming, ..
        } = self.settling;
        let now = context.clock.monotonic();
        self.rest(self.outage.until().saturating_sub(now)).await?;
        self.asked_at = context.clock.monotonic();
        incoming.keep_leased(context, Duration::ZERO);
        renew_if_overdue(context, incoming).await?;
        Ok(())
    }

    /// Decides what a failed request means for the message: it waits, or is put back. The caller of `accept` gets the error
    /// instead, as `refusal`. `report` hears of the first failure of many, with the pause before the next request.
    pub(super) async fn failed(
        &self,
        error: Error,
        report: impl FnOnce(&Error, Duration),
        refusal: fn(Error) -> Refusal,
    ) -> Result<(), Refusal> {
        let Settling {
            context, consumer, ..
        } = self.settling;
        let now = context.clock.monotonic();
        if let Some(pause) = self.outage.failed(&error, self.asked_at, now) {
            let (queue, text) = (&consumer.queue, error_chain(&error));
            tracing::warn!(%queue, error = text, ?pause, "what messages wait for has failed; they are not handled before it works again");
            report(&error, pause);
        }
        if consumer.caller == Caller::Accept {
            self.settling.release_unasked().await;
            return Err(refusal(error));
        }
        let pause = self.outage.until().saturating_sub(now);
        if now >= self.patience_over && can_wait_outside(self.settling, pause) {
            return Err(postponed(pause, "what it needs cannot be had now"));
        }
        Ok(())
    }

    /// Waits, unless the lease is lost meanwhile.
    pub(super) async fn rest(&self, pause: Duration) -> Result<(), Refusal> {
        let Settling {
            context, incoming, ..
        } = self.settling;
        let cancellation = incoming.lease.cancellation();
        if pause.is_zero() && cancellation.cause().is_none() {
            return Ok(());
        }
        incoming.keep_leased(context, pause);
        tokio::select! {
            _ = cancellation.cancelled() => Err(lease_lost(self.settling)),
            () = context.clock.sleep(pause) => Ok(()),
        }
    }
}

pub(super) fn lease_lost(settling: Settling<'_>) -> Refusal {
    let Settling {
        context, incoming, ..
    } = settling;
    lost(context, incoming, incoming.lease.ended()).into()
}

/// How a message ends that is put back without counting the attempt.
pub(super) fn postponed(after: Duration, reason: &str) -> Refusal {
    Refusal::Ends(End::Postponed {
        after,
        reason: Some(reason.to_owned()),
    })
}

//! The transitions of a lease, as a pure function of its events, without clock, backend or lock. `renewal`,
//! `state` and `guard` report the events, with the time of each, and carry out what the machine returns. All times
//! are on the monotonic clock.
//!
//! `docs/states.md` lists every transition. A model compares the transitions with every history of a small world.

use std::time::Duration;

use queue_core::backend::StaleReceipts;
use queue_core::{Error, RetryAdvice};

use super::proof::{Evidence, Gone, LastOp, Proof};
use super::storage_time::{MARGIN, Receive};
use super::unanswered::{Earlier, Intent, Unanswered};
use crate::kernel::policy::SHORTEST;

/// The state of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Machine {
    hold: Hold,
    /// Whether the owner no longer needs the lease, which is not renewed then.
    abandoned: bool,
    unanswered: Unanswered,
    /// The earliest time at which the last confirmed lease can end.
    known_end: Duration,
    /// The last confirmed lease's visibility timeout.
    visibility: Duration,
    /// The time after which certainly no receipt that is known here is valid, even if unanswered renewals were carried
    /// out.
    certain_end: Duration,
    renew_until: Duration,
    /// The visibility timeout of the renewals.
    renewal: Duration,
    expiry: Expiry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Hold {
    Held,
    Settled,
    Lost,
}

/// The moment at which the message expires: [`Duration::MAX`] for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Expiry {
    /// The estimated expiry, counted from the request.
    pub(super) known: Duration,
    /// The time after which the message has certainly expired.
    pub(super) certain: Duration,
}

/// What to do about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Renew(Renewal),
    /// Check the lease again at this time.
    CheckAt(Duration),
    /// The lease is lost, unless an application's transaction has completed the message.
    Lost(Loss),
    /// The lease is not checked again.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The receipt is stale, or the message does not exist.
    Gone,
    CertainEnd,
    Expired,
}

/// A renewal to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Renewal {
    pub(super) asked_at: Duration,
    pub(super) visibility: Duration,
    /// How long to wait for the renewal's answer: half of the remaining lease, which leaves time for another try, or a
    /// quarter of the visibility timeout if the lease has ended.
    pub(super) patience: Duration,
}

/// Why a renewal cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Impossible {
    /// The message is settled, or the lease is lost.
    Ended,
    /// The renewal would end after the message expires, which a service may refuse.
    Expiring,
}

impl Machine {
    /// Returns the state of the lease that a receive brings.
    pub(super) fn new(receive: Receive, renew_until: Duration, expiry: Expiry) -> Self {
        let Receive {
            asked_at,
            answered_at,
            visibility,
            renewal,
        } = receive;
        Self {
            hold: Hold::Held,
            abandoned: false,
            unanswered: Unanswered::default(),
            known_end: asked_at.saturating_add(visibility).min(expiry.known),
            visibility,
            certain_end: answered_at.saturating_add(visibility).min(expiry.certain),
            renew_until,
            renewal,
            expiry,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.hold == Hold::Held
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Whether a request got no answer, so that a stale receipt does not prove that the lease is lost.
    pub(super) fn is_doubtful(&self) -> bool {
        self.unanswered.any()
    }

    /// Whether the lease's known end has passed.
    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        now >= self.known_end
    }

    /// Returns how long the lease can last at most.
    pub(super) fn remaining(&self, now: Duration) -> Duration {
        self.certain_end.saturating_sub(now)
    }

    #[cfg(test)]
    pub(super) fn known_end(&self) -> Duration {
        self.known_end
    }

    pub(super) fn certain_end(&self) -> Duration {
        self.certain_end
    }

    /// Returns the longer visibility timeout of the last and the next lease.
    pub(super) fn longest_visibility(&self) -> Duration {
        self.visibility.max(self.renewal)
    }

    /// The visibility timeout of the renewals.
    pub(super) fn renewal_visibility(&self) -> Duration {
        self.renewal
    }

    /// Whether the lease that we know of lasts until `at`, or as long as the message can be leased.
    pub(super) fn lasts_until(&self, at: Duration) -> bool {
        let latest = self.expiry.known.saturating_sub(MARGIN);
        self.is_held() && !self.is_doubtful() && self.known_end >= at.min(latest)
    }

    /// Returns how long the lease certainly lasts.
    pub(super) fn lasts_for(&self, now: Duration) -> Duration {
        if self.is_held() && !self.is_doubtful() {
            self.known_end.saturating_sub(now)
        } else {
            Duration::ZERO
        }
    }

    /// Returns when to renew the lease: half its visibility timeout before its end.
    pub(super) fn renew_at(&self) -> Duration {
        self.known_end.saturating_sub(self.visibility / 2)
    }

    pub(super) fn renew_until(&mut self, at: Duration) {
        self.renew_until = at;
    }

    pub(super) fn check(&self, now: Duration) -> Next {
        if !self.is_held() || self.abandoned {
            return Next::Nothing;
        }
        if now >= self.certain_end {
            return Next::Lost(if now >= self.expiry.certain {
                Loss::Expired
            } else {
                Loss::CertainEnd
            });
        }
        if now < self.renew_at() {
            // Renewed meanwhile: by the mark of the last chance, or before the handler was started.
            return Next::CheckAt(self.renew_at());
        }
        // At most one of several unanswered renewals was carried out, because it made the receipt of the others stale.
        // More renewals would only postpone the certain end.
        let in_vain = self.is_doubtful() && self.is_overdue(now);
        match self.renewal(now) {
            Ok(renewal)
                if now < self.renew_until
                    && !in_vain
                    // No renewal if the message expires before the lease that the renewal would bring ends.
                    && now.saturating_add(renewal.visibility) > self.known_end =>
            {
                Next::Renew(renewal)
            }
            _ => Next::CheckAt(self.certain_end),
        }
    }

    /// Returns how late the renewal that is still to be sent or answered is, if by more than a quarter of the
    /// visibility timeout.
    pub(super) fn overdue_for(&self, now: Duration) -> Option<Duration> {
        let since_due = now.saturating_sub(self.renew_at());
        let is_due = matches!(self.check(now), Next::Renew(_));
        (is_due && since_due > self.longest_visibility() / 4).then_some(since_due)
    }

    /// Returns the renewal to send now, whether one is due or not.
    pub(super) fn renewal(&self, now: Duration) -> Result<Renewal, Impossible> {
        if !self.is_held() {
            return Err(Impossible::Ended);
        }
        let visibility = self.next_visibility(now);
        if visibility.is_zero() {
            return Err(Impossible::Expiring);
        }
        let patience = match self.remaining(now) {
            Duration::ZERO => (self.renewal / 4).max(Duration::from_secs(2)),
            remaining => (remaining / 2).max(Duration::from_millis(100)),
        };
        Ok(Renewal {
            asked_at: now,
            visibility,
            patience,
        })
    }

    /// Returns the visibility timeout of a renewal that is sent now: it ends before the message expires, and
    /// is zero if the message is about to.
    fn next_visibility(&self, now: Duration) -> Duration {
        let latest_end = self.expiry.known.saturating_sub(MARGIN);
        self.renewal.min(latest_end.saturating_sub(now))
    }

    /// Records that a renewal was carried out.
    pub(super) fn renewed(&mut self, renewal: Renewal, now: Duration) {
        self.known_end = renewal.asked_at.saturating_add(renewal.visibility);
        self.visibility = self.renewal;
        self.certain_end = self.latest_end(renewal, now);
        // The receipt was valid until now: no unanswered request was carried out, nor can it be now.
        self.unanswered = Unanswered::default();
    }

    /// Records that a renewal got no answer.
    pub(super) fn renewal_unanswered(&mut self, renewal: Renewal, now: Duration) {
        // Before the expiry the renewal may have shortened the lease.
        let earliest = renewal.asked_at.saturating_add(renewal.visibility);
        self.known_end = self.known_end.min(earliest);
        self.certain_end = self.certain_end.max(self.latest_end(renewal, now));
        self.unanswered.renewal = true;
    }

    /// Returns the latest end of a lease by a renewal that was carried out by now.
    fn latest_end(&self, renewal: Renewal, now: Duration) -> Duration {
        let end = now.saturating_add(renewal.visibility);
        end.min(self.expiry.certain)
    }

    /// Records that a renewal failed. Returns when to check the lease, or `None` if it is lost. `jitter` is from 0 to
    /// 1.
    pub(super) fn renewal_failed(
        &mut self,
        error: &Error,
        now: Duration,
        jitter: f64,
    ) -> Option<Duration> {
        if !error.is_lease_gone() {
            return Some(self.retry_at(error.retry(), now, jitter));
        }
        if !self.is_doubtful() {
            return None;
        }
        // This request may itself have changed the receipt: if it was delivered twice, the second copy is refused.
        self.unanswered.renewal = true;
        Some(self.certain_end)
    }

    /// Returns when to try a renewal again.
    pub(super) fn retry_at(&self, retry: RetryAdvice, now: Duration, jitter: f64) -> Duration {
        let remaining = self.remaining(now);
        let pause = match retry {
            RetryAdvice::Permanent => remaining,
            RetryAdvice::Temporary => (self.renewal / 16).mul_f64(0.5 + jitter),
            // Even if the service asks for a delay beyond the end of the lease, try once more before it.
            RetryAdvice::Throttled(after) => after
                .unwrap_or(self.renewal / 8)
                .min(remaining / 2)
                .max(self.renewal / 64),
        };
        now.saturating_add(pause.max(SHORTEST).min(remaining))
    }

    /// Returns the unanswered settlements before one with this intent.
    pub(super) fn before(&self, intent: &Intent) -> Earlier {
        self.unanswered.before(intent)
    }

    /// Records that a settlement got no answer.
    pub(super) fn settlement_unanswered(&mut self, intent: &Intent) {
        self.unanswered.add_settlement(intent);
    }

    /// Records what the answer *gone* proves about a settlement.
    pub(super) fn settlement_gone(
        &mut self,
        (request, answer): (LastOp, Gone),
        stale_receipts: StaleReceipts,
        intent: &Intent,
        now: Duration,
    ) -> Proof {
        let evidence = Evidence {
            request,
            answer,
            stale_receipts,
            earlier: self.before(intent),
            renewal_unanswered: self.unanswered.renewal,
            lease_may_have_ended: self.is_overdue(now),
            may_have_expired: now.saturating_add(MARGIN) >= self.expiry.known,
        };
        let proof = evidence.proof();
        match proof {
            Proof::CarriedOut => self.settled(),
            Proof::LeaseLost | Proof::Expired => self.lost(),
            Proof::NotCarriedOut | Proof::Nothing => {}
        }
        proof
    }

    /// Records that the message was settled.
    pub(super) fn settled(&mut self) {
        self.hold = Hold::Settled;
    }

    /// Records that the lease is lost.
    pub(super) fn lost(&mut self) {
        self.hold = Hold::Lost;
    }

    /// Records that the owner no longer needs the lease.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
    }
}

impl Loss {
    pub(super) fn cause(self) -> &'static str {
        match self {
            Self::Gone => "the message was received by another consumer or deleted",
            Self::CertainEnd => "it has expired",
            Self::Expired => "the message has expired",
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

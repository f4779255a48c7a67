//! What becomes of a message that has ended, as a pure function of what is known, tabulated in `docs/settlement.md`.

use std::time::Duration;

use queue_core::envelope::{AttemptRecord, PoisonReason};
use queue_core::internal::{as_u32, between};
use queue_core::{Failure, Timestamp};

use super::end::{Delay, End};
use super::write::fingerprint;
use crate::kernel::lease::{Promise, Purpose};
use crate::kernel::policy::{RetryPolicy, doubled};
use crate::kernel::receive::{Caller, Tally};

/// What is known of a message that has ended.
#[derive(Debug, Clone)]
pub(super) struct Known<'a> {
    pub(super) end: &'a End,
    pub(super) caller: Caller,
    /// What became of the transaction in which the application completed the message.
    pub(super) transaction: Promise,
    /// Whether the circuit breaker lets a failed attempt count.
    pub(super) counts: bool,
    /// Whether the handler's code still runs, on a thread that it blocks.
    pub(super) still_runs: bool,
    pub(super) attempt: usize,
    pub(super) threshold: usize,
    /// The record of the earlier attempts.
    pub(super) attempts: &'a AttemptRecord,
    pub(super) dequeue_count: usize,
    /// Whether the body has room for a record.
    pub(super) has_room: bool,
    /// For how long the message can certainly be hidden before it expires.
    pub(super) expires_in: Option<Duration>,
    /// The storage's time.
    pub(super) now: Timestamp,
    pub(super) inserted_at: Timestamp,
    pub(super) retry: &'a RetryPolicy,
    pub(super) version_patience: Duration,
    /// From 0 to 1, for jitter.
    pub(super) random: f64,
}

/// What becomes of a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan<'a> {
    pub(super) claim: ClaimEnd,
    pub(super) step: Step<'a>,
}

/// What becomes of the claim of the message's key, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimEnd {
    /// The work is recorded as done.
    Record,
    /// Another attempt can begin at once.
    Release,
    /// The claim ends with its lease: the work may still be going on, or a transaction has recorded it.
    Leave,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step<'a> {
    /// No step: a transaction has completed the message.
    Nothing,
    /// Put the follow-ups and delete the message.
    Complete,
    PutBack(PutBack<'a>),
    Poison {
        reason: PoisonReason,
        error: Option<&'a str>,
        /// What to do if the message was certainly not moved, which is left to its lease otherwise.
        unless_moved: Option<PutBack<'a>>,
    },
    /// Leave the message to its lease, which is lost.
    Leave,
}

/// An update that makes a message visible again.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PutBack<'a> {
    pub(super) delay: Duration,
    pub(super) tally: Tally<'a>,
    pub(super) purpose: Purpose,
    /// Whether the message comes back so often that its delay is longer than was asked for, for the first time.
    pub(super) is_slowed: bool,
}

/// How often a message may come back without a pause.
const UNSLOWED: usize = 32;

/// The delay after [`UNSLOWED`] returns, which doubles up to the longest.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// The shortest and the longest delay before a message from a newer program is received again.
const MIN_POSTPONEMENT: Duration = Duration::from_secs(1);
const MAX_POSTPONEMENT: Duration = Duration::from_secs(60 * 60);

/// The error of an attempt whose handler returned as if its transaction was committed.
const NOT_COMMITTED: &str = "the transaction in which the message was completed was not committed";

/// Whether a message that ended like this is completed, whatever else is known of it.
pub(super) fn completes(end: &End, transaction: Promise) -> bool {
    *end == End::Completed && transaction == Promise::None
}

/// Decides what becomes of a message.
pub(super) fn plan<'a>(known: &Known<'a>) -> Plan<'a> {
    let mut step = known.step();
    if let Step::PutBack(put_back)
    | Step::Poison {
        unless_moved: Some(put_back),
        ..
    } = &mut step
    {
        known.slow_down(put_back);
    }
    let claim = match &step {
        Step::Complete => ClaimEnd::Record,
        Step::Nothing => ClaimEnd::Leave,
        _ if known.still_runs => ClaimEnd::Leave,
        _ => ClaimEnd::Release,
    };
    Plan { claim, step }
}

impl<'a> Known<'a> {
    fn step(&self) -> Step<'a> {
        if self.transaction == Promise::Committed {
            return Step::Nothing;
        }
        match self.end {
            // The caller of `accept` has learned from `confirm` that nothing was committed.
            End::Completed if self.is_rolled_back() && self.caller == Caller::Listener => {
                self.failed(NOT_COMMITTED, None, &Delay::Usual)
            }
            End::Completed => Step::Complete,
            End::Failed {
                error,
                failure,
                delay,
            } => self.failed(error, failure.as_ref(), delay),
            End::Unusable { reason, error } => poison(*reason, error.as_deref()),
            End::OutOfAttempts { reason, error } => Step::Poison {
                reason: *reason,
                error: error.as_deref(),
                // Unrecorded, this receive would be taken for one in which moving the message ended the process.
                unless_moved: self.put_back_unmoved(Tally::Judged),
            },
            End::Postponed { after, reason } => self.postponed(*after, reason.as_deref()),
            End::NewerProgram { reason, error } => self.newer_program(*reason, error),
            End::Released => Step::PutBack(PutBack::new(
                Duration::ZERO,
                Tally::Released,
                Purpose::Release,
            )),
            End::LeaseLost => Step::Leave,
        }
    }

    fn is_rolled_back(&self) -> bool {
        self.transaction == Promise::RolledBack
    }

    fn failed(&self, error: &'a str, failure: Option<&'a Failure>, delay: &Delay) -> Step<'a> {
        let after = self.delay(delay);
        if !self.counts {
            let expires = self.expires_within(after);
            let delay = if expires { Duration::ZERO } else { after };
            let tally = Tally::Forgiven(error);
            return Step::PutBack(PutBack::new(delay, tally, Purpose::Release));
        }
        if self.attempt >= self.threshold {
            let receives = self.dequeue_count;
            return Step::Poison {
                reason: PoisonReason::Failed,
                error: Some(error),
                // The caller of `accept` still has the message, and decides.
                unless_moved: match self.caller {
                    Caller::Listener => self.put_back_unmoved(Tally::Exhausted { error, receives }),
                    Caller::Accept => None,
                },
            };
        }
        if self.expires_within(after) {
            return poison(PoisonReason::Expiring, Some(error));
        }
        let purpose = Purpose::Retry {
            after: match delay {
                Delay::Exactly(after) => Some(*after),
                Delay::Usual | Delay::ByPolicy(_) => None,
            },
            error: fingerprint(error),
        };
        let tally = Tally::Failed { error, failure };
        Step::PutBack(PutBack::new(after, tally, purpose))
    }

    fn postponed(&self, after: Duration, reason: Option<&'a str>) -> Step<'a> {
        if self.expires_within(after) {
            return poison(PoisonReason::Expiring, reason);
        }
        let tally = Tally::Postponed(reason);
        Step::PutBack(PutBack::new(after, tally, Purpose::PostponeFor(after)))
    }

    /// Postpones the message until a program that can handle it receives it, or the patience is over. The patience is
    /// counted from the first postponement or, without room to record that, from when the message was stored.
    fn newer_program(&self, reason: PoisonReason, error: &'a str) -> Step<'a> {
        let recorded = self.attempts.newer_since.unwrap_or(self.now);
        let (since, after) = if self.has_room {
            let doublings = 2_u32.saturating_pow(as_u32(self.attempts.forgiven));
            (recorded, MIN_POSTPONEMENT.saturating_mul(doublings))
        } else {
            (self.inserted_at, between(self.inserted_at, self.now))
        };
        let delay = after
            .clamp(MIN_POSTPONEMENT, MAX_POSTPONEMENT)
            .mul_f64(0.8 + 0.2 * self.random);
        if self.expires_within(delay) {
            return poison(PoisonReason::Expiring, Some(error));
        }
        if between(since, self.now) >= self.version_patience {
            return poison(reason, Some(error));
        }
        let tally = Tally::NewerVersion { since: recorded };
        Step::PutBack(PutBack::new(delay, tally, Purpose::Postpone))
    }

    /// What is written of a message that could not be moved to the poison queue.
    fn put_back_unmoved(&self, tally: Tally<'a>) -> Option<PutBack<'a>> {
        let delay = self.delay(&Delay::Usual);
        let put_back = PutBack::new(delay, tally, Purpose::Release);
        (!self.expires_within(delay)).then_some(put_back)
    }

    fn delay(&self, delay: &Delay) -> Duration {
        match delay {
            Delay::Usual => self.retry.delay(self.attempt, self.random),
            Delay::ByPolicy(policy) => policy.delay(self.attempt, self.random),
            Delay::Exactly(after) => *after,
        }
    }

    /// Slows down a message that is put back again and again, whatever for: each time costs a receive and a write.
    fn slow_down(&self, put_back: &mut PutBack<'_>) {
        let life = self.expires_in.unwrap_or(Duration::MAX);
        let shortest = shortest_delay(self.dequeue_count).min(life / 2);
        if put_back.delay < shortest {
            put_back.is_slowed = put_back.delay >= shortest_delay(self.dequeue_count - 1);
            put_back.delay = shortest;
        }
    }

    fn expires_within(&self, delay: Duration) -> bool {
        self.expires_in.is_some_and(|life| delay >= life)
    }
}

impl<'a> PutBack<'a> {
    fn new(delay: Duration, tally: Tally<'a>, purpose: Purpose) -> Self {
        Self {
            delay,
            tally,
            purpose,
            is_slowed: false,
        }
    }

    /// Whether the message goes back where it was, because nobody has handled it.
    pub(super) fn keeps_place(&self) -> bool {
        self.tally == Tally::Released && self.delay.is_zero()
    }
}

/// Returns the shortest delay of a message that has been received so often.
fn shortest_delay(receives: usize) -> Duration {
    match receives.checked_sub(UNSLOWED + 1) {
        Some(doublings) => doubled(SHORTEST_DELAY, doublings, LONGEST_DELAY),
        None => Duration::ZERO,
    }
}

fn poison(reason: PoisonReason, error: Option<&str>) -> Step<'_> {
    Step::Poison {
        reason,
        error,
        unless_moved: None,
    }
}

#[cfg(test)]
mod tests;

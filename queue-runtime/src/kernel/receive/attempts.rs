//! Attempt accounting: the number of attempts that a message has had, and whether it gets another one.
//!
//! A receive whose attempt ended without a record (because the process died, or the lease or response was lost) shows
//! only in the dequeue count, and is *unexplained*: the handler may never have run. A message with unexplained receives
//! that reaches the poison threshold is marked as on its last chance and run once more, and is poison only if it comes
//! back with the mark.
//!
//! A record is data from outside: a producer can write anything into it. A record is believed only as far as the
//! storage's own figures allow ([`believe`]).
//!
//! [`judge`] judges a message when it is received, `settlement::plan` when an attempt has failed: it is moved to the poison
//! queue as soon as its last attempt has. [`Tally`] is what a put-back adds to the record.

use std::time::Duration;

use queue_core::backend::ReceivedMessage;
use queue_core::envelope::{AttemptRecord, PoisonReason};
use queue_core::internal::{escape_short, later};
use queue_core::{Failure, Timestamp};

use crate::kernel::lease::MARGIN;

/// What to do with a message that was just received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptVerdict {
    /// Run the handler.
    Run {
        /// The number of this attempt, from 1.
        attempt: usize,
        /// Whether to mark the message as on its last chance first.
        mark: bool,
    },
    /// Move the message to the poison queue.
    Poison {
        /// The reason.
        reason: PoisonReason,
        /// The number of attempts made.
        attempts: usize,
    },
}

impl AttemptVerdict {
    /// The number of the attempt that is to be made, or of those that were made.
    pub(crate) fn attempts(&self) -> usize {
        match self {
            Self::Run { attempt, .. } => *attempt,
            Self::Poison { attempts, .. } => *attempts,
        }
    }
}

/// The longest delay of a message that is believed: a hundred years.
const LONGEST_DELAY: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

/// Drops what cannot be true of a record, so that its writer decides neither when a message is poison nor
/// that it never is.
///
/// A record that explains more receives than there were before this one was not written by a consumer; none
/// of its counts is believed. `not_before` does no more than a delay, which its sender might have asked for: it is believed
/// whatever the counts are, which a copy of the message begins anew, if it is within [`LONGEST_DELAY`]. `newer_since` is
/// believed if it is within the message's life, to within the precision of the storage's time.
pub(crate) fn believe(record: &mut AttemptRecord, message: &ReceivedMessage) {
    let earlier = message.dequeue_count.saturating_sub(1);
    let not_before = record.not_before.take();
    if record.failures.saturating_add(record.forgiven) > earlier {
        let mut unbelieved = AttemptRecord::default();
        // Progress decides nothing here, and its reader checks it.
        unbelieved.progress = record.progress.take();
        *record = unbelieved;
    }
    record.not_before = not_before.filter(|due| *due <= later(message.received_at, LONGEST_DELAY));
    record.newer_since = record.newer_since.filter(|since| {
        let life = message.inserted_at..=later(message.received_at, MARGIN);
        life.contains(since)
    });
}

/// Returns the verdict on an event from its dequeue count, which includes this receive, and its record, as
/// far as that is to be believed.
///
/// Whatever the attempts before a redrive, the message is run at least once more: a producer that writes attempts into
/// a record gives up some, but not all.
pub(crate) fn judge(
    dequeue_count: usize,
    record: &AttemptRecord,
    threshold: usize,
) -> AttemptVerdict {
    let explained = record.failures.saturating_add(record.forgiven);
    let unexplained = dequeue_count.saturating_sub(1).saturating_sub(explained);
    let since_redrive = record.failures.saturating_add(unexplained);
    let attempts = record.earlier.saturating_add(since_redrive);
    if attempts < threshold || since_redrive == 0 {
        return AttemptVerdict::Run {
            attempt: attempts.saturating_add(1),
            mark: false,
        };
    }
    match (unexplained, record.last_chance) {
        (0, _) => AttemptVerdict::Poison {
            reason: PoisonReason::Failed,
            attempts,
        },
        (_, true) => AttemptVerdict::Poison {
            reason: PoisonReason::Crashed,
            attempts,
        },
        (_, false) => AttemptVerdict::Run {
            attempt: attempts.saturating_add(1),
            mark: true,
        },
    }
}

/// Returns the verdict on a body that cannot be marked, because it is not an event or has no room: from its
/// dequeue count alone, with a margin of one receive. Of an event, the receives that its record explains are
/// not counted.
pub(crate) fn judge_bare(dequeue_count: usize, threshold: usize) -> AttemptVerdict {
    let attempts = dequeue_count.saturating_sub(1);
    if attempts <= threshold {
        AttemptVerdict::Run {
            attempt: dequeue_count.max(1),
            mark: false,
        }
    } else {
        AttemptVerdict::Poison {
            reason: PoisonReason::Crashed,
            attempts,
        }
    }
}

/// What a put-back records of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tally<'a> {
    /// The attempt has failed, with this error.
    Failed {
        error: &'a str,
        failure: Option<&'a Failure>,
    },
    /// The attempt has failed with this error, and does not count.
    Forgiven(&'a str),
    /// The receive was no attempt.
    Released,
    /// The receive was no attempt, because the work cannot be done yet.
    Postponed(Option<&'a str>),
    /// The receive was no attempt, because only a newer program can decode the message, as is known since `since`.
    NewerVersion { since: Timestamp },
    /// The receive was no attempt: the message has no attempts left. The mark of the last chance stays.
    Judged,
    /// The attempt was the last one. All `receives` are counted as failures, so that there is no further attempt.
    Exhausted { error: &'a str, receives: usize },
}

/// The longest `lasterror`, in bytes, which fits into the space that `submit` reserves.
const MAX_LAST_ERROR: usize = 1024;

impl Tally<'_> {
    /// Returns the record with this attempt.
    pub(crate) fn applied_to(&self, record: &AttemptRecord) -> AttemptRecord {
        let mut record = record.clone();
        // The mark is for one attempt only.
        record.last_chance &= matches!(self, Self::Judged);
        match *self {
            Self::Failed { .. } => record.failures = record.failures.saturating_add(1),
            Self::Exhausted { receives, .. } => {
                record.failures = receives.saturating_sub(record.forgiven);
            }
            _ => record.forgiven = record.forgiven.saturating_add(1),
        }
        match *self {
            Self::Failed { error, .. } | Self::Forgiven(error) | Self::Exhausted { error, .. } => {
                record.last_error = Some(escape_short(error, MAX_LAST_ERROR).into_owned());
            }
            Self::NewerVersion { since } => record.newer_since = Some(since),
            Self::Released | Self::Postponed(_) | Self::Judged => {}
        }
        record
    }
}

#[cfg(test)]
mod tests;

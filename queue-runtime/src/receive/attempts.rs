//! Attempt accounting: the number of attempts that a message has had, and whether it gets another one.
//!
//! A receive whose attempt ended without a record (because the process died, the lease was lost, or the
//! response was lost) shows only in the dequeue count. Such receives are *unexplained*: the handler may
//! never have run. If a message with unexplained receives reaches the threshold, it is therefore marked as
//! on its last chance and run once more. It is poison only if it comes back with the mark.
//!
//! This judges a message when it is received. `put_back::fail` moves it to the poison queue as soon as its
//! last attempt has failed.

use queue_core::envelope::{AttemptRecord, PoisonReason};

/// What to do with a message that was just received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Run the handler.
    Run {
        /// The number of this attempt, from 1.
        attempt: u32,
        /// Whether to mark the message as on its last chance first.
        mark: bool,
    },
    /// Move the message to the poison queue.
    Poison {
        /// The reason.
        reason: PoisonReason,
        /// The number of attempts made.
        attempts: u32,
    },
}

/// Returns the verdict on an event from its dequeue count, which includes this receive, and its record.
pub(crate) fn judge(dequeue_count: u32, record: &AttemptRecord, threshold: u32) -> Verdict {
    let explained = record.failures.saturating_add(record.forgiven);
    let unexplained = dequeue_count.saturating_sub(1).saturating_sub(explained);
    let attempts = record.failures.saturating_add(unexplained);
    if attempts < threshold {
        return Verdict::Run {
            attempt: attempts + 1,
            mark: false,
        };
    }
    match (unexplained, record.last_chance) {
        (0, _) => Verdict::Poison {
            reason: PoisonReason::Failed,
            attempts,
        },
        (_, true) => Verdict::Poison {
            reason: PoisonReason::Crashed,
            attempts,
        },
        (_, false) => Verdict::Run {
            attempt: attempts.saturating_add(1),
            mark: true,
        },
    }
}

/// Returns the verdict on a body that is not an event and thus cannot be marked: from its dequeue count
/// alone, with a margin of one receive.
pub(crate) fn judge_bare(dequeue_count: u32, threshold: u32) -> Verdict {
    let attempts = dequeue_count.saturating_sub(1);
    if attempts <= threshold {
        Verdict::Run {
            attempt: dequeue_count.max(1),
            mark: false,
        }
    } else {
        Verdict::Poison {
            reason: PoisonReason::Crashed,
            attempts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(failures: u32, forgiven: u32, last_chance: bool) -> AttemptRecord {
        let mut record = AttemptRecord::default();
        (record.failures, record.forgiven, record.last_chance) = (failures, forgiven, last_chance);
        record
    }

    #[test]
    fn failures_alone_are_counted_exactly() {
        for failures in 0..5 {
            let verdict = judge(failures + 1, &record(failures, 0, false), 5);
            assert_eq!(
                verdict,
                Verdict::Run {
                    attempt: failures + 1,
                    mark: false
                }
            );
        }
        assert_eq!(
            judge(6, &record(5, 0, false), 5),
            Verdict::Poison {
                reason: PoisonReason::Failed,
                attempts: 5
            }
        );
    }

    #[test]
    fn forgiven_receives_do_not_count() {
        assert_eq!(
            judge(100, &record(2, 97, false), 5),
            Verdict::Run {
                attempt: 3,
                mark: false
            }
        );
    }

    #[test]
    fn unexplained_receives_get_one_more_run() {
        assert_eq!(
            judge(6, &record(0, 0, false), 5),
            Verdict::Run {
                attempt: 6,
                mark: true
            }
        );
        assert_eq!(
            judge(7, &record(0, 0, true), 5),
            Verdict::Poison {
                reason: PoisonReason::Crashed,
                attempts: 6
            }
        );
    }

    #[test]
    fn a_mark_below_the_threshold_means_nothing() {
        assert_eq!(
            judge(2, &record(0, 0, true), 5),
            Verdict::Run {
                attempt: 2,
                mark: false
            }
        );
    }

    #[test]
    fn a_lost_count_does_not_underflow() {
        assert_eq!(
            judge(0, &record(3, 3, false), 5),
            Verdict::Run {
                attempt: 4,
                mark: false
            }
        );
    }

    #[test]
    fn bare_bodies_have_one_receive_of_margin() {
        assert_eq!(
            judge_bare(6, 5),
            Verdict::Run {
                attempt: 6,
                mark: false
            }
        );
        assert!(matches!(
            judge_bare(7, 5),
            Verdict::Poison { attempts: 6, .. }
        ));
    }
}

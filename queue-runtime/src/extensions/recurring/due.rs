//! Decisions about ticks, without storage or clock: which are due, and what is done while the last recorded tick is
//! ahead of the clock: one of the clocks is or was wrong.
//!
//! A schedule waits for a recorded tick a little ahead of the clock. A recorded tick far ahead of this process's clock
//! is replaced once the clock has been steady for a while, so that the schedule does not stop until that tick.

use std::time::Duration;

use queue_core::clock::Timestamp;
use queue_core::internal::between;

use super::recurrence::Ticks;

/// How late a tick may be submitted without being missed.
const TOLERANCE: Duration = Duration::from_secs(60);

/// The maximum number of missed ticks that [`Missed::All`] submits.
pub const MAX_MISSED: usize = 1000;

/// What a schedule does about the ticks that it missed: those that are more than a minute late, because no process ran,
/// or the storage could not be reached.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::{Missed, every};
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Report {}
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hour = Duration::from_secs(60 * 60);
/// let service = testing::service().await;
/// let start = || {
///     let schedule = service.schedule("report", every(hour), |_| Report {});
///     schedule.missed(Missed::All { limit: 24 }).start()
/// };
/// start()?.stop().await;
/// tokio::time::sleep(3 * hour + hour / 2).await; // the program is down
/// let schedule = start()?;
/// tokio::time::sleep(hour / 4).await;
/// assert_eq!(service.submitted::<Report>().len(), 3);
/// # schedule.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missed {
    /// Missed ticks are not submitted. The schedule goes on with the next tick that is in time.
    Skip,
    /// One message is submitted for all missed ticks: the message of the latest tick, even if that tick is in time.
    #[default]
    Once,
    /// Each missed tick is submitted, oldest first. Of more than `limit` missed ticks, the oldest are skipped.
    All {
        /// The most ticks to submit, from 1 to [`MAX_MISSED`](super::MAX_MISSED).
        limit: usize,
    },
}

/// Returns the ticks after `last` that are to be submitted at `now`, oldest first.
pub(super) fn due(
    ticks: &dyn Ticks,
    last: Timestamp,
    now: Timestamp,
    missed: Missed,
) -> Vec<Timestamp> {
    let mut due = Vec::new();
    let mut at = ticks.latest(now);
    let mut late = 0;
    while let Some(tick) = at.filter(|tick| *tick > last) {
        let is_late = now.duration_since(tick).unsigned_abs() > TOLERANCE;
        late += usize::from(is_late);
        let wanted = match missed {
            _ if !is_late => true,
            Missed::Skip => false,
            Missed::Once => due.is_empty(),
            Missed::All { limit } => late <= limit,
        };
        if !wanted {
            break;
        }
        due.push(tick);
        at = tick
            .checked_sub(Duration::from_nanos(1))
            .ok()
            .and_then(|before| ticks.latest(before));
    }
    due.reverse();
    due
}

/// How far ahead a tick is without being mentioned: clocks differ a little.
const NOT_MENTIONED: Duration = Duration::from_secs(30);

/// The least that is far ahead, or a schedule's period if that is longer.
const FAR: Duration = Duration::from_secs(60 * 60);

/// How long the clock must be steady before a record is replaced.
const STEADY: Duration = Duration::from_secs(10 * 60);

/// How much a steady wall clock and the monotonic clock may differ within [`STEADY`].
const SLEW: Duration = Duration::from_secs(5);

/// The interval of the warnings.
const WARN_AGAIN: Duration = Duration::from_secs(60 * 60);

/// A moment on both clocks of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct BothClocks {
    pub(super) wall: Timestamp,
    pub(super) monotonic: Duration,
}

/// How long the record has been ahead, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct Lead(Option<Ahead>);

#[derive(Debug, Clone, Copy)]
struct Ahead {
    tick: Timestamp,
    is_far: bool,
    /// Since when the record is this one, and the clock is steady.
    since: BothClocks,
    /// When the record was last warned of, on the monotonic clock.
    warned: Duration,
}

/// What to do about the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeadVerdict {
    /// The record is not ahead.
    InTime,
    Wait,
    /// Wait, and warn.
    Warn {
        is_far: bool,
    },
    /// Record this moment instead: since then, ticks may have been missed.
    Replace(Timestamp),
}

impl Lead {
    /// Returns whether the record was ahead at the last look.
    pub(super) fn is_ahead(&self) -> bool {
        self.0.is_some()
    }

    /// Looks at the tick that is recorded.
    pub(super) fn look(
        &mut self,
        ticks: &dyn Ticks,
        tick: Timestamp,
        now: BothClocks,
    ) -> LeadVerdict {
        let ahead = between(now.wall, tick);
        if ahead <= NOT_MENTIONED {
            self.0 = None;
            return LeadVerdict::InTime;
        }
        let is_far = ahead > FAR.max(period(ticks, now.wall));
        let before = self.0.filter(|before| before.is_far || !is_far);
        let warned = before.map(|before| before.warned);
        let warned = warned.filter(|at| now.monotonic.saturating_sub(*at) < WARN_AGAIN);
        let same = before.filter(|before| before.tick == tick && before.since.is_steady(now));
        let since = same.map_or(now, |before| before.since);
        self.0 = Some(Ahead {
            tick,
            is_far,
            since,
            warned: warned.unwrap_or(now.monotonic),
        });
        let steady = now.monotonic.saturating_sub(since.monotonic);
        match warned {
            _ if is_far && steady >= STEADY => LeadVerdict::Replace(since.wall.min(now.wall)),
            None => LeadVerdict::Warn { is_far },
            Some(_) => LeadVerdict::Wait,
        }
    }
}

impl BothClocks {
    /// Returns whether both clocks have advanced alike until `now`.
    fn is_steady(self, now: Self) -> bool {
        let monotonic = now.monotonic.saturating_sub(self.monotonic);
        between(self.wall, now.wall).abs_diff(monotonic) <= SLEW
    }
}

/// Returns the time between the ticks around a moment.
fn period(ticks: &dyn Ticks, moment: Timestamp) -> Duration {
    match (ticks.latest(moment), ticks.next(moment)) {
        (Some(latest), Some(next)) => between(latest, next),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod due_tests {
    use super::super::recurrence::every;
    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-01-01T{time}Z").parse().expect("a time")
    }

    #[track_caller]
    fn assert_due(missed: Missed, last: &str, now: &str, expected: &[&str]) {
        let recurrence = every(Duration::from_secs(300));
        let ticks = recurrence.ticks().expect("valid");
        let expected: Vec<_> = expected.iter().copied().map(at).collect();
        assert_eq!(
            due(&**ticks, at(last), at(now), missed),
            expected,
            "{missed:?}"
        );
    }

    #[test]
    fn a_tick_in_time_is_due_under_every_policy() {
        for missed in [Missed::Skip, Missed::Once, Missed::All { limit: 1 }] {
            assert_due(missed, "10:00:00", "10:04:59", &[]);
            assert_due(missed, "10:00:00", "10:05:00", &["10:05:00"]);
            assert_due(missed, "10:00:00", "10:06:00", &["10:05:00"]);
            assert_due(missed, "10:05:00", "10:06:00", &[]);
            assert_due(missed, "23:00:00", "10:06:00", &[]);
        }
    }

    #[test]
    fn the_policy_decides_about_late_ticks() {
        assert_due(Missed::Skip, "10:00:00", "10:17:00", &[]);
        assert_due(Missed::Skip, "10:00:00", "10:15:30", &["10:15:00"]);
        assert_due(Missed::Once, "10:00:00", "10:17:00", &["10:15:00"]);
        assert_due(Missed::Once, "10:00:00", "10:15:30", &["10:15:00"]);
        let all = ["10:05:00", "10:10:00", "10:15:00"];
        assert_due(Missed::All { limit: 3 }, "10:00:00", "10:17:00", &all);
        assert_due(Missed::All { limit: 2 }, "10:00:00", "10:17:00", &all[1..]);
        assert_due(Missed::All { limit: 1 }, "10:00:00", "10:15:30", &all[1..]);
    }

    #[test]
    fn a_year_of_missed_seconds_is_bounded() {
        let recurrence = every(Duration::from_secs(1));
        let ticks = recurrence.ticks().expect("valid");
        let last = "2025-01-01T00:00:00Z".parse().expect("a time");
        let count = |missed| due(&**ticks, last, at("00:00:00"), missed).len();
        assert_eq!(count(Missed::All { limit: MAX_MISSED }), 61 + MAX_MISSED);
        assert_eq!((count(Missed::Skip), count(Missed::Once)), (61, 61));
    }
}

#[cfg(test)]
mod lead_tests {
    use queue_tests::{HOUR, MINUTE, SECOND};

    use super::super::recurrence::every;
    use super::LeadVerdict::{InTime, Replace, Wait, Warn};
    use super::*;

    const NEAR: LeadVerdict = Warn { is_far: false };
    const FAR: LeadVerdict = Warn { is_far: true };

    const START: Timestamp = Timestamp::constant(1_767_225_600, 0);

    /// Looks so long after the start, while the record is so far ahead of the start.
    struct Looks {
        lead: Lead,
        interval: Duration,
        /// How far the wall clock was stepped back, or ahead.
        stepped: jiff::SignedDuration,
    }

    impl Looks {
        fn every(interval: Duration) -> Self {
            Self {
                lead: Lead::default(),
                interval,
                stepped: jiff::SignedDuration::ZERO,
            }
        }

        #[track_caller]
        fn look(&mut self, after: Duration, record: Duration, expected: LeadVerdict) {
            let recurrence = every(self.interval);
            let now = BothClocks {
                wall: START + after + self.stepped,
                monotonic: after,
            };
            let ticks = recurrence.ticks().expect("valid");
            let verdict = self.lead.look(&**ticks, START + record, now);
            assert_eq!(verdict, expected, "after {after:?}");
            assert_eq!(self.lead.is_ahead(), expected != InTime);
        }
    }

    #[test]
    fn a_record_that_is_a_little_ahead_is_waited_for_and_warned_of_hourly() {
        let mut looks = Looks::every(MINUTE);
        looks.look(SECOND, 31 * SECOND, InTime);
        // The record stays an hour ahead.
        looks.look(MINUTE, HOUR + MINUTE, NEAR);
        for minute in 2..61 {
            looks.look(minute * MINUTE, HOUR + minute * MINUTE, Wait);
        }
        looks.look(61 * MINUTE, HOUR + 61 * MINUTE, NEAR);
        looks.look(62 * MINUTE, 2 * HOUR + MINUTE, Wait);
        looks.look(2 * HOUR + MINUTE, 2 * HOUR + MINUTE, InTime);
    }

    #[test]
    fn a_record_that_is_far_ahead_is_replaced_after_ten_steady_minutes() {
        let year = 365 * 24 * HOUR;
        let mut looks = Looks::every(MINUTE);
        looks.look(MINUTE, MINUTE + HOUR, NEAR);
        looks.look(2 * MINUTE, year, FAR);
        for minute in 3..12 {
            looks.look(minute * MINUTE, year, Wait);
        }
        looks.look(12 * MINUTE, year, Replace(START + 2 * MINUTE));
        // Said again until the record is replaced.
        looks.look(13 * MINUTE, year, Replace(START + 2 * MINUTE));
        looks.look(14 * MINUTE, 12 * MINUTE, InTime);
        looks.look(15 * MINUTE, year, FAR);
    }

    #[test]
    fn the_period_counts_if_it_is_longer_than_an_hour() {
        let day = 24 * HOUR;
        let mut looks = Looks::every(day);
        looks.look(MINUTE, MINUTE + day, NEAR);
        looks.look(11 * MINUTE, MINUTE + day, Wait);
        looks.look(12 * MINUTE, 13 * MINUTE + day, FAR);
    }

    #[test]
    fn another_record_and_a_stepped_clock_begin_anew() {
        let year = 365 * 24 * HOUR;
        let mut looks = Looks::every(MINUTE);
        looks.look(MINUTE, year, FAR);
        looks.look(10 * MINUTE, year, Wait);
        looks.look(11 * MINUTE, year + MINUTE, Wait);
        looks.stepped = jiff::SignedDuration::from_secs(-6);
        looks.look(20 * MINUTE, year + MINUTE, Wait);
        looks.stepped = jiff::SignedDuration::from_mins(3);
        looks.look(29 * MINUTE, year + MINUTE, Wait);
        looks.look(38 * MINUTE, year + MINUTE, Wait);
        looks.look(39 * MINUTE, year + MINUTE, Replace(START + 32 * MINUTE));
    }
}

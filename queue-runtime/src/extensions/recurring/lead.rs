//! What a schedule does while the last tick that is recorded is ahead of the clock: one of the clocks is or was wrong.
//!
//! A little ahead, it waits. A record that is far ahead, as after a clock that was a year ahead for two seconds, is
//! replaced once this process's clock has been steady for a while, so that the schedule does not stop until then.

use std::time::Duration;

use queue_core::clock::Timestamp;
use queue_core::internal::between;

use super::recurrence::Ticks;

/// How far ahead a tick is without being mentioned: clocks differ a little.
const TOLERANCE: Duration = Duration::from_secs(30);

/// The least that is far ahead. Of a schedule with a longer period, it is that.
const FAR: Duration = Duration::from_secs(60 * 60);

/// How long the clock must be steady before a record is replaced.
const STEADY: Duration = Duration::from_secs(10 * 60);

/// How much the wall clock and the monotonic clock of a steady clock may differ in that time.
const SLEW: Duration = Duration::from_secs(5);

/// The interval of the warnings.
const WARN_AGAIN: Duration = Duration::from_secs(60 * 60);

/// A moment on both clocks of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
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
    since: Moment,
    /// When it was last warned of, on the monotonic clock.
    warned: Duration,
}

/// What to do about the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is not ahead.
    InTime,
    Wait,
    /// Wait, and say so.
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
    pub(super) fn look(&mut self, ticks: &dyn Ticks, tick: Timestamp, now: Moment) -> Verdict {
        let ahead = between(now.wall, tick);
        if ahead <= TOLERANCE {
            self.0 = None;
            return Verdict::InTime;
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
            _ if is_far && steady >= STEADY => Verdict::Replace(since.wall.min(now.wall)),
            None => Verdict::Warn { is_far },
            Some(_) => Verdict::Wait,
        }
    }
}

impl Moment {
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
mod tests {
    use super::super::every::every;
    use super::Verdict::{InTime, Replace, Wait, Warn};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);
    const NEAR: Verdict = Warn { is_far: false };
    const FAR: Verdict = Warn { is_far: true };

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
        fn look(&mut self, after: Duration, record: Duration, expected: Verdict) {
            let recurrence = every(self.interval);
            let now = Moment {
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
        // It stays an hour ahead.
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
        // Until it is done.
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

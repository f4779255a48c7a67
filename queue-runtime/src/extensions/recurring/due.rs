use std::time::Duration;

use queue_core::clock::Timestamp;

use super::recurrence::Ticks;

/// How late a tick may be submitted without being missed.
const TOLERANCE: Duration = Duration::from_secs(60);

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
    /// They are not submitted. The schedule goes on with the next tick that is in time.
    Skip,
    /// One message is submitted for all of them: that of the latest tick, also if that one is in time.
    #[default]
    Once,
    /// Each is submitted, oldest first. Of more than `limit` missed ticks, the oldest are skipped.
    All {
        /// The most ticks to submit, from 1 to [`MAX_MISSED`](super::MAX_MISSED).
        limit: u32,
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
        late += u32::from(is_late);
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

#[cfg(test)]
mod tests {
    use super::super::every::every;
    use super::super::limits::MAX_MISSED;
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
        assert_eq!(
            count(Missed::All { limit: MAX_MISSED }),
            61 + MAX_MISSED as usize
        );
        assert_eq!((count(Missed::Skip), count(Missed::Once)), (61, 61));
    }
}

//! When a schedule ticks: at an interval, or by a cron expression.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use queue_core::clock::Timestamp;

/// The times at which a schedule ticks: at an [interval](super::every) or, with the feature `cron`, by a [cron
/// expression](https://docs.rs/croner).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::every;
///
/// let quarterly = every(Duration::from_secs(15 * 60));
/// let at = "2026-03-01T10:07:00Z".parse()?;
/// assert_eq!(quarterly.next_after(at)?, Some("2026-03-01T10:15:00Z".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Recurrence {
    ticks: Result<Arc<dyn Ticks>, InvalidRecurrence>,
}

/// A sequence of moments.
pub(super) trait Ticks: fmt::Debug + Send + Sync {
    /// Returns the first tick after a moment.
    fn next(&self, after: Timestamp) -> Option<Timestamp>;

    /// Returns the last tick that is not after a moment.
    fn latest(&self, at: Timestamp) -> Option<Timestamp>;
}

impl Recurrence {
    pub(super) fn of(ticks: impl Ticks + 'static) -> Self {
        Self {
            ticks: Ok(Arc::new(ticks)),
        }
    }

    pub(super) fn invalid(error: InvalidRecurrence) -> Self {
        Self { ticks: Err(error) }
    }

    /// Returns the first tick after a moment, or `None` if no tick is within the range of timestamps.
    ///
    /// # Errors
    /// If the interval, the cron expression or its time zone is invalid.
    pub fn next_after(&self, moment: Timestamp) -> Result<Option<Timestamp>, InvalidRecurrence> {
        Ok(self.ticks()?.next(moment))
    }

    pub(super) fn ticks(&self) -> Result<&Arc<dyn Ticks>, InvalidRecurrence> {
        self.ticks.as_ref().map_err(Clone::clone)
    }
}

impl fmt::Debug for Recurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ticks {
            Ok(ticks) => ticks.fmt(f),
            Err(invalid) => invalid.fmt(f),
        }
    }
}

/// Creates a recurrence at the multiples of an interval since 1970-01-01T00:00:00Z, so that all processes tick at the
/// same moments: every 15 minutes means the quarters of an hour in UTC, every day means midnight in UTC.
///
/// The interval must be from 1 second to 366 days, which is checked when the schedule is started.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::every;
///
/// let daily = every(Duration::from_secs(24 * 60 * 60));
/// let noon = "2026-03-01T12:00:00Z".parse()?;
/// assert_eq!(daily.next_after(noon)?, Some("2026-03-02T00:00:00Z".parse()?));
/// assert!(every(Duration::ZERO).next_after(noon).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn every(interval: Duration) -> Recurrence {
    if (SHORTEST..=LONGEST).contains(&interval) {
        let interval = SignedDuration::try_from(interval);
        Recurrence::of(Every(interval.expect("at most a year")))
    } else {
        Recurrence::invalid(InvalidRecurrence::Interval(interval))
    }
}

#[derive(Debug)]
struct Every(SignedDuration);

impl Ticks for Every {
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let interval = self.0.as_nanos();
        let count = after.as_nanosecond().div_euclid(interval) + 1;
        Timestamp::from_nanosecond(count * interval).ok()
    }

    fn latest(&self, at: Timestamp) -> Option<Timestamp> {
        let interval = self.0.as_nanos();
        let count = at.as_nanosecond().div_euclid(interval);
        Timestamp::from_nanosecond(count * interval).ok()
    }
}

/// The shortest interval.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest interval.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Why a [`Recurrence`](super::Recurrence) is invalid.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::{InvalidRecurrence, every};
///
/// let too_often = every(Duration::from_millis(10));
/// let invalid = too_often.next_after("2026-03-01T12:00:00Z".parse()?).unwrap_err();
/// assert_eq!(invalid, InvalidRecurrence::Interval(Duration::from_millis(10)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRecurrence {
    /// The interval is too short or too long.
    #[error("the interval of {0:?} is not within {SHORTEST:?} to {LONGEST:?}")]
    Interval(Duration),
    /// The cron expression cannot be parsed, or never occurs.
    #[error("the cron expression `{expression}` is invalid: {problem}")]
    Cron {
        /// The expression.
        expression: String,
        /// Why the cron expression is invalid.
        problem: String,
    },
    /// The time zone is not in the IANA database that the program reads.
    #[error("the time zone `{name}` is unknown: {problem}")]
    TimeZone {
        /// The name.
        name: String,
        /// Why the time zone is unknown.
        problem: String,
    },
    /// There is no tick after now, for example because a cron expression names a year in the past.
    #[error("the recurrence has no tick in the future")]
    Over,
}

queue_core::debug_as_text!(InvalidRecurrence);

#[cfg(feature = "cron")]
pub(super) mod cron {
    use croner::Cron;
    use jiff::Zoned;
    use jiff::tz::TimeZone;

    use super::*;

    /// Creates a recurrence by a cron expression in UTC: minute, hour, day of the month, month and day of the week,
    /// preceded by seconds if there are six fields. See [`croner`](https://docs.rs/croner) for the syntax.
    ///
    /// The expression is checked when the schedule is started. Requires the feature `cron`.
    ///
    /// ```
    /// use queue_runtime::recurring::cron;
    ///
    /// let nightly = cron("30 3 * * *");
    /// let noon = "2026-03-01T12:00:00Z".parse()?;
    /// assert_eq!(nightly.next_after(noon)?, Some("2026-03-02T03:30:00Z".parse()?));
    ///
    /// let error = cron("30 25 * * *").next_after(noon).unwrap_err();
    /// assert!(error.to_string().contains("`30 25 * * *`"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cron(expression: &str) -> Recurrence {
        in_zone(expression, TimeZone::UTC)
    }

    /// Creates a recurrence by a cron expression, as [`cron`] does, in a time zone of the IANA database.
    /// Requires the feature `cron`.
    ///
    /// A tick that the change to summer time skips takes place as soon as the change is over. A fixed time that occurs
    /// twice, at the end of summer time, ticks the first time. A whole day that the zone skips, as Samoa did on
    /// 30 December 2011, has no ticks. The time zone is read from the system's database, or where there is
    /// none, as in a slim container, from one in the program.
    ///
    /// ```
    /// use queue_runtime::recurring::cron_in;
    ///
    /// let opening = cron_in("Europe/Berlin", "0 8 * * MON-FRI");
    /// let sunday = "2026-07-05T12:00:00Z".parse()?;
    /// assert_eq!(opening.next_after(sunday)?, Some("2026-07-06T06:00:00Z".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cron_in(time_zone: &str, expression: &str) -> Recurrence {
        match TimeZone::get(time_zone) {
            Ok(zone) => in_zone(expression, zone),
            Err(error) => Recurrence::invalid(InvalidRecurrence::TimeZone {
                name: time_zone.to_owned(),
                problem: error.to_string(),
            }),
        }
    }

    fn in_zone(expression: &str, zone: TimeZone) -> Recurrence {
        let invalid = |problem: String| {
            Recurrence::invalid(InvalidRecurrence::Cron {
                expression: expression.to_owned(),
                problem,
            })
        };
        let ticks = match expression.parse() {
            Ok(cron) => CronTicks {
                expression: expression.to_owned(),
                cron,
                zone,
            },
            Err(error) => return invalid(error.to_string()),
        };
        match ticks.next(Timestamp::UNIX_EPOCH) {
            Some(_) => Recurrence::of(ticks),
            None => invalid("it never occurs".to_owned()),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds of a day.
    const DAY: i32 = 24 * 60 * 60;

    /// How many changes of a zone's offset are looked at for a skipped day: those of some years.
    const CHANGES: usize = 8;

    struct CronTicks {
        expression: String,
        cron: Cron,
        zone: TimeZone,
    }

    impl CronTicks {
        /// Returns the second that the moment is in.
        fn second_of(&self, moment: Timestamp) -> Option<Zoned> {
            let second =
                Timestamp::from_second(moment.as_nanosecond().div_euclid(1_000_000_000) as i64);
            Some(second.ok()?.to_zoned(self.zone.clone()))
        }

        /// Returns the moment after a day that the zone skipped at one of these changes of its offset, where the search of
        /// `croner` ends: that looks for a time of each day.
        fn skipped_day(&self, changes: impl Iterator<Item = Timestamp>) -> Option<Zoned> {
            let offset = |at| self.zone.to_offset(at).seconds();
            let mut changes = changes.take(CHANGES);
            let end = changes.find(|&end| {
                let before = end.checked_sub(SECOND).unwrap_or(end);
                offset(end) - offset(before) >= DAY
            });
            Some(end?.to_zoned(self.zone.clone()))
        }
    }

    /// Shows the expression and zone, not the tables that they are parsed into.
    impl fmt::Debug for CronTicks {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Cron")
                .field("expression", &self.expression)
                .field("time_zone", &self.zone.iana_name().unwrap_or("UTC"))
                .finish()
        }
    }

    impl Ticks for CronTicks {
        fn next(&self, after: Timestamp) -> Option<Timestamp> {
            let second = self.second_of(after)?;
            let next = self.cron.find_next_occurrence(&second, false);
            let next = next.or_else(|error| {
                let changes = self.zone.following(after).map(|change| change.timestamp());
                let end = self.skipped_day(changes).ok_or(error)?;
                self.cron.find_next_occurrence(&end, true)
            });
            Some(next.ok()?.timestamp())
        }

        fn latest(&self, at: Timestamp) -> Option<Timestamp> {
            let second = self.second_of(at)?;
            let latest = self.cron.find_previous_occurrence(&second, true);
            let latest = latest.or_else(|error| {
                let until = at.checked_add(SECOND).unwrap_or(at);
                let changes = self.zone.preceding(until).map(|change| change.timestamp());
                let end = self.skipped_day(changes).ok_or(error)?;
                let before = end.checked_sub(SECOND).unwrap_or(end);
                self.cron.find_previous_occurrence(&before, true)
            });
            Some(latest.ok()?.timestamp())
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_latest_tick_is_found_across_a_skipped_day() {
            let at = |text: &str| text.parse::<Timestamp>().expect("a time");
            let noon = cron_in("Pacific/Apia", "0 12 * * *");
            let ticks = noon.ticks().expect("valid");
            for moment in [
                "2011-12-30T09:59:59Z",
                "2011-12-30T10:00:00Z",
                "2011-12-30T21:59:59Z",
            ] {
                let latest = ticks.latest(at(moment));
                assert_eq!(latest, Some(at("2011-12-29T22:00:00Z")), "{moment}");
            }
            let latest = ticks.latest(at("2011-12-30T22:00:00Z"));
            assert_eq!(latest, Some(at("2011-12-30T22:00:00Z")));
        }
    }
}

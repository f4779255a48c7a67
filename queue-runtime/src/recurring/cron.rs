use std::fmt;

use croner::Cron;
use jiff::Zoned;
use jiff::tz::TimeZone;
use queue_core::clock::Timestamp;

use super::error::InvalidRecurrence;
use super::recurrence::{Recurrence, Ticks};

/// Creates a recurrence by a cron expression in UTC: minute, hour, day of the month, month and day of the week,
/// preceded by seconds if there are six fields. See [`croner`](https://docs.rs/croner) for the syntax.
///
/// The expression is checked when the schedule is started.
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
///
/// A time that a change to summer time skips ticks as soon as the change is over, and a fixed time that occurs twice
/// when it ends ticks the first time. The zone is read from the system's database, on Windows from one that is part of
/// the program.
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
}

/// The expression and the zone, not the tables that they are parsed into.
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
        let next = self.cron.find_next_occurrence(&second, false).ok()?;
        Some(next.timestamp())
    }

    fn latest(&self, at: Timestamp) -> Option<Timestamp> {
        let second = self.second_of(at)?;
        let latest = self.cron.find_previous_occurrence(&second, true).ok()?;
        Some(latest.timestamp())
    }
}

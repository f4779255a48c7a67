//! Instances by the time of the day.

use std::fmt;
use std::ops::RangeInclusive;

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;

use super::{FleetLoad, InstancePolicy, Wanted};

/// At least so many instances at some hours of the week, whatever another policy wants: an [`InstancePolicy`] around that
/// one. Its range stays.
///
/// ```
/// use std::time::Duration;
/// use queue_agent::{BusyHours, FleetLoad, InstancePolicy, InstanceTarget};
///
/// let target = InstanceTarget::new(0..=8, Duration::from_secs(120));
/// let mut policy = BusyHours::new(target, "Europe/Berlin")?
///     .at_least(2, "Mon-Fri 07:45-18:00")?
///     .at_least(1, "Sat,Sun 10:00-02:00")?; // until the next morning
///
/// let mut load = FleetLoad::new(0, 0);
/// load.now = "2026-11-30T07:00:00Z".parse()?; // a Monday, 08:00 in Berlin
/// assert_eq!(policy.instances(&load).instances, 2);
/// load.now = "2026-11-30T17:00:00Z".parse()?;
/// assert_eq!(policy.instances(&load).instances, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct BusyHours<P> {
    policy: P,
    zone: TimeZone,
    hours: Vec<Hours>,
}

#[derive(Debug, Clone)]
struct Hours {
    instances: usize,
    /// From Monday on.
    days: [bool; 7],
    from: Time,
    /// On the next day, unless it is later than `from`.
    to: Time,
    text: String,
}

/// Text that says no hours of the week, or names no time zone, for [`BusyHours`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidHours {
    /// The text is no days and times.
    #[error(
        "`{text}` are no hours of the week; allowed are days, such as `Mon-Fri` or `Sat,Sun`, or none for all days, and \
         times, such as `Mon-Fri 08:00-18:00`"
    )]
    Hours {
        /// The text.
        text: String,
    },
    /// The IANA database has no such time zone.
    #[error(
        "`{name}` is no time zone of the IANA database; allowed are names such as `Europe/Berlin`, and `UTC`"
    )]
    TimeZone {
        /// The name.
        name: String,
    },
}

queue_core::debug_as_text!(InvalidHours);

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

impl<P: InstancePolicy> BusyHours<P> {
    /// Creates a policy that wants what `policy` wants, until there are [hours](Self::at_least), which are of this time
    /// zone of the IANA database: the system's, or where there is none, one in the program.
    ///
    /// # Errors
    /// [`InvalidHours`], if the time zone is not known.
    pub fn new(policy: P, time_zone: &str) -> Result<Self, InvalidHours> {
        let unknown = |_| InvalidHours::TimeZone {
            name: time_zone.to_owned(),
        };
        Ok(Self {
            policy,
            zone: TimeZone::get(time_zone).map_err(unknown)?,
            hours: Vec::new(),
        })
    }

    /// Has at least so many instances run at these hours: days, or none for all days, and times, such as `Mon-Fri
    /// 08:00-18:00`. Hours that end at their start or earlier end on the next day. Of several that cover a time, the
    /// greatest number counts.
    ///
    /// # Errors
    /// [`InvalidHours`], if the text says no hours.
    pub fn at_least(mut self, instances: usize, hours: &str) -> Result<Self, InvalidHours> {
        let parsed = Hours::parse(instances, hours);
        let invalid = || InvalidHours::Hours {
            text: hours.to_owned(),
        };
        self.hours.push(parsed.ok_or_else(invalid)?);
        Ok(self)
    }
}

impl<P: InstancePolicy> InstancePolicy for BusyHours<P> {
    fn range(&self) -> RangeInclusive<usize> {
        self.policy.range()
    }

    fn instances(&mut self, load: &FleetLoad) -> Wanted {
        let now = self.zone.to_datetime(load.now);
        let wanted = self.policy.instances(load);
        let covering = self.hours.iter().filter(|hours| hours.cover(now));
        match covering.max_by_key(|hours| hours.instances) {
            Some(hours) if hours.instances > wanted.instances => Wanted {
                instances: hours.instances,
                why: format!("{}: {hours}", wanted.why),
            },
            _ => wanted,
        }
    }
}

impl Hours {
    fn parse(instances: usize, text: &str) -> Option<Self> {
        let (days, times) = text.trim().rsplit_once(' ').unwrap_or(("", text.trim()));
        let (from, to) = times.split_once('-')?;
        let time = |text: &str| Time::strptime("%H:%M", text).ok();
        Some(Self {
            instances,
            days: parse_days(days.trim())?,
            from: time(from)?,
            to: time(if to == "24:00" { "00:00" } else { to })?,
            text: text.trim().to_owned(),
        })
    }

    fn cover(&self, now: DateTime) -> bool {
        let today = usize::from(now.weekday().to_monday_zero_offset().unsigned_abs());
        let (is_today, is_yesterday) = (self.days[today], self.days[(today + 6) % 7]);
        let (has_begun, goes_on) = (now.time() >= self.from, now.time() < self.to);
        if self.from < self.to {
            is_today && has_begun && goes_on
        } else {
            is_today && has_begun || is_yesterday && goes_on
        }
    }
}

/// Parses days such as `Mon-Fri,Sun`; no days are all.
fn parse_days(text: &str) -> Option<[bool; 7]> {
    if text.is_empty() {
        return Some([true; 7]);
    }
    let number = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (number(first.trim())?, number(last.trim())?);
        days[last] = true;
        while day != last {
            days[day] = true;
            day = (day + 1) % 7;
        }
    }
    Some(days)
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at least {} at {}", self.instances, self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::InstanceTarget;

    fn policy(hours: &[(usize, &str)]) -> BusyHours<InstanceTarget> {
        let target = InstanceTarget::new(0..=8, Duration::from_secs(60));
        let policy = BusyHours::new(target, "Europe/Berlin").expect("a time zone");
        hours.iter().fold(policy, |policy, (instances, hours)| {
            policy.at_least(*instances, hours).expect("hours")
        })
    }

    /// How many are wanted at a time in Berlin, of a week that begins on a Monday.
    fn at(policy: &mut BusyHours<InstanceTarget>, time: &str) -> usize {
        let time: DateTime = time.parse().expect("a time");
        let mut load = FleetLoad::new(0, 0);
        load.now = policy.zone.to_timestamp(time).expect("a moment");
        policy.instances(&load).instances
    }

    #[test]
    fn hours_hold_on_their_days() {
        let mut policy = policy(&[(2, "Mon-Fri 08:00-18:00"), (3, "Wed 09:00-24:00")]);
        for (time, instances) in [
            ("2026-11-30T07:59:59", 0),
            ("2026-11-30T08:00", 2),
            ("2026-11-30T17:59:59", 2),
            ("2026-11-30T18:00", 0),
            ("2026-12-02T08:30", 2),
            ("2026-12-02T23:59", 3),
            ("2026-12-03T00:00", 0),
            ("2026-12-05T12:00", 0),
        ] {
            assert_eq!(at(&mut policy, time), instances, "{time}");
        }
    }

    #[test]
    fn hours_go_on_after_midnight_and_over_a_sunday() {
        let mut night = policy(&[(1, "sat-sun 22:00-06:00"), (2, "04:00-05:00")]);
        for (time, instances) in [
            ("2026-12-05T04:30", 2),
            ("2026-12-05T05:30", 0),
            ("2026-12-05T22:00", 1),
            ("2026-12-06T05:59", 1),
            ("2026-12-07T05:59", 1),
            ("2026-12-07T06:00", 0),
            ("2026-12-07T22:30", 0),
        ] {
            assert_eq!(at(&mut night, time), instances, "{time}");
        }
        let mut all = policy(&[(1, "Fri-Mon 00:00-00:00")]);
        let days = ["30", "01", "03", "04"].map(|day| match day {
            "30" => "2026-11-30T12:00".to_owned(),
            day => format!("2026-12-{day}T12:00"),
        });
        let wanted = days.map(|day| at(&mut all, &day));
        assert_eq!(wanted, [1, 0, 0, 1], "Monday, Tuesday, Thursday, Friday");
    }

    #[test]
    fn the_load_may_want_more_and_the_reason_is_told() {
        let mut policy = policy(&[(2, "08:00-18:00")]);
        let mut load = FleetLoad::new(10_000, 0);
        load.rate = Some(1.0);
        load.now = "2026-11-30T12:00:00Z".parse().expect("a time");
        assert!(
            policy.instances(&load).instances > 8,
            "the range is the agent's"
        );
        load.depth = 0;
        let why = policy.instances(&load).why;
        assert_eq!(why, "0 messages: at least 2 at 08:00-18:00");
        assert_eq!(policy.range(), 0..=8);
    }

    #[test]
    fn text_that_says_no_hours_is_refused() {
        for hours in [
            "",
            "8-18",
            "Mon-Fry 08:00-18:00",
            "Mon 08:00",
            "25:00-26:00",
            "Mon,,Tue 08:00-09:00",
        ] {
            let refused = policy(&[]).at_least(1, hours).expect_err(hours).to_string();
            assert!(refused.contains(&format!("`{hours}`")), "{refused}");
        }
        let target = InstanceTarget::new(0..=8, Duration::from_secs(60));
        let refused = BusyHours::new(target, "Europe/Atlantis").expect_err("unknown");
        assert!(
            refused.to_string().contains("`Europe/Atlantis`"),
            "{refused}"
        );
    }
}

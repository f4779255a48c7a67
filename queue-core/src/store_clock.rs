//! Store time: the clock of a storage engine that has no server with a clock of its own.
//!
//! All times that an engine without a clock stores are microseconds since the Unix epoch, read from one [`StoreClock`]
//! for each open store. An engine whose store several processes share also records an [`Anchor`], and
//! [follows](StoreClock::follow) the recorded one when it opens the store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::{NewMessage, TimeToLive};
use crate::ext::LockExt as _;
use crate::{Clock, Timestamp};

/// Store time in microseconds since the Unix epoch.
///
/// Store time starts at the wall clock and then runs with the boot clock, or with the monotonic clock if there is
/// no boot clock. A step of the wall clock therefore neither ends nor prolongs a lease.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use queue_core::ManualClock;
/// use queue_core::store_clock::{StoreClock, after};
///
/// let clock = ManualClock::new();
/// let store_clock = StoreClock::new(Arc::new(clock.clone()));
/// let lease_ends = after(store_clock.now(), Duration::from_secs(30));
/// clock.step_wall_clock(jiff::SignedDuration::from_hours(1));
/// assert!(store_clock.now() < lease_ends);
/// ```
#[derive(Debug)]
pub struct StoreClock {
    clock: Arc<dyn Clock>,
    anchor: Mutex<Anchor>,
}

/// A store time, and the moment of the machine's clocks that belongs to the store time. All later store times follow
/// from the anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// The moment.
    pub moment: Moment,
    /// The store time at the anchor's moment, in microseconds since the Unix epoch.
    pub store_time: i64,
}

/// A moment on the boot clock, or on this process's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The id of the boot; `None` on the monotonic clock, because its moments mean nothing to another process.
    pub boot: Option<u128>,
    /// The time since the clock's origin, in microseconds.
    pub elapsed: i64,
}

/// When a message becomes visible that lies behind others of its [group](crate::backend::NewMessage::group): at no time
/// that comes, the last second of the year 9999 that a [`Timestamp`] has.
pub const BEHIND: i64 = 253_402_207_200_000_000;

impl StoreClock {
    /// Creates a clock whose store time starts at the wall clock's time.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        // The wall clock is read first: a pause between the two readings puts store time behind the wall
        // clock, and never ahead.
        let store_time = clock.now().as_microsecond();
        let moment = Moment::read(&*clock);
        Self {
            clock,
            anchor: Mutex::new(Anchor { moment, store_time }),
        }
    }

    /// Returns the current store time.
    #[must_use]
    pub fn now(&self) -> i64 {
        let mut anchor = self.anchor.hold();
        let moment = anchor.advance(&*self.clock);
        anchor.at(moment)
    }

    /// Follows the store time of a file: its anchor, if that is of this boot, and at least `latest`, the highest time
    /// that the file has recorded; returns the anchor to record if the file has another.
    ///
    /// Within a boot, the recorded time exceeds the current one only if the machine was set back to an
    /// earlier state, as from a snapshot.
    pub fn follow(&self, recorded: Option<Anchor>, latest: i64) -> Option<Anchor> {
        let mut anchor = self.anchor.hold();
        let moment = anchor.advance(&*self.clock);
        if let Some(recorded) = recorded
            && recorded.moment.boot == moment.boot
            && recorded.at(moment) >= latest
        {
            *anchor = recorded;
            return None;
        }
        *anchor = Anchor {
            moment,
            store_time: anchor.at(moment).max(latest),
        };
        moment.boot.is_some().then_some(*anchor)
    }
}

impl Anchor {
    /// Returns the store time at a moment of the anchor's clock.
    fn at(&self, moment: Moment) -> i64 {
        let since = moment.elapsed.saturating_sub(self.moment.elapsed);
        self.store_time.saturating_add(since.max(0))
    }

    /// Reads the clock. In another boot, store time goes back to the anchor's: how much passed since then is not known.
    fn advance(&mut self, clock: &dyn Clock) -> Moment {
        let moment = Moment::read(clock);
        if moment.boot != self.moment.boot {
            self.moment = moment;
        }
        moment
    }
}

impl Moment {
    fn read(clock: &dyn Clock) -> Self {
        match clock.boot() {
            Some(time) => Self {
                boot: Some(time.boot),
                elapsed: micros(time.elapsed),
            },
            None => Self {
                boot: None,
                elapsed: micros(clock.monotonic()),
            },
        }
    }
}

/// Converts a duration to whole microseconds, rounded down.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Returns `now + duration`, with the duration rounded up to milliseconds, the resolution of the local
/// engines.
#[must_use]
pub fn after(now: i64, duration: Duration) -> i64 {
    let millis = i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
    now.saturating_add(millis.saturating_mul(1000))
        .min(Timestamp::MAX.as_microsecond())
}

/// Returns when a message put `now` becomes visible, and when it expires, if ever. A message expires later than it
/// becomes visible, also if rounding would make the two times equal, so that it can be received.
#[must_use]
pub fn lifespan(now: i64, message: &NewMessage) -> (i64, Option<i64>) {
    let visible_at = after(now, message.delay);
    let expires_at = match message.time_to_live {
        TimeToLive::Never => None,
        TimeToLive::After(lifetime) => {
            Some(after(now, lifetime).max(visible_at.saturating_add(1000)))
        }
    };
    (visible_at, expires_at)
}

/// Converts store time to a timestamp.
#[must_use]
pub fn timestamp(micros: i64) -> Timestamp {
    let in_range = micros.clamp(
        Timestamp::MIN.as_microsecond(),
        Timestamp::MAX.as_microsecond(),
    );
    Timestamp::from_microsecond(in_range).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use crate::ManualClock;
    use jiff::SignedDuration;

    use super::*;

    const MICROS_A_SECOND: i64 = 1_000_000;

    fn of(clock: &ManualClock) -> StoreClock {
        StoreClock::new(Arc::new(clock.clone()))
    }

    #[test]
    fn steps_of_the_wall_clock_do_not_change_store_time() {
        for hours in [-87_600, -1, 1, 87_600] {
            let clock = ManualClock::new();
            let store_clock = of(&clock);
            let start = store_clock.now();
            clock.advance(Duration::from_secs(10));
            clock.step_wall_clock(SignedDuration::from_hours(hours));
            assert_eq!(store_clock.now(), start + 10 * MICROS_A_SECOND, "{hours} h");
        }
    }

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(after(5, Duration::from_nanos(1)), 1005);
        assert_eq!(after(5, Duration::from_micros(1)), 1005);
        assert_eq!(after(5, Duration::from_millis(1)), 1005);
        assert_eq!(after(5, Duration::ZERO), 5);
        assert_eq!(after(5, Duration::MAX), Timestamp::MAX.as_microsecond());
    }

    #[test]
    fn a_message_expires_later_than_it_becomes_visible() {
        let micros = Duration::from_micros;
        let message = NewMessage::new("one").with_delay(micros(1200));
        assert_eq!(lifespan(5, &message), (2005, None));
        for (lifetime, expires_at) in [(1201, 3005), (2000, 3005), (3001, 4005)] {
            let lifetime = TimeToLive::After(micros(lifetime));
            let message = message.clone().with_time_to_live(lifetime);
            assert_eq!(lifespan(5, &message), (2005, Some(expires_at)));
        }
    }

    mod of_a_file {
        use super::*;

        #[test]
        fn one_boot_has_one_store_time() {
            let clock = ManualClock::new();
            let first = of(&clock);
            let recorded = first.follow(None, 0).expect("a new file has no anchor");
            for hours in [-1, 2] {
                clock.step_wall_clock(SignedDuration::from_hours(hours));
                clock.advance(Duration::from_secs(7));
                let second = of(&clock);
                assert_ne!(second.now(), first.now());
                assert_eq!(second.follow(Some(recorded), first.now()), None);
                assert_eq!(second.now(), first.now());
            }
        }

        #[test]
        fn a_new_boot_starts_at_the_wall_clock_but_not_before_what_was_recorded() {
            let clock = ManualClock::new();
            let before = of(&clock);
            let recorded = before.follow(None, 0);
            let latest = before.now();
            clock.reboot();
            clock.step_wall_clock(SignedDuration::from_secs(-5));
            let behind = of(&clock);
            let anchor = behind.follow(recorded, latest).expect("another boot");
            assert_eq!(anchor.store_time, latest);
            clock.advance(Duration::from_secs(1));
            assert_eq!(behind.now(), latest + MICROS_A_SECOND);

            clock.reboot();
            clock.step_wall_clock(SignedDuration::from_secs(60));
            let ahead = of(&clock);
            ahead.follow(recorded, latest).expect("another boot");
            assert_eq!(ahead.now(), latest + 56 * MICROS_A_SECOND);
        }

        #[test]
        fn a_machine_set_back_to_a_snapshot_does_not_set_store_time_back() {
            let clock = ManualClock::new();
            let store_clock = of(&clock);
            let recorded = store_clock.follow(None, 0);
            let latest = store_clock.now() + 3600 * MICROS_A_SECOND;
            let restored = of(&clock);
            let anchor = restored.follow(recorded, latest).expect("a new anchor");
            assert_eq!(anchor.store_time, latest);
            assert_eq!(restored.now(), latest);
        }

        /// A clock of a system without a boot clock.
        #[derive(Debug)]
        struct Bootless(ManualClock);

        impl Clock for Bootless {
            fn now(&self) -> Timestamp {
                self.0.now()
            }

            fn monotonic(&self) -> Duration {
                self.0.monotonic()
            }

            fn sleep(&self, duration: Duration) -> crate::clock::BoxFuture<'static, ()> {
                self.0.sleep(duration)
            }
        }

        #[test]
        fn without_a_boot_clock_store_time_is_at_least_what_was_recorded() {
            let clock = ManualClock::new();
            let store_clock = StoreClock::new(Arc::new(Bootless(clock.clone())));
            let start = store_clock.now();
            clock.advance(Duration::from_secs(10));
            assert_eq!(store_clock.follow(None, start + 9 * MICROS_A_SECOND), None);
            assert_eq!(store_clock.now(), start + 10 * MICROS_A_SECOND);
            assert_eq!(store_clock.follow(None, start + 12 * MICROS_A_SECOND), None);
            clock.advance(Duration::from_secs(1));
            assert_eq!(store_clock.now(), start + 13 * MICROS_A_SECOND);
        }
    }
}

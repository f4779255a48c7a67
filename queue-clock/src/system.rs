use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android"))]
use queue_core::clock::BootTime;
use queue_core::clock::{BoxFuture, Clock, Timestamp};

/// The longest wait before a sleeper looks at the clock again: how late it may wake after the machine was
/// suspended.
const LONGEST_NAP: Duration = Duration::from_secs(5);

/// The system's wall clock, and a monotonic clock that runs on while the machine is suspended.
///
/// A lease runs on at the storage while a laptop sleeps or a virtual machine is suspended, so leases are
/// timed by a clock that runs on too:
///
/// | system | clock |
/// |---|---|
/// | Linux, Android | `CLOCK_BOOTTIME` |
/// | macOS, iOS | `CLOCK_MONOTONIC`, which counts sleep there |
/// | Windows | the performance counter ([`Instant`](std::time::Instant)), which counts sleep |
/// | others | [`Instant`](std::time::Instant), which may not count sleep |
///
/// On Linux and Android, the system's clock also knows the boot clock that all processes of the machine share. Sleeps
/// use Tokio's timer, which stands still during a suspension. Sleeps look at the clock at least every five seconds, so
/// that they end at most that late.
///
/// ```
/// use std::time::Duration;
/// use queue_clock::SystemClock;
/// use queue_core::Clock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let clock = SystemClock::new();
/// clock.sleep(Duration::from_millis(1)).await;
/// assert!(clock.monotonic() >= Duration::from_millis(1));
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: monotonic::Moment,
}

impl SystemClock {
    /// Creates a clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: monotonic::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        monotonic::since(self.origin)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn boot(&self) -> Option<BootTime> {
        boot::read()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.monotonic().saturating_add(duration))
    }

    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep_until(*self, at, LONGEST_NAP))
    }
}

/// Sleeps until `clock` shows `at`, and looks at it after each nap.
async fn sleep_until(clock: impl Clock, at: Duration, longest_nap: Duration) {
    loop {
        let left = at.saturating_sub(clock.monotonic());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(longest_nap)).await;
    }
}

/// The clocks of systems on which [`Instant`](std::time::Instant) stands still during a suspension.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod monotonic {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;

    pub(super) type Moment = Duration;

    pub(super) fn now() -> Moment {
        let time = clock_gettime(CLOCK);
        Duration::try_from(time).expect("the system has been up for a positive time")
    }

    pub(super) fn since(origin: Moment) -> Duration {
        now().saturating_sub(origin)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod monotonic {
    use std::time::{Duration, Instant};

    pub(super) type Moment = Instant;

    pub(super) fn now() -> Moment {
        Instant::now()
    }

    pub(super) fn since(origin: Moment) -> Duration {
        origin.elapsed()
    }
}

/// The boot clock of Linux, which all processes of a machine share.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod boot {
    use std::fs;
    use std::sync::LazyLock;
    use std::time::Duration;

    use queue_core::clock::BootTime;
    use rustix::time::{ClockId, clock_gettime};

    /// Reads the boot clock. Returns `None` if the kernel does not tell which boot this is.
    pub(super) fn read() -> Option<BootTime> {
        static BOOT: LazyLock<Option<Boot>> = LazyLock::new(Boot::read);
        let boot = BOOT.as_ref()?;
        let reading = clock_gettime(ClockId::Boottime);
        let nanos = i128::from(reading.tv_sec) * 1_000_000_000 + i128::from(reading.tv_nsec);
        let nanos = u64::try_from(nanos - boot.namespace_offset).ok()?;
        Some(BootTime {
            boot: boot.id,
            elapsed: Duration::from_nanos(nanos),
        })
    }

    /// The boot's id and offset, the same for the whole life of a process.
    #[derive(Debug, PartialEq)]
    struct Boot {
        id: u128,
        /// By how much the clock of this process's time namespace is ahead of the machine's, in nanoseconds.
        namespace_offset: i128,
    }

    impl Boot {
        fn read() -> Option<Self> {
            let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            // Kernels without time namespaces do not have `timens_offsets`.
            let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
            Self::parse(&id, &offsets)
        }

        fn parse(id: &str, offsets: &str) -> Option<Self> {
            let id = u128::from_str_radix(&id.trim().replace('-', ""), 16).ok()?;
            let namespace_offset = match offsets
                .lines()
                .find_map(|line| line.strip_prefix("boottime"))
            {
                None => 0,
                Some(numbers) => {
                    let mut numbers = numbers.split_whitespace().map(str::parse::<i128>);
                    numbers.next()?.ok()? * 1_000_000_000 + numbers.next()?.ok()?
                }
            };
            Some(Self {
                id,
                namespace_offset,
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const ID: &str = "00000000-0000-0000-0000-0000000000ff\n";

        #[test]
        fn the_offset_of_a_time_namespace_is_known() {
            let offsets = "monotonic           1         2\nboottime       86400       500\n";
            let boot = Boot::parse(ID, offsets).expect("valid");
            assert_eq!(boot.id, 255);
            assert_eq!(boot.namespace_offset, 86_400_000_000_500);
            let behind = "monotonic  0  0\nboottime  -7  0\n";
            let boot = Boot::parse(ID, behind).expect("valid");
            assert_eq!(boot.namespace_offset, -7_000_000_000);
            assert_eq!(Boot::parse(ID, "").expect("valid").namespace_offset, 0);
        }

        #[test]
        fn an_unknown_boot_is_no_boot() {
            assert_eq!(Boot::parse("", ""), None);
            assert_eq!(Boot::parse(ID, "boottime soon"), None);
        }

        #[test]
        fn readings_of_a_process_are_of_one_boot_and_in_order() {
            let (first, second) = (read().expect("Linux"), read().expect("Linux"));
            assert_eq!(first.boot, second.boot);
            assert!(first.elapsed <= second.elapsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// `/proc/uptime` counts suspensions, and shows hundredths of a second.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_monotonic_clock_counts_suspensions() {
        let uptime = || {
            let uptime = std::fs::read_to_string("/proc/uptime").expect("readable");
            let seconds = uptime.split(' ').next().expect("two numbers");
            Duration::from_secs_f64(seconds.parse().expect("a number"))
        };
        let clock = SystemClock {
            origin: Duration::ZERO,
        };
        let (before, now, after) = (uptime(), clock.monotonic(), uptime());
        assert!(now >= before, "{now:?} is before {before:?}");
        assert!(
            now < after + Duration::from_millis(10),
            "{now:?} is after {after:?}"
        );
    }

    /// A clock that is an hour ahead from the second look on, as after a suspension.
    #[derive(Debug, Clone, Default)]
    struct Suspended {
        looks: Arc<AtomicU32>,
    }

    impl Clock for Suspended {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn monotonic(&self) -> Duration {
            match self.looks.fetch_add(1, Ordering::Relaxed) {
                0 => Duration::ZERO,
                _ => Duration::from_secs(3600),
            }
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            unreachable!("the test sleeps on Tokio's timer")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_soon_after_a_suspension() {
        let started = tokio::time::Instant::now();
        sleep_until(Suspended::default(), Duration::from_secs(1800), LONGEST_NAP).await;
        assert_eq!(started.elapsed(), LONGEST_NAP);
    }

    #[tokio::test]
    async fn a_sleep_is_as_long_as_it_was_asked_for() {
        let clock = SystemClock::new();
        let at = clock.monotonic() + Duration::from_millis(5);
        sleep_until(clock, at, Duration::from_millis(1)).await;
        assert!(clock.monotonic() >= at);
    }
}

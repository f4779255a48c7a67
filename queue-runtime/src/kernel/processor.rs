//! The processor time that this process has used.

use std::time::{Duration, Instant};

/// The shortest time over which the load is measured: the clock of the processor time may be coarse.
const SHORTEST: Duration = Duration::from_millis(100);

/// Measures the share of all processors that this process uses. Processor time and elapsed time are real, also while a
/// test has paused its clock.
#[derive(Debug, Default)]
pub(crate) struct Processor {
    last: Option<(Instant, Duration)>,
}

impl Processor {
    /// Returns the processor share used since the last call that returned one. The first call returns `None`.
    pub(crate) fn load(&mut self) -> Option<f64> {
        let (now, used) = (Instant::now(), processor_time()?);
        let (since, used_before) = *self.last.get_or_insert((now, used));
        let elapsed = now.saturating_duration_since(since);
        if elapsed < SHORTEST {
            return None;
        }
        self.last = Some((now, used));
        let processors = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let share = used.saturating_sub(used_before).as_secs_f64() / elapsed.as_secs_f64();
        Some((share / processors).clamp(0.0, 1.0))
    }
}

/// Returns the processor time of this process.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn processor_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Some(Duration::new(seconds.ok()?, nanos.ok()?))
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn processor_time() -> Option<Duration> {
    None
}

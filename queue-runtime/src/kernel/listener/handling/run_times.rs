use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queue_core::internal::LockExt as _;

use crate::kernel::policy::receive_visibility;
use crate::kernel::settings::Settings;

/// The times of recent successful runs of the handler, as a histogram with four buckets for each doubling from
/// 1 ms. Recording one is an addition under a lock that is held for no longer.
#[derive(Debug)]
pub(crate) struct RunTimes {
    /// Whether the visibility timeout of receives follows the runs.
    adaptive: bool,
    enabled: AtomicBool,
    buckets: Mutex<[u64; BUCKETS]>,
}

/// Up to 2³⁰ ms, which is 12 days.
const BUCKETS: usize = 4 * 30;

/// Once there are more runs, the counts are reduced to half as many, so that recent runs weigh more.
const ENOUGH: u64 = 4_096;

impl RunTimes {
    /// `adaptive` is whether the visibility timeout of receives follows the runs.
    pub(crate) fn new(adaptive: bool) -> Self {
        Self {
            adaptive,
            enabled: AtomicBool::new(adaptive),
            buckets: Mutex::new([0; BUCKETS]),
        }
    }

    /// Returns the visibility timeout of the next receive.
    pub(crate) fn visibility(&self, settings: &Settings) -> Duration {
        let configured = settings.visibility;
        let adapts = self.adaptive && settings.may_adapt;
        let p99 = adapts.then(|| self.p99()).flatten();
        p99.map_or(configured, |p99| receive_visibility(p99, configured))
    }

    /// Has runs recorded from now on.
    pub(crate) fn enable(&self) {
        self.enabled.store(true, Ordering::Relaxed);
    }

    pub(super) fn are_recorded(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self, time: Duration) {
        self.buckets.hold()[bucket(time)] += 1;
    }

    /// Returns the mean time, to within an eighth, or `None` without runs.
    pub(crate) fn mean(&self) -> Option<Duration> {
        let counts = self.counts();
        let total: u64 = counts.iter().sum();
        let sum = counts.iter().zip(0..).map(|(count, bucket)| {
            let middle = (bounds(bucket) + bounds(bucket + 1)) / 2.0;
            middle * *count as f64
        });
        (total > 0).then(|| Duration::from_secs_f64(sum.sum::<f64>() / total as f64 / 1_000.0))
    }

    /// Returns a time that 99 of 100 runs did not exceed, to within a fifth, or `None` if there were fewer.
    pub(super) fn p99(&self) -> Option<Duration> {
        let counts = self.counts();
        let total: u64 = counts.iter().sum();
        let within = |seen: &mut u64, count: u64| {
            *seen += count;
            *seen * 100 >= total * 99
        };
        let mut seen = 0;
        let last = counts.iter().position(|count| within(&mut seen, *count))?;
        (total >= 100).then(|| Duration::from_secs_f64(bounds(last + 1) / 1_000.0))
    }

    /// Returns the counts, and reduces them once they are enough.
    fn counts(&self) -> [u64; BUCKETS] {
        let mut buckets = self.buckets.hold();
        let counts = *buckets;
        let total: u64 = counts.iter().sum();
        if total > ENOUGH {
            *buckets = counts.map(|count| count * (ENOUGH / 2) / total);
        }
        counts
    }
}

/// Returns the bucket of a time.
fn bucket(time: Duration) -> usize {
    let quarters = (time.as_secs_f64() * 1_000.0).max(1.0).log2() * 4.0;
    (quarters as usize).min(BUCKETS - 1)
}

/// Returns the lower bound of a bucket, in milliseconds.
fn bounds(bucket: usize) -> f64 {
    (bucket as f64 / 4.0).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_within_an_eighth() {
        let runs = RunTimes::new(false);
        assert_eq!(runs.mean(), None);
        for millis in [2_u64, 10, 100, 1_000, 60_000] {
            let runs = RunTimes::new(false);
            runs.record(Duration::from_millis(millis));
            let mean = runs.mean().expect("one run").as_secs_f64() * 1_000.0;
            let off = mean / millis as f64;
            assert!((0.875..1.125).contains(&off), "{millis} ms: {mean}");
        }
        runs.record(Duration::MAX);
        assert!(runs.mean() > Some(Duration::from_secs(10 * 24 * 3600)));
    }

    #[test]
    fn one_run_in_a_hundred_exceeds_the_percentile() {
        let runs = RunTimes::new(false);
        for _ in 0..99 {
            runs.record(Duration::from_millis(1_000));
        }
        assert_eq!(runs.p99(), None);
        runs.record(Duration::from_millis(60_000));
        let p99 = runs.p99().expect("a hundred runs").as_millis();
        assert!((1_000..1_200).contains(&p99), "{p99}");
        runs.record(Duration::from_millis(60_000));
        assert!(runs.p99() >= Some(Duration::from_millis(60_000)));
    }

    #[test]
    fn recent_runs_weigh_more() {
        let runs = RunTimes::new(false);
        for _ in 0..100 * ENOUGH {
            runs.record(Duration::from_millis(10));
        }
        runs.mean();
        for _ in 0..2 * ENOUGH {
            runs.record(Duration::from_millis(1_000));
        }
        assert!(runs.mean() > Some(Duration::from_millis(600)));
    }
}

use std::time::Duration;

/// How much of its limit a listener uses while the storage throttles: additive increase, multiplicative decrease.
/// Times are on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throttling {
    /// From [`LEAST`] to 1.
    share: f64,
    /// When the share was last changed.
    changed_at: Duration,
    /// When it was last halved.
    cut_at: Duration,
    /// When throttling began, while the share is below 1.
    since: Option<Duration>,
    /// Whether it was reported as persistent.
    reported: bool,
}

/// What a throttled request leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Throttled {
    /// Nothing new: other tasks were throttled at the same time.
    Again,
    /// The share was halved.
    Cut,
    /// It was halved, and there has been throttling for this long. Returned once, until the share is 1 again.
    Persistent(Duration),
}

/// Requests that were sent before a cut may be throttled after it.
const CUT_INTERVAL: Duration = Duration::from_secs(1);
const LEAST: f64 = 1.0 / 1_024.0;
/// The time in which the share rises from 0 to 1.
const RECOVERY: Duration = Duration::from_secs(16);
/// The length of throttling that is reported.
const PERSISTENT: Duration = Duration::from_secs(60);

impl Throttling {
    pub(crate) const NONE: Self = Self {
        share: 1.0,
        changed_at: Duration::ZERO,
        cut_at: Duration::ZERO,
        since: None,
        reported: false,
    };

    /// Returns this share of a limit, rounded up.
    pub(crate) fn of(&self, limit: usize) -> usize {
        (limit as f64 * self.share).ceil() as usize
    }

    /// Returns whether the share is below 1.
    pub(crate) fn is_active(&self) -> bool {
        self.since.is_some()
    }

    /// Records a throttled request.
    pub(crate) fn throttled(&mut self, now: Duration) -> Throttled {
        let since = *self.since.get_or_insert(now);
        let first = since == now && self.share >= 1.0;
        if !first && now.saturating_sub(self.cut_at) < CUT_INTERVAL {
            return Throttled::Again;
        }
        self.share = (self.share / 2.0).max(LEAST);
        (self.changed_at, self.cut_at) = (now, now);
        let lasted = now.saturating_sub(since);
        if lasted >= PERSISTENT && !self.reported {
            self.reported = true;
            return Throttled::Persistent(lasted);
        }
        Throttled::Cut
    }

    /// Records a request that was not throttled, and raises the share by the time since its last change.
    pub(crate) fn succeeded(&mut self, now: Duration) {
        let calm = now.saturating_sub(self.changed_at);
        self.share += calm.as_secs_f64() / RECOVERY.as_secs_f64();
        self.changed_at = now;
        if self.share >= 1.0 {
            *self = Self::NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_second_of_throttling_halves_and_sixteen_without_restore() {
        let mut throttling = Throttling::NONE;
        assert_eq!(throttling.of(64), 64);
        let mut now = 100 * SECOND;
        assert_eq!(throttling.throttled(now), Throttled::Cut);
        assert_eq!(throttling.of(64), 32);
        // Of requests that were under way at once, one counts.
        assert_eq!(throttling.throttled(now), Throttled::Again);
        assert_eq!(throttling.throttled(now + SECOND / 2), Throttled::Again);
        assert_eq!(throttling.of(64), 32);
        for _ in 0..40 {
            now += SECOND;
            throttling.throttled(now);
        }
        assert_eq!(throttling.of(64), 1);
        for _ in 0..8 {
            now += SECOND;
            throttling.succeeded(now);
        }
        assert_eq!(throttling.of(64), 33);
        assert!(throttling.is_active());
        now += 8 * SECOND;
        throttling.succeeded(now);
        assert_eq!(throttling.of(64), 64);
        assert!(!throttling.is_active());
    }

    #[test]
    fn successes_in_between_do_not_postpone_the_next_cut() {
        let mut throttling = Throttling::NONE;
        let mut reported = 0;
        for tenth in 1..=900 {
            let now = tenth * SECOND / 10;
            throttling.succeeded(now);
            let throttled = throttling.throttled(now);
            reported += u32::from(matches!(throttled, Throttled::Persistent(_)));
        }
        assert!(throttling.of(64) < 16, "{throttling:?}");
        assert_eq!(reported, 1);
    }

    #[test]
    fn throttling_that_lasts_is_reported_once() {
        let mut throttling = Throttling::NONE;
        let mut reports = Vec::new();
        for second in 1..=600 {
            let now = second * SECOND;
            match second % 3 {
                0 => {
                    if let Throttled::Persistent(lasted) = throttling.throttled(now) {
                        reports.push(lasted);
                    }
                }
                _ => throttling.succeeded(now),
            }
        }
        assert_eq!(reports, [60 * SECOND]);
        // After a calm time it is new.
        throttling.succeeded(1_000 * SECOND);
        let again = (1_001..1_100).map(|second| throttling.throttled(second * SECOND));
        let persistent = |throttled| matches!(throttled, Throttled::Persistent(_));
        assert_eq!(again.filter(|throttled| persistent(*throttled)).count(), 1);
    }
}

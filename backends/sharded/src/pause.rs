use std::time::Duration;

/// A pause that grows each time it is repeated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pause {
    times: u32,
    /// On the monotonic clock.
    until: Duration,
}

impl Pause {
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// Pauses again: twice as long as before, from `first` on and up to `longest`, of which a part is random. At least for
    /// `least`.
    pub(crate) fn again(
        &mut self,
        now: Duration,
        first: Duration,
        longest: Duration,
        least: Option<Duration>,
    ) {
        let doubled = first.saturating_mul(2_u32.saturating_pow(self.times));
        let pause = doubled.min(longest).mul_f64(rand::random_range(0.75..=1.0));
        self.times = self.times.saturating_add(1);
        self.until = now.saturating_add(pause.max(least.unwrap_or_default()));
    }
}

use std::num::NonZeroU32;
use std::time::Duration;

use queue_core::internal::as_u32;
use serde::{Deserialize, Serialize};

/// How often something may be done, such as the start of a handler. See
/// [`ListenerBuilder::rate`](crate::ListenerBuilder::rate).
///
/// In any period, the limited action is done at most as often as the rate says, plus the burst, plus one.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::settings::ConsumerConfig;
/// use queue_runtime::policy::Rate;
///
/// let rate = Rate::per_minute(100).burst(20);
/// assert_eq!(rate, Rate::new(100, Duration::from_secs(60)).burst(20));
///
/// let config: ConsumerConfig = toml::from_str(r#"rate = { count = 100, per = "1m", burst = 20 }"#)?;
/// assert_eq!(config.rate, Some(rate));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub(crate) count: usize,
    #[serde(with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required")]
    per: Duration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) burst: Option<usize>,
}

impl Rate {
    /// Creates a rate of `count` starts in each `period`, evenly spread.
    #[must_use]
    pub const fn new(count: usize, period: Duration) -> Self {
        Self {
            count,
            per: period,
            burst: None,
        }
    }

    /// Creates a rate of `count` starts a second.
    #[must_use]
    pub const fn per_second(count: usize) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// Creates a rate of `count` starts a minute.
    #[must_use]
    pub const fn per_minute(count: usize) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// Creates a rate of `count` starts an hour.
    #[must_use]
    pub const fn per_hour(count: usize) -> Self {
        Self::new(count, Duration::from_secs(3600))
    }

    /// Sets how many starts may happen at once after a long enough pause. The default is a tenth of the count, but at
    /// least 1.
    #[must_use]
    pub const fn burst(mut self, count: usize) -> Self {
        self.burst = Some(count);
        self
    }

    /// Returns how many starts may happen at once.
    pub(crate) fn at_once(&self) -> NonZeroU32 {
        let burst = self.burst.unwrap_or(self.count / 10);
        NonZeroU32::new(as_u32(burst)).unwrap_or(NonZeroU32::MIN)
    }

    /// Returns the time after which one more start may happen.
    pub(crate) fn interval(&self) -> Duration {
        self.per / as_u32(self.count).max(1)
    }
}

/// The settings of a circuit breaker: when it opens, and how often it probes while open. See
/// [`ListenerBuilder::circuit_breaker`](crate::ListenerBuilder::circuit_breaker).
///
/// ```
/// use queue_runtime::settings::ConsumerConfig;
///
/// let config: ConsumerConfig = toml::from_str(
///     r#"
///     [circuit_breaker]
///     failed = 0.9
///     attempts = 20
///     probe_interval = "30s"
///     "#,
/// )?;
/// assert_eq!(config.circuit_breaker.map(|breaker| breaker.attempts), Some(20));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CircuitBreaker {
    /// The share of failed attempts at which the circuit breaker opens, above 0 and at most 1.
    pub failed: f64,
    /// Over how many last attempts the share of failures is computed.
    pub attempts: usize,
    /// The time between two probes. The default is 10 seconds.
    #[serde(
        default = "CircuitBreaker::default_interval",
        with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required"
    )]
    pub probe_interval: Duration,
}

impl CircuitBreaker {
    pub(crate) fn default_interval() -> Duration {
        Duration::from_secs(10)
    }
}

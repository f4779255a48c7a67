use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use jiff::fmt::friendly::{Designator, SpanPrinter};
use queue_core::internal::{as_count, as_u32, parse_duration};
use serde::{Deserialize, Serialize};

/// How often something may be done, such as the start of a handler. See
/// [`ListenerBuilder::rate`](crate::ListenerBuilder::rate) for one listener, and
/// [`AnyQueue::set_rate`](crate::AnyQueue::set_rate) for all processes.
///
/// In any period, the limited action is done at most as often as the rate says, plus the burst, plus one.
///
/// As a text, a rate is a count and a time, and the burst if it is set: `100/1m`, `100/1m burst 20`.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::settings::ConsumerConfig;
/// use queue_runtime::policy::Rate;
///
/// let rate = Rate::per_minute(100).burst(20);
/// assert_eq!(rate, Rate::new(100, Duration::from_secs(60)).burst(20));
/// assert_eq!(rate, "100/1m burst 20".parse()?);
///
/// let config: ConsumerConfig = toml::from_str(r#"rate = { count = 100, per = "1m", burst = 20 }"#)?;
/// assert_eq!(config.rate, Some(rate));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub(crate) count: usize,
    #[serde(with = "queue_core::duration::required")]
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

    /// Returns how many starts are asked for at a time by those who share the rate: what it gives in 50 ms.
    pub(crate) fn chunk(&self) -> NonZeroU32 {
        let starts = CHUNK.div_duration_f64(self.interval()) as u32;
        NonZeroU32::new(starts).unwrap_or(NonZeroU32::MIN)
    }
}

/// How often, at most, those who share a rate ask for starts.
const CHUNK: Duration = Duration::from_millis(50);

/// The word before the burst in the text of a rate.
const BURST: &str = " burst ";

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printer = SpanPrinter::new().designator(Designator::Compact);
        let per = printer.unsigned_duration_to_string(&self.per);
        write!(f, "{}/{per}", self.count)?;
        self.burst
            .map_or(Ok(()), |burst| write!(f, "{BURST}{burst}"))
    }
}

/// A text that is no [`Rate`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rate is {text:?}; allowed are a count from 1 to {max}, `/` and a time, such as `100/1m`, and if wished a burst from \
     1 to {max}, such as `100/1m burst 20`",
    max = u32::MAX
)]
pub struct InvalidRate {
    text: String,
}

queue_core::debug_as_text!(InvalidRate);

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let count = |text: &str| {
            text.parse()
                .ok()
                .map(|count: NonZeroU32| as_count(count.get()))
        };
        let read = || {
            let (rate, burst) = match text.split_once(BURST) {
                Some((rate, burst)) => (rate, Some(count(burst)?)),
                None => (text, None),
            };
            let (starts, per) = rate.split_once('/')?;
            let rate = Self {
                burst,
                ..Self::new(count(starts)?, parse_duration(per).ok()?)
            };
            (!rate.interval().is_zero()).then_some(rate)
        };
        read().ok_or_else(|| InvalidRate { text: text.into() })
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
        with = "queue_core::duration::required"
    )]
    pub probe_interval: Duration,
}

impl CircuitBreaker {
    pub(crate) fn default_interval() -> Duration {
        Duration::from_secs(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_from_its_text() {
        for (text, rate) in [
            ("100/1m", Rate::per_minute(100)),
            ("1/1h", Rate::per_hour(1)),
            ("5/1s burst 1", Rate::per_second(5).burst(1)),
            ("7/1m 30s", Rate::new(7, Duration::from_secs(90))),
            ("3/250ms", Rate::new(3, Duration::from_millis(250))),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate), "{rate}");
        }
        assert_eq!(
            Rate::new(7, Duration::from_secs(90)).to_string(),
            "7/1m 30s"
        );
        for text in [
            "",
            "100",
            "/1m",
            "0/1m",
            "-1/1m",
            "100/",
            "100/0s",
            "100/m",
            "1/1ns burst 0",
            "2/1ns",
            "1/1m burst",
            "1/1m burst many",
            "4294967296/1h",
            "1.5/1m",
        ] {
            let error = text.parse::<Rate>().expect_err("no rate");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}

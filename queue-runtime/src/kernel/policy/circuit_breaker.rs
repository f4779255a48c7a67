use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When the circuit breaker of a listener opens, and how often it probes while it is open. See
/// [`ListenerBuilder::circuit_breaker`](crate::ListenerBuilder::circuit_breaker).
///
/// ```
/// use queue_runtime::ConsumerConfig;
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
    /// The share of failed attempts at which it opens, above 0 and at most 1.
    pub failed: f64,
    /// The number of most recent attempts that the share is computed over.
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

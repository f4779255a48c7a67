use std::time::Duration;

use queue_core::Message;
use serde::{Deserialize, Serialize};

use super::builder::ListenerBuilder;
use super::capacity::CircuitBreaker;
use crate::policy::{ExponentialIdle, InstanceTarget, RetryPolicy, ScaleRules, TaskRange};

/// The settings of a listener in a configuration file, in any format that serde reads.
///
/// Each field is named after the method of [`ListenerBuilder`] that it stands for. A field that is missing
/// leaves the setting as it is; an unknown one is an error. Values are checked by
/// [`start`](ListenerBuilder::start). Durations are texts like `"30s"` or `"1m 30s"`.
///
/// ```
/// use queue_runtime::{ListenerConfig, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// # let service = testing::service().await;
/// let config: ListenerConfig = toml::from_str(
///     r#"
///     tasks = { min = 1, max = 16 }
///     batch = 32
///     max_in_flight = 256
///     max_bytes_in_flight = 8_388_608
///     visibility_timeout = "1m"
///     idle_cap = "10s"
///     retry = { base = "1s", cap = "10m" }
///
///     [scale]
///     policy = "latency"
///     share = 0.95
///     target = "2s"
///     "#,
/// )?;
/// let listener = service.listener(ship).config(&config).start()?;
/// assert_eq!(listener.info().tasks, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ListenerConfig {
    /// See [`ListenerBuilder::tasks`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<TaskRange>,
    /// See [`ListenerBuilder::batch`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// See [`ListenerBuilder::max_in_flight`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<usize>,
    /// See [`ListenerBuilder::max_bytes_in_flight`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes_in_flight: Option<usize>,
    /// See [`ListenerBuilder::visibility_timeout`].
    #[serde(
        with = "jiff::fmt::serde::unsigned_duration::friendly::compact::optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub visibility_timeout: Option<Duration>,
    /// See [`ListenerBuilder::handler_timeout`].
    #[serde(
        with = "jiff::fmt::serde::unsigned_duration::friendly::compact::optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub handler_timeout: Option<Duration>,
    /// See [`ListenerBuilder::poison_threshold`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poison_threshold: Option<u32>,
    /// See [`ListenerBuilder::poison_queue`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poison_queue: Option<String>,
    /// See [`ListenerBuilder::version_patience`].
    #[serde(
        with = "jiff::fmt::serde::unsigned_duration::friendly::compact::optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub version_patience: Option<Duration>,
    /// An exponential [`RetryPolicy`]. See [`ListenerBuilder::retry`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryConfig>,
    /// The cap of an [`ExponentialIdle`]. See [`ListenerBuilder::idle`].
    #[serde(
        with = "jiff::fmt::serde::unsigned_duration::friendly::compact::optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub idle_cap: Option<Duration>,
    /// See [`ListenerBuilder::scale`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleRules>,
    /// See [`ListenerBuilder::advise_instances`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advise_instances: Option<InstanceTarget>,
    /// See [`ListenerBuilder::circuit_breaker`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_breaker: Option<CircuitBreaker>,
    /// See [`ListenerBuilder::adaptive_concurrency`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive_concurrency: Option<bool>,
    /// See [`ListenerBuilder::adaptive_visibility`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive_visibility: Option<bool>,
}

/// The delays of an exponential [`RetryPolicy`] in a [`ListenerConfig`].
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{ListenerConfig, RetryConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: ListenerConfig = toml::from_str(r#"retry = { base = "1s", cap = "10m" }"#)?;
/// let (base, cap) = (Duration::from_secs(1), Duration::from_secs(600));
/// assert_eq!(config.retry, Some(RetryConfig { base, cap }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryConfig {
    /// The longest delay after the first attempt.
    #[serde(with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required")]
    pub base: Duration,
    /// The longest delay.
    #[serde(with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required")]
    pub cap: Duration,
}

impl<M: Message> ListenerBuilder<M> {
    /// Applies the settings of a configuration. They replace those of earlier calls, and later calls replace them.
    pub fn config(mut self, config: &ListenerConfig) -> Self {
        let ListenerConfig {
            tasks,
            batch,
            max_in_flight,
            max_bytes_in_flight,
            visibility_timeout,
            handler_timeout,
            poison_threshold,
            poison_queue,
            version_patience,
            retry,
            idle_cap,
            scale,
            advise_instances,
            circuit_breaker,
            adaptive_concurrency,
            adaptive_visibility,
        } = config;
        self.advice = advise_instances.or(self.advice);
        self.breaker = circuit_breaker.or(self.breaker);
        self.adaptive_concurrency = adaptive_concurrency.unwrap_or(self.adaptive_concurrency);
        self.adaptive_visibility = adaptive_visibility.unwrap_or(self.adaptive_visibility);
        let (bounds, options) = (&mut self.bounds, &mut self.options);
        bounds.tasks = tasks.unwrap_or(bounds.tasks);
        bounds.batch = batch.or(bounds.batch);
        bounds.max_in_flight = max_in_flight.unwrap_or(bounds.max_in_flight);
        bounds.max_bytes = max_bytes_in_flight.or(bounds.max_bytes);
        let overrides = &mut options.overrides;
        overrides.visibility = visibility_timeout.or(overrides.visibility);
        overrides.handler_timeout = handler_timeout.or(overrides.handler_timeout);
        overrides.threshold = poison_threshold.or(overrides.threshold);
        options.version_patience = version_patience.unwrap_or(options.version_patience);
        if let Some(name) = poison_queue {
            options.poison_queue = Some(name.clone());
        }
        if let Some(RetryConfig { base, cap }) = *retry {
            options.retry = RetryPolicy::exponential(base, cap);
        }
        if let Some(cap) = *idle_cap {
            self = self.idle(ExponentialIdle::up_to(cap));
        }
        match scale {
            Some(rules) => self.scale(rules.clone()),
            None => self,
        }
    }
}

//! The settings of a consumer as one value, and the check of each.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::Capabilities;
use queue_core::duration;
use queue_core::internal::as_count;
use serde::{Deserialize, Serialize};

use crate::kernel::policy::{CircuitBreaker, Objective, Rate, RetryPolicy, ScaleRules, TaskRange};

/// Declares a consumer's settings, each of which may be missing.
macro_rules! config {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$field_about:meta])* pub $field:ident: Option<$type:ty>,)* }) => {
        $(#[$about])*
        pub struct $name {
            $(
                $(#[$field_about])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }

        impl $name {
            /// Replaces the settings that `later` has.
            pub(crate) fn apply(&mut self, later: &Self) {
                $(
                    if later.$field.is_some() {
                        self.$field.clone_from(&later.$field);
                    }
                )*
            }
        }
    };
}

config! {
    /// The settings of a consumer, for [`ListenerBuilder::config`](crate::ListenerBuilder::config) and
    /// [`Accept::config`](crate::receive::Accept::config). A `ConsumerConfig` can be read from a configuration file, in any
    /// format that serde reads.
    ///
    /// Each field is named after the method of [`ListenerBuilder`](crate::ListenerBuilder) that it stands for; an
    /// [`Accept`](crate::receive::Accept) uses the fields that it has methods for. A field that is missing leaves the
    /// setting as it is; an unknown field is an error. Values are checked when the consumer starts. Durations are texts
    /// like `"30s"` or `"1m 30s"`.
    ///
    /// ```
    /// use queue_runtime::{Message, Received, testing};
    /// use queue_runtime::settings::ConsumerConfig;
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
    /// let config: ConsumerConfig = toml::from_str(
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
    ///     policy = "depth"
    ///     steps = [{ below = 50, tasks = 2 }, { below = 500, tasks = 4 }]
    ///     above = 8
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
    pub struct ConsumerConfig {
        /// See [`ListenerBuilder::tasks`](crate::ListenerBuilder::tasks).
        pub tasks: Option<TaskRange>,
        /// See [`ListenerBuilder::batch`](crate::ListenerBuilder::batch).
        pub batch: Option<usize>,
        /// See [`ListenerBuilder::max_in_flight`](crate::ListenerBuilder::max_in_flight).
        pub max_in_flight: Option<usize>,
        /// See [`ListenerBuilder::max_bytes_in_flight`](crate::ListenerBuilder::max_bytes_in_flight).
        pub max_bytes_in_flight: Option<usize>,
        /// See [`ListenerBuilder::rate`](crate::ListenerBuilder::rate).
        pub rate: Option<Rate>,
        /// See [`ListenerBuilder::visibility_timeout`](crate::ListenerBuilder::visibility_timeout).
        #[serde(with = "duration::optional")]
        pub visibility_timeout: Option<Duration>,
        /// See [`ListenerBuilder::handler_timeout`](crate::ListenerBuilder::handler_timeout).
        #[serde(with = "duration::optional")]
        pub handler_timeout: Option<Duration>,
        /// See [`ListenerBuilder::max_pack_hold`](crate::ListenerBuilder::max_pack_hold).
        #[serde(with = "duration::optional")]
        pub max_pack_hold: Option<Duration>,
        /// See [`ListenerBuilder::poison_threshold`](crate::ListenerBuilder::poison_threshold).
        pub poison_threshold: Option<usize>,
        /// See [`ListenerBuilder::poison_queue`](crate::ListenerBuilder::poison_queue).
        pub poison_queue: Option<QueueName>,
        /// See [`ListenerBuilder::version_patience`](crate::ListenerBuilder::version_patience).
        #[serde(with = "duration::optional")]
        pub version_patience: Option<Duration>,
        /// See [`ListenerBuilder::retry`](crate::ListenerBuilder::retry).
        pub retry: Option<RetryPolicy>,
        /// The cap of an [`ExponentialIdle`](crate::policy::ExponentialIdle). See
        /// [`ListenerBuilder::idle`](crate::ListenerBuilder::idle).
        #[serde(with = "duration::optional")]
        pub idle_cap: Option<Duration>,
        /// See [`ListenerBuilder::scale`](crate::ListenerBuilder::scale).
        pub scale: Option<ScaleRules>,
        /// See [`ListenerBuilder::objective`](crate::ListenerBuilder::objective).
        pub objective: Option<Objective>,
        /// See [`ListenerBuilder::circuit_breaker`](crate::ListenerBuilder::circuit_breaker).
        pub circuit_breaker: Option<CircuitBreaker>,
        /// `false` is [`ListenerBuilder::fixed_concurrency`](crate::ListenerBuilder::fixed_concurrency).
        pub adaptive_concurrency: Option<bool>,
    }
}

/// More attempts would be remembered for too long.
const MAX_BREAKER_ATTEMPTS: usize = 10_000;

impl ConsumerConfig {
    /// Checks the settings of all consumers against the backend's limits.
    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<(), InvalidSetting> {
        if let Some(threshold) = self.poison_threshold {
            InvalidSetting::count("poison threshold", threshold, as_count(u32::MAX))?;
        }
        if let Some(rate) = &self.rate {
            check_rate(rate)?;
        }
        if let Some(objective) = &self.objective {
            check_objective(objective)?;
        }
        if let Some(timeout) = self.handler_timeout {
            InvalidSetting::positive("handler timeout", timeout)?;
        }
        if let Some(hold) = self.max_pack_hold {
            InvalidSetting::positive("longest time for which a pack is held", hold)?;
        }
        if let Some(timeout) = self.visibility_timeout {
            let allowed = capabilities.min_visibility..=capabilities.max_visibility;
            InvalidSetting::duration("visibility timeout", timeout, &allowed)?;
        }
        if let Some(retry) = &self.retry {
            let allowed = Duration::ZERO..=capabilities.max_delay;
            InvalidSetting::duration(
                "longest delay of the retry policy",
                retry.longest(),
                &allowed,
            )?;
        }
        self.circuit_breaker.as_ref().map_or(Ok(()), check_breaker)
    }
}

/// Checks a rate.
pub(crate) fn check_rate(rate: &Rate) -> Result<(), InvalidSetting> {
    InvalidSetting::count("count of the rate", rate.count, as_count(u32::MAX))?;
    let burst = rate.burst.unwrap_or(1);
    InvalidSetting::count("burst of the rate", burst, as_count(u32::MAX))?;
    InvalidSetting::positive("time between two of the rate", rate.interval())
}

fn check_objective(objective: &Objective) -> Result<(), InvalidSetting> {
    InvalidSetting::share("share of the objective", objective.share)?;
    InvalidSetting::positive("time of the objective", objective.within)
}

fn check_breaker(breaker: &CircuitBreaker) -> Result<(), InvalidSetting> {
    InvalidSetting::count(
        "number of attempts of the circuit breaker",
        breaker.attempts,
        MAX_BREAKER_ATTEMPTS,
    )?;
    let interval = "probe interval of the circuit breaker";
    InvalidSetting::positive(interval, breaker.probe_interval)?;
    let share = "share of failed attempts that opens the circuit breaker";
    InvalidSetting::share(share, breaker.failed)
}

/// A setting outside its allowed range. The error's text names setting, value and allowed range.
///
/// ```
/// use queue_runtime::{Message, QueueService};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("memory:").await?;
/// let error = service.accept::<Order>().poison_threshold(0).await.unwrap_err();
/// assert_eq!(error.to_string(), "failed to accept from queue `order`: the poison threshold is 0; allowed is 1 to 4294967295");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {setting} is {value}; allowed is {allowed}")]
pub struct InvalidSetting {
    setting: &'static str,
    value: String,
    allowed: String,
}

queue_core::debug_as_text!(InvalidSetting);

impl InvalidSetting {
    pub(crate) fn new(setting: &'static str, value: &str, allowed: impl Into<String>) -> Self {
        Self {
            setting,
            value: format!("{value:?}"),
            allowed: allowed.into(),
        }
    }

    /// Checks a number that is to be from 1 to `most`.
    pub(crate) fn count(setting: &'static str, value: usize, most: usize) -> Result<(), Self> {
        Self::within(setting, value, 1, most)
    }

    /// Checks a number that is to be from `least` to `most`.
    pub(crate) fn within(
        setting: &'static str,
        value: usize,
        least: usize,
        most: usize,
    ) -> Result<(), Self> {
        let is_allowed = (least..=most).contains(&value);
        Self::check(is_allowed, setting, value, || match most {
            usize::MAX => format!("{least} or more"),
            most => format!("{least} to {most}"),
        })
    }

    /// Checks a share above 0 and at most 1.
    pub(crate) fn share(setting: &'static str, value: f64) -> Result<(), Self> {
        let allowed = || "above 0 and up to 1".to_owned();
        Self::check(value > 0.0 && value <= 1.0, setting, value, allowed)
    }

    /// Checks a duration above 0.
    pub(crate) fn positive(setting: &'static str, value: Duration) -> Result<(), Self> {
        let allowed = || "more than 0".to_owned();
        Self::check(!value.is_zero(), setting, "0ns", allowed)
    }

    /// Checks a duration that is to be within this range.
    pub(crate) fn duration(
        setting: &'static str,
        value: Duration,
        allowed: &RangeInclusive<Duration>,
    ) -> Result<(), Self> {
        let is_allowed = allowed.contains(&value);
        Self::check(is_allowed, setting, format_args!("{value:?}"), || {
            format!("{:?} to {:?}", allowed.start(), allowed.end())
        })
    }

    /// Checks that messages are not moved from their queue to itself, where they would fail again for ever.
    pub(crate) fn poison_queue_of(queue: &QueueName, poison: &QueueName) -> Result<(), Self> {
        let value = format_args!("`{poison}`, the queue itself");
        Self::check(queue != poison, "poison queue", value, || {
            format!("another queue; set one with `poison_queue`, such as `{queue}-poison`")
        })
    }

    pub(crate) fn check(
        is_allowed: bool,
        setting: &'static str,
        value: impl fmt::Display,
        allowed: impl FnOnce() -> String,
    ) -> Result<(), Self> {
        if is_allowed {
            return Ok(());
        }
        Err(Self {
            setting,
            value: value.to_string(),
            allowed: allowed(),
        })
    }
}

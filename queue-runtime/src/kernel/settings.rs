//! Timeouts and thresholds of consumers. A setting comes from the first source that has a value: the builder, the
//! queue's metadata, the message type, the default. (The handler timeout comes from builder or default only, the poison
//! queue from builder, type or default.)

mod config;
mod metadata;
mod paused;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queue_core::backend::{Backend, Capabilities, Metadata};
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};

use crate::kernel::clock::ready_by;

pub(crate) use config::check_rate;
pub use config::{ConsumerConfig, InvalidSetting};
use metadata::FromMetadata;
pub(crate) use metadata::Limits;
pub use metadata::check_metadata;
pub(crate) use paused::Marks;
pub use paused::{PAUSED, PAUSED_REASON, Paused, paused};

/// The name of the queue metadata for the number of attempts after which a message is moved to the poison
/// queue. See [`AnyQueue::set_metadata`](crate::AnyQueue::set_metadata).
pub const POISON_THRESHOLD: &str = "poisonthreshold";
/// The name of the queue metadata for the visibility timeout: a duration such as `90s` or `2m`, or a number of seconds.
pub const DEFAULT_TIMEOUT: &str = "defaulttimeout";
/// The name of the queue metadata for the [rate](crate::policy::Rate) at which the listeners of all processes together
/// receive, such as `100/1m`. See [`AnyQueue::set_rate`](crate::AnyQueue::set_rate).
pub const RECEIVE_RATE: &str = "receiverate";

/// The name of the queue metadata for how many messages each listener of the queue has in flight at most, if its own
/// [`max_in_flight`](crate::ListenerBuilder::max_in_flight) is not lower. A handler of batches gets a whole batch in any
/// case. The metadata is read for a receive, so that a listener whose room is all taken notices a change when a message has
/// ended.
pub const MAX_IN_FLIGHT: &str = "maxinflight";
/// The name of the queue metadata for how many messages each listener of the queue receives at once at most, if its own
/// [`batch`](crate::ListenerBuilder::batch) is not lower.
pub const MAX_BATCH: &str = "maxbatch";
/// The name of the queue metadata for how long the dequeue tasks of each listener of the queue pause at most while it is
/// empty, if their [idle policy](crate::ListenerBuilder::idle) does not say less: a duration such as `90s` or `2m`, or a
/// number of seconds, from a second to a day. The metadata is read for a receive, so that a shorter time is noticed when a
/// pause has ended.
pub const MAX_IDLE: &str = "maxidle";

pub(crate) const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);
const DEFAULT_ATTEMPTS: usize = 5;
/// How long a result is kept, unless that is set: as long as a message lives on many queues.
pub(crate) const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The default handler timeout, as a multiple of the visibility timeout.
const HANDLER_VISIBILITIES: u32 = 10;
/// How long a consumer waits for the metadata or the properties of its queue.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long cached metadata stays fresh.
const FRESH: Duration = Duration::from_secs(60);
/// How long cached metadata stays fresh where reading it costs next to nothing.
const FRESH_IF_CHEAP: Duration = Duration::from_secs(5);
/// Where idle consumers poll as often as this, one more read now and then costs next to nothing.
const CHEAP_POLLS: Duration = Duration::from_secs(5);

/// Returns whether one more read now and then costs next to nothing.
pub(crate) fn reads_are_cheap(capabilities: &Capabilities) -> bool {
    capabilities.idle_cap <= CHEAP_POLLS
}

/// The effective settings for the messages of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) visibility: Duration,
    /// The poison threshold, unless the type of a message decides.
    threshold: Option<usize>,
    pub(crate) handler_timeout: Duration,
    /// Whether the queue is paused, for listeners.
    pub(crate) is_paused: bool,
    /// How many messages each listener has in flight at most.
    pub(crate) max_in_flight: Option<usize>,
}

impl Settings {
    /// Chooses each setting by precedence.
    fn resolve(
        config: &ConsumerConfig,
        metadata: FromMetadata,
        declared: Option<Duration>,
    ) -> Self {
        let visibility = config
            .visibility_timeout
            .or(metadata.visibility)
            .or(declared)
            .unwrap_or(DEFAULT_VISIBILITY);
        Self {
            visibility,
            threshold: config.poison_threshold.or(metadata.threshold),
            handler_timeout: config
                .handler_timeout
                .unwrap_or(visibility.saturating_mul(HANDLER_VISIBILITIES)),
            is_paused: metadata.is_paused,
            max_in_flight: metadata.limits.in_flight,
        }
    }
}

impl Settings {
    /// Returns the settings for the messages of one type of several on the queue, which has a configuration of its own.
    pub(crate) fn for_type(self, config: &ConsumerConfig) -> Self {
        Self {
            threshold: config.poison_threshold.or(self.threshold),
            handler_timeout: config.handler_timeout.unwrap_or(self.handler_timeout),
            ..self
        }
    }

    /// Returns the number of attempts of a message whose type declares `declared`.
    pub(crate) fn threshold(&self, declared: Option<usize>) -> usize {
        self.threshold.or(declared).unwrap_or(DEFAULT_ATTEMPTS)
    }
}

/// The metadata of the queues in use, cached for a minute, or five seconds where reading it costs little.
#[derive(Debug)]
pub(crate) struct SettingsCache {
    fresh: Duration,
    cached: Mutex<Cached>,
    /// Whether any queue has had limits: most services have none, and look nothing up.
    any_limits: AtomicBool,
    marks: Marks,
}

#[derive(Debug, Default)]
struct Cached {
    /// Ordered, because comparing a few short names is cheaper than hashing one.
    entries: BTreeMap<QueueName, (Duration, FromMetadata)>,
    /// Changes when the entries are cleared, so that metadata read before that is not cached after it.
    generation: u64,
}

impl SettingsCache {
    pub(crate) fn new(capabilities: &Capabilities) -> Self {
        let is_cheap = reads_are_cheap(capabilities);
        Self {
            fresh: if is_cheap { FRESH_IF_CHEAP } else { FRESH },
            cached: Mutex::default(),
            any_limits: AtomicBool::new(false),
            marks: Marks::default(),
        }
    }

    /// Clears the cache. What is known of paused queues is kept until their metadata is read again.
    pub(crate) fn clear(&self) {
        let mut cached = self.cached.hold();
        cached.entries.clear();
        cached.generation += 1;
    }

    /// Records that this service has replaced the metadata of a queue.
    pub(crate) fn replaced(&self, queue: &QueueName, metadata: &Metadata) {
        self.clear();
        self.marks.learn(queue, paused(metadata));
    }

    /// What is known of paused queues.
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// How long cached metadata stays fresh.
    pub(crate) fn fresh(&self) -> Duration {
        self.fresh
    }

    /// Returns the age of the cached metadata of a queue, if any, at this time of the monotonic clock.
    pub(crate) fn age(&self, queue: &QueueName, now: Duration) -> Option<Duration> {
        let cached = self.cached.hold();
        let (read_at, _) = cached.entries.get(queue)?;
        Some(now.saturating_sub(*read_at))
    }

    /// Returns what the metadata of a queue says to its listeners at most, if it was read before.
    pub(crate) fn limits(&self, queue: &QueueName) -> Limits {
        if !self.any_limits.load(Ordering::Relaxed) {
            return Limits::default();
        }
        let cached = self.cached.hold();
        let known = cached
            .entries
            .get(queue)
            .map(|(_, metadata)| metadata.limits);
        known.unwrap_or_default()
    }

    /// Returns the settings of a queue whose metadata was read before, however long ago.
    pub(crate) fn known(
        &self,
        queue: &QueueName,
        declared: Option<Duration>,
        config: &ConsumerConfig,
    ) -> Option<Settings> {
        let cached = self.cached.hold();
        let (_, metadata) = cached.entries.get(queue)?;
        Some(Settings::resolve(config, *metadata, declared))
    }

    /// Returns the settings of a queue whose metadata need not be read again now.
    pub(crate) fn still_fresh(
        &self,
        queue: &QueueName,
        declared: Option<Duration>,
        config: &ConsumerConfig,
        now: Duration,
    ) -> Option<Settings> {
        let cached = self.cached.hold();
        let (read_at, metadata) = cached.entries.get(queue)?;
        let is_fresh = now.saturating_sub(*read_at) < self.fresh;
        is_fresh.then(|| Settings::resolve(config, *metadata, declared))
    }

    /// Returns the settings of a queue.
    ///
    /// # Errors
    /// If the queue does not exist; otherwise the backend's error, or a timeout after 30 seconds, if the queue's metadata
    /// has never been read.
    pub(crate) async fn settings(
        &self,
        backend: &dyn Backend,
        clock: &dyn Clock,
        queue: &QueueName,
        declared: Option<Duration>,
        config: &ConsumerConfig,
    ) -> queue_core::Result<Settings> {
        let now = clock.monotonic();
        let generation = self.cached.hold().generation;
        let metadata = match self.look_up(queue, now) {
            (Some(metadata), false) => metadata,
            // Boxed, because this future is rare and large.
            (known, _) => match Box::pin(read_in_time(clock, queue, backend.metadata(queue))).await
            {
                Ok(read) => {
                    let longest = backend.capabilities().max_visibility;
                    let metadata = FromMetadata::read(queue, &read, longest);
                    let mut cached = self.cached.hold();
                    if cached.generation == generation {
                        let has_limits = metadata.limits != Limits::default();
                        self.any_limits.fetch_or(has_limits, Ordering::Relaxed);
                        cached.entries.insert(queue.clone(), (now, metadata));
                        self.marks.learn(queue, paused(&read));
                    }
                    metadata
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {
                    self.cached.hold().entries.remove(queue);
                    self.marks.learn(queue, None);
                    return Err(error);
                }
                Err(error) => match known {
                    Some(metadata) => {
                        tracing::warn!(%queue, %error, "failed to refresh a queue's metadata; using the cached settings");
                        metadata
                    }
                    None => return Err(error),
                },
            },
        };
        Ok(Settings::resolve(config, metadata, declared))
    }

    /// Returns the cached metadata of a queue, and whether the caller must read it again. If nothing is
    /// cached, every caller must read; once the cached value is stale, only the first.
    fn look_up(&self, queue: &QueueName, now: Duration) -> (Option<FromMetadata>, bool) {
        let mut cached = self.cached.hold();
        let Some((read_at, metadata)) = cached.entries.get_mut(queue) else {
            return (None, true);
        };
        let stale = now.saturating_sub(*read_at) >= self.fresh;
        if stale {
            *read_at = now;
        }
        (Some(*metadata), stale)
    }
}

/// Reads the metadata or the properties of a queue for a consumer, which would stand still if the backend never
/// answered.
///
/// # Errors
/// The backend's error, or a timeout after 30 seconds.
pub(crate) async fn read_in_time<T>(
    clock: &dyn Clock,
    queue: &QueueName,
    read: impl Future<Output = queue_core::Result<T>>,
) -> queue_core::Result<T> {
    let deadline = clock.monotonic().saturating_add(READ_TIMEOUT);
    ready_by(clock, deadline, read).await.unwrap_or_else(|| {
        let timeout = Error::new(ErrorKind::Timeout, Operation::Properties);
        Err(timeout.with_queue(queue).with_outcome(Outcome::NotDone))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_reads_stale_metadata_again() {
        let (cache, queue) = (cache(FRESH), "orders".parse().expect("valid"));
        let start = Duration::from_secs(1000);
        assert_eq!(cache.look_up(&queue, start), (None, true));
        let known = metadata(&[("poisonthreshold", "3")]);
        cache
            .cached
            .hold()
            .entries
            .insert(queue.clone(), (start, known));
        let almost = start + FRESH - Duration::from_nanos(1);
        assert_eq!(cache.look_up(&queue, almost), (Some(known), false));
        assert_eq!(cache.look_up(&queue, start + FRESH), (Some(known), true));
        assert_eq!(cache.look_up(&queue, start + FRESH), (Some(known), false));
    }

    /// A cache for storage whose idle consumers poll this often.
    fn cache(idle_cap: Duration) -> SettingsCache {
        let mut capabilities = Capabilities::local();
        capabilities.idle_cap = idle_cap;
        SettingsCache::new(&capabilities)
    }

    #[test]
    fn metadata_stays_fresh_a_minute_or_for_five_seconds_where_reading_it_costs_little() {
        for (idle_cap, fresh) in [(250, 5), (5_000, 5), (5_001, 60), (30_000, 60)] {
            let cache = cache(Duration::from_millis(idle_cap));
            assert_eq!(cache.fresh(), Duration::from_secs(fresh), "{idle_cap}");
        }
    }

    fn metadata(pairs: &[(&str, &str)]) -> FromMetadata {
        let mut metadata = Metadata::new();
        for (name, value) in pairs {
            metadata.insert(name, value).expect("allowed");
        }
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        FromMetadata::read(&"orders".parse().expect("valid"), &metadata, week)
    }

    #[test]
    fn builder_before_metadata_before_type_before_default() {
        let builder = ConsumerConfig {
            poison_threshold: Some(1),
            ..ConsumerConfig::default()
        };
        let unset = ConsumerConfig::default();
        let from_queue = metadata(&[("PoisonThreshold", "2"), ("DefaultTimeout", "2")]);
        let none = FromMetadata::default();
        let declared = Some(Duration::from_secs(7));

        let settings = Settings::resolve(&builder, from_queue, declared);
        let seconds = settings.visibility.as_secs();
        assert_eq!((settings.threshold(Some(7)), seconds), (1, 2));
        let settings = Settings::resolve(&unset, from_queue, declared);
        assert_eq!(settings.threshold(Some(7)), 2);
        let settings = Settings::resolve(&unset, none, declared);
        let seconds = settings.visibility.as_secs();
        assert_eq!((settings.threshold(Some(7)), seconds), (7, 7));
        let settings = Settings::resolve(&unset, none, None);
        let seconds = settings.visibility.as_secs();
        assert_eq!((settings.threshold(None), seconds), (5, 30));
        assert_eq!(settings.handler_timeout, Duration::from_secs(300));
    }

    #[test]
    fn invalid_metadata_is_ignored() {
        for value in ["0", "-1", "many", "1.5", ""] {
            assert_eq!(
                metadata(&[(POISON_THRESHOLD, value)]).threshold,
                None,
                "{value}"
            );
        }
        for value in ["0", "604801", "8d", "500ms", "2 weeks", "-1s", "soon", ""] {
            let read = metadata(&[(DEFAULT_TIMEOUT, value), (MAX_IDLE, value)]);
            let capabilities = Capabilities::local();
            for name in [DEFAULT_TIMEOUT, "MaxIdle"] {
                let error = check_metadata(name, value, &capabilities).expect_err(value);
                assert!(
                    error
                        .to_string()
                        .contains("allowed is a duration such as `90s`"),
                    "{error}"
                );
            }
            assert_eq!(check_metadata("color", value, &capabilities), Ok(()));
            assert_eq!((read.visibility, read.limits.idle), (None, None), "{value}");
        }
    }
}

//! The terms on which messages are handled: time-outs and thresholds, by precedence from the builder,
//! the queue's metadata, the type and the defaults.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::backend::{Capabilities, Metadata};
use queue_core::{ErrorKind, MessageType, QueueName};

use crate::service::Shared;

/// The metadata name under which a queue says how many attempts a message gets.
pub const POISON_THRESHOLD: &str = "poisonthreshold";
/// The metadata name under which a queue says its visibility timeout, in seconds.
pub const DEFAULT_TIMEOUT: &str = "defaulttimeout";

const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);
const DEFAULT_ATTEMPTS: u32 = 5;
/// A handler may run for this many visibility timeouts unless it is told otherwise.
const HANDLER_VISIBILITIES: u32 = 10;
/// How long metadata is believed before one of those who use it reads it again.
const FRESH: Duration = Duration::from_secs(60);

/// What a builder has been told.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Overrides {
    pub(crate) visibility: Option<Duration>,
    pub(crate) threshold: Option<u32>,
    pub(crate) handler_timeout: Option<Duration>,
}

/// A setting that is outside what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {setting} is {value}; allowed is {allowed}")]
pub struct InvalidSetting {
    setting: &'static str,
    value: String,
    allowed: String,
}

impl InvalidSetting {
    pub(crate) fn at_least_one(setting: &'static str, value: usize) -> Result<(), Self> {
        if value > 0 {
            return Ok(());
        }
        let (value, allowed) = ("0".to_owned(), "1 or more".to_owned());
        Err(Self {
            setting,
            value,
            allowed,
        })
    }
}

impl Overrides {
    /// Checks what a builder has been told against what the backend allows.
    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<(), InvalidSetting> {
        if let Some(threshold) = self.threshold {
            InvalidSetting::at_least_one("poison threshold", threshold as usize)?;
        }
        let allowed = capabilities.min_visibility..=capabilities.max_visibility;
        match self.visibility.filter(|timeout| !allowed.contains(timeout)) {
            None => Ok(()),
            Some(timeout) => Err(InvalidSetting {
                setting: "visibility timeout",
                value: format!("{timeout:?}"),
                allowed: format!("{:?} to {:?}", allowed.start(), allowed.end()),
            }),
        }
    }
}

/// What holds for the messages of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) visibility: Duration,
    pub(crate) threshold: u32,
    pub(crate) handler_timeout: Duration,
}

impl Terms {
    fn resolve(overrides: Overrides, metadata: FromMetadata, message_type: &MessageType) -> Self {
        let visibility = overrides
            .visibility
            .or(metadata.visibility)
            .or(message_type.visibility_timeout)
            .unwrap_or(DEFAULT_VISIBILITY);
        Self {
            visibility,
            threshold: overrides
                .threshold
                .or(metadata.threshold)
                .or(message_type.poison_threshold)
                .unwrap_or(DEFAULT_ATTEMPTS),
            handler_timeout: overrides
                .handler_timeout
                .unwrap_or(visibility.saturating_mul(HANDLER_VISIBILITIES)),
        }
    }
}

/// The metadata of the queues in use, kept for a minute.
#[derive(Debug, Default)]
pub(crate) struct TermsCache {
    entries: Mutex<HashMap<QueueName, (Duration, FromMetadata)>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FromMetadata {
    visibility: Option<Duration>,
    threshold: Option<u32>,
}

impl TermsCache {
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// What is known of a queue's metadata, and whether the caller is to read it: everybody before anything
    /// is known, and then the first who asks when a minute is over. The others go on with what is known.
    fn look_up(&self, queue: &QueueName, now: Duration) -> (Option<FromMetadata>, bool) {
        let mut entries = self.lock();
        let Some((read_at, metadata)) = entries.get_mut(queue) else {
            return (None, true);
        };
        let old = now.saturating_sub(*read_at) >= FRESH;
        if old {
            *read_at = now;
        }
        (Some(*metadata), old)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, (Duration, FromMetadata)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The terms of a queue. A queue that is missing has no metadata; the receive will say so.
    pub(crate) async fn terms(
        &self,
        queue: &QueueName,
        message_type: &MessageType,
        overrides: Overrides,
    ) -> queue_core::Result<Terms> {
        let now = self.clock.monotonic();
        let metadata = match self.terms.look_up(queue, now) {
            (Some(metadata), false) => metadata,
            (known, _) => match self.backend.metadata(queue).await {
                Ok(metadata) => {
                    let longest = self.backend.capabilities().max_visibility;
                    let metadata = FromMetadata::read(queue, &metadata, longest);
                    self.terms.lock().insert(queue.clone(), (now, metadata));
                    metadata
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => FromMetadata::default(),
                Err(error) => match known {
                    Some(metadata) => {
                        tracing::warn!(%queue, %error, "kept to what was known of a queue's metadata");
                        metadata
                    }
                    None => return Err(error),
                },
            },
        };
        Ok(Terms::resolve(overrides, metadata, message_type))
    }
}

impl FromMetadata {
    fn read(queue: &QueueName, metadata: &Metadata, longest: Duration) -> Self {
        let longest = u32::try_from(longest.as_secs()).unwrap_or(u32::MAX);
        Self {
            visibility: number(queue, metadata, DEFAULT_TIMEOUT, longest)
                .map(|seconds| Duration::from_secs(seconds.into())),
            threshold: number(queue, metadata, POISON_THRESHOLD, u32::MAX),
        }
    }
}

fn number(queue: &QueueName, metadata: &Metadata, name: &str, most: u32) -> Option<u32> {
    let text = metadata.find(name)?;
    match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Some(number),
        _ => {
            tracing::warn!(
                %queue, metadata = name, value = text,
                "passed over a queue's metadata: a whole number from 1 to {most} is allowed"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: MessageType = MessageType::new("order", "orders")
        .with_visibility_timeout(Duration::from_secs(7))
        .with_poison_threshold(7);

    #[test]
    fn one_of_many_reads_metadata_again_when_a_minute_is_over() {
        let (cache, queue) = (TermsCache::default(), "orders".parse().expect("valid"));
        let start = Duration::from_secs(1000);
        assert_eq!(cache.look_up(&queue, start), (None, true));
        let known = metadata(&[("poisonthreshold", "3")]);
        cache.lock().insert(queue.clone(), (start, known));
        let almost = start + FRESH - Duration::from_nanos(1);
        assert_eq!(cache.look_up(&queue, almost), (Some(known), false));
        assert_eq!(cache.look_up(&queue, start + FRESH), (Some(known), true));
        assert_eq!(cache.look_up(&queue, start + FRESH), (Some(known), false));
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
        let builder = Overrides {
            threshold: Some(1),
            ..Overrides::default()
        };
        let from_queue = metadata(&[("PoisonThreshold", "2"), ("DefaultTimeout", "2")]);
        let plain = MessageType::new("order", "orders");

        let terms = Terms::resolve(builder, from_queue, &TYPE);
        assert_eq!(
            (terms.threshold, terms.visibility),
            (1, Duration::from_secs(2))
        );
        let terms = Terms::resolve(Overrides::default(), from_queue, &TYPE);
        assert_eq!(terms.threshold, 2);
        let terms = Terms::resolve(Overrides::default(), FromMetadata::default(), &TYPE);
        assert_eq!(
            (terms.threshold, terms.visibility),
            (7, Duration::from_secs(7))
        );
        let terms = Terms::resolve(Overrides::default(), FromMetadata::default(), &plain);
        assert_eq!(
            (terms.threshold, terms.visibility),
            (5, Duration::from_secs(30))
        );
        assert_eq!(terms.handler_timeout, Duration::from_secs(300));
    }

    #[test]
    fn nonsense_in_metadata_is_passed_over() {
        for value in ["0", "-1", "many", "1.5", ""] {
            assert_eq!(
                metadata(&[(POISON_THRESHOLD, value)]).threshold,
                None,
                "{value}"
            );
        }
        assert_eq!(metadata(&[(DEFAULT_TIMEOUT, "604801")]).visibility, None);
    }
}

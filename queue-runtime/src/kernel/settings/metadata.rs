//! Settings in the metadata of a queue: reading and checking them.

use std::num::NonZeroU32;
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::{Capabilities, Metadata};
use queue_core::internal::{as_count, parse_duration};

use super::{
    DEFAULT_TIMEOUT, InvalidSetting, MAX_BATCH, MAX_IDLE, MAX_IN_FLIGHT, PAUSED, POISON_THRESHOLD,
    RECEIVE_RATE,
};
use crate::kernel::policy::{InvalidRate, Rate};

/// The shortest duration in the metadata.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST_IDLE: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings in the metadata of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FromMetadata {
    pub(super) visibility: Option<Duration>,
    pub(super) threshold: Option<usize>,
    pub(super) is_paused: bool,
    pub(super) limits: Limits,
}

/// What the metadata of a queue says to its listeners at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The rate at which the listeners of all processes together receive.
    pub(crate) rate: Option<Rate>,
    /// How many messages each listener has in flight.
    pub(crate) in_flight: Option<usize>,
    /// How many messages each listener receives at once.
    pub(crate) batch: Option<usize>,
    /// How long dequeue tasks pause while the queue is empty.
    pub(crate) idle: Option<Duration>,
}

impl FromMetadata {
    pub(super) fn read(queue: &QueueName, metadata: &Metadata, longest: Duration) -> Self {
        let heeded = Heeded { queue, metadata };
        Self {
            visibility: heeded.find(DEFAULT_TIMEOUT, |name, text| duration(name, text, longest)),
            threshold: heeded.find(POISON_THRESHOLD, count),
            is_paused: metadata.find(PAUSED).is_some(),
            limits: Limits {
                rate: heeded.find(RECEIVE_RATE, rate),
                in_flight: heeded.find(MAX_IN_FLIGHT, count),
                batch: heeded.find(MAX_BATCH, count),
                idle: heeded.find(MAX_IDLE, |name, text| duration(name, text, LONGEST_IDLE)),
            },
        }
    }
}

/// The metadata of a queue, of which what is invalid is ignored with a warning.
struct Heeded<'a> {
    queue: &'a QueueName,
    metadata: &'a Metadata,
}

impl Heeded<'_> {
    fn find<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&'static str, &str) -> Result<T, InvalidSetting>,
    ) -> Option<T> {
        let read = read(name, self.metadata.find(name)?);
        read.inspect_err(|error| {
            tracing::warn!(queue = %self.queue, metadata = name, %error, "ignored a queue's metadata");
        })
        .ok()
    }
}

/// Checks an entry of a queue's metadata: consumers heed the settings, and ignore an invalid one. All other entries are the
/// application's own, and valid.
///
/// # Errors
/// If a setting is invalid on a storage with these capabilities.
pub fn check_metadata(
    name: &str,
    value: &str,
    capabilities: &Capabilities,
) -> Result<(), InvalidSetting> {
    let is = |setting: &str| name.eq_ignore_ascii_case(setting);
    for setting in [POISON_THRESHOLD, MAX_IN_FLIGHT, MAX_BATCH] {
        if is(setting) {
            count(setting, value)?;
        }
    }
    for (setting, longest) in [
        (DEFAULT_TIMEOUT, capabilities.max_visibility),
        (MAX_IDLE, LONGEST_IDLE),
    ] {
        if is(setting) {
            duration(setting, value, longest)?;
        }
    }
    if is(RECEIVE_RATE) {
        rate(RECEIVE_RATE, value)?;
    }
    Ok(())
}

fn rate(name: &'static str, text: &str) -> Result<Rate, InvalidSetting> {
    let rate: Result<Rate, InvalidRate> = text.parse();
    rate.map_err(|_| InvalidSetting::new(name, text, "a rate such as `100/1m`"))
}

/// Reads a duration, or a number of seconds.
fn duration(name: &'static str, text: &str, longest: Duration) -> Result<Duration, InvalidSetting> {
    let seconds = text.parse().map(Duration::from_secs);
    let duration = seconds.or_else(|_| parse_duration(text)).ok();
    let duration = duration.filter(|duration| (SHORTEST..=longest).contains(duration));
    duration.ok_or_else(|| {
        let allowed = format!(
            "a duration such as `90s`, or a number of seconds, from {SHORTEST:?} to {longest:?}"
        );
        InvalidSetting::new(name, text, allowed)
    })
}

/// Reads a count, for which there are 32 bits in the metadata.
fn count(name: &'static str, text: &str) -> Result<usize, InvalidSetting> {
    let number = text.parse::<NonZeroU32>();
    let number = number.map(|number| as_count(number.get()));
    number.map_err(|_| InvalidSetting::new(name, text, format!("1 to {}", u32::MAX)))
}

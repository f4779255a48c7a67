use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A promise of latency: that a share of messages is completed within a time from their insertion into the storage, such as
/// 99 of 100 within 30 seconds. See [`ListenerBuilder::objective`](crate::ListenerBuilder::objective).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::settings::ConsumerConfig;
/// use queue_runtime::policy::Objective;
///
/// let objective = Objective::p99(Duration::from_secs(30));
/// assert_eq!(objective, Objective::new(0.99, Duration::from_secs(30)));
///
/// let config: ConsumerConfig = toml::from_str(r#"objective = { share = 0.99, within = "30s" }"#)?;
/// assert_eq!(config.objective, Some(objective));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    pub(crate) share: f64,
    #[serde(with = "queue_core::duration::required")]
    pub(crate) within: Duration,
}

impl Objective {
    /// Creates the promise that this share of messages, above 0 and at most 1, is completed within this time.
    #[must_use]
    pub const fn new(share: f64, within: Duration) -> Self {
        Self { share, within }
    }

    /// 95 of 100 messages are completed within this time.
    #[must_use]
    pub const fn p95(within: Duration) -> Self {
        Self::new(0.95, within)
    }

    /// 99 of 100 messages are completed within this time.
    #[must_use]
    pub const fn p99(within: Duration) -> Self {
        Self::new(0.99, within)
    }
}

/// The time over which an objective is judged.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);

/// How often an objective is judged: the window consists of parts of this length.
pub(crate) const RESOLUTION: Duration = Duration::from_secs(10);

const PARTS: usize = (WINDOW.as_secs() / RESOLUTION.as_secs()) as usize;

/// The number of messages from which a share says something.
const ENOUGH: usize = 100;

/// How many of the last parts tell whether late messages are put back: a part that has just begun tells little.
const RECENT_PARTS: usize = 2;

/// How many of the last parts must be without a late message if there are fewer than [`ENOUGH`] messages: a minute.
const GOOD_PARTS: usize = 6;

/// How many messages ended in a time, and how many of them late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WindowCounts {
    pub(crate) messages: usize,
    pub(crate) late: usize,
    /// How often a late message was put back for another attempt.
    put_back: usize,
}

/// How the message ended that was in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settlement {
    Completed,
    /// The message will not be completed.
    Failed,
    PutBack,
}

/// The messages that are not completed yet, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// How many messages are late.
    pub(crate) late: usize,
    /// The time since the oldest message was inserted.
    pub(crate) oldest: Option<Duration>,
}

/// What a look at the window has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectiveChange {
    Broken,
    Kept,
}

/// The settlements of the last minutes, and whether the objective is broken.
#[derive(Debug)]
pub(crate) struct Window {
    objective: Objective,
    /// The window's parts, newest first.
    parts: [WindowCounts; PARTS],
    /// The number of the newest part.
    now: u64,
    /// When the last message was completed in time, on the clock of the calls.
    last_in_time: Option<Duration>,
    is_broken: bool,
}

impl Window {
    pub(crate) fn new(objective: Objective) -> Self {
        Self {
            objective,
            parts: [WindowCounts::default(); PARTS],
            now: 0,
            last_in_time: None,
            is_broken: false,
        }
    }

    /// Records a message that was settled at this moment, so long after its insertion.
    pub(crate) fn settled(&mut self, now: Duration, age: Duration, settlement: Settlement) {
        self.advance(now);
        let is_late = age > self.objective.within;
        let part = &mut self.parts[0];
        match settlement {
            Settlement::PutBack => part.put_back += usize::from(is_late),
            Settlement::Completed if !is_late => {
                part.messages += 1;
                self.last_in_time = Some(now);
            }
            Settlement::Completed | Settlement::Failed => {
                part.messages += 1;
                part.late += 1;
            }
        }
    }

    /// Judges the objective at this moment. Returns whether the verdict has changed.
    pub(crate) fn judge(
        &mut self,
        now: Duration,
        unfinished: Unfinished,
    ) -> Option<ObjectiveChange> {
        self.advance(now);
        if self.is_broken {
            let is_good = self.is_good(unfinished) && !self.is_bad(now, unfinished);
            self.is_broken = !is_good;
            is_good.then_some(ObjectiveChange::Kept)
        } else {
            self.is_broken = self.is_bad(now, unfinished);
            self.is_broken.then_some(ObjectiveChange::Broken)
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns the counts of the whole window, in which late messages of `unfinished` count as late.
    pub(crate) fn counts(&self, unfinished: Unfinished) -> WindowCounts {
        let mut sum = self.sum(PARTS);
        sum.messages += unfinished.late;
        sum.late += unfinished.late;
        sum
    }

    /// Whether too large a share of messages is late, or nothing goes on.
    fn is_bad(&self, now: Duration, unfinished: Unfinished) -> bool {
        let counts = self.counts(unfinished);
        let is_too_late = counts.messages >= ENOUGH && in_time(counts) < self.objective.share;
        // One message that takes long is allowed, while others are completed in time.
        let within = self.objective.within;
        let since = self.last_in_time.map(|at| now.saturating_sub(at));
        let is_any_late = unfinished.late > 0 || self.sum(RECENT_PARTS).put_back > 0;
        let stands_still = is_any_late && since.is_none_or(|since| since > within);
        is_too_late || stands_still
    }

    /// Whether clearly fewer messages are late than may be, so that an objective at the limit is not broken again at once.
    fn is_good(&self, unfinished: Unfinished) -> bool {
        let counts = self.counts(unfinished);
        if counts.messages >= ENOUGH {
            1.0 - in_time(counts) <= (1.0 - self.objective.share) / 2.0
        } else {
            let last = self.sum(GOOD_PARTS);
            unfinished.late + last.late + last.put_back == 0
        }
    }

    fn sum(&self, parts: usize) -> WindowCounts {
        let mut sum = WindowCounts::default();
        for part in &self.parts[..parts] {
            sum.messages += part.messages;
            sum.late += part.late;
            sum.put_back += part.put_back;
        }
        sum
    }

    /// Begins new parts for the time that has passed.
    fn advance(&mut self, now: Duration) {
        let part = now.as_secs() / RESOLUTION.as_secs();
        let passed = part.saturating_sub(self.now).min(PARTS as u64) as usize;
        if passed > 0 {
            self.parts.rotate_right(passed);
            self.parts[..passed].fill(WindowCounts::default());
            self.now = part;
        }
    }
}

/// Returns the share of the messages that were in time.
fn in_time(counts: WindowCounts) -> f64 {
    (counts.messages - counts.late) as f64 / counts.messages as f64
}

#[cfg(test)]
mod tests;

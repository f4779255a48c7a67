//! The metrics of one queue.
//!
//! A metric is registered when it first has a value, so that a queue that is only submitted to has no gauges of a
//! listener. Labels are the names of queues, of which the meter bounds the number, and words from fixed lists: never what
//! a message contains.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, IntoF64, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};
use queue_core::internal::{LockExt as _, as_u64};

/// The label of the queue, as OpenTelemetry names it.
const QUEUE: &str = "messaging.destination.name";

/// The label of the kind of messages: one that a consumer declares.
const KIND: &str = "message.kind";
/// In place of the kind, for messages of a consumer that takes any kind, and of kinds that no handler takes.
pub(crate) const OTHER_KIND: &str = "_other";

const SENT: &str = "messaging.client.sent.messages.total";
const CONSUMED: &str = "messaging.client.consumed.messages.total";
const PROCESS: &str = "messaging.process.duration.seconds";
const SETTLED: &str = "queue.settled.messages.total";
const LAG: &str = "queue.message.lag.seconds";
const IN_FLIGHT: &str = "queue.in_flight.messages";
const TASKS: &str = "queue.dequeue_tasks";
const DEPTH: &str = "queue.depth";
const POISON_DEPTH: &str = "queue.poison.depth";
const TRANSACTIONS: &str = "queue.transactions.total";

const COUNTERS: [(&str, &str); 4] = [
    (
        SENT,
        "Messages that were put on the queue; a pack counts as one message",
    ),
    (
        CONSUMED,
        "Messages that were received; a pack counts as one message",
    ),
    (SETTLED, "Received messages, by how they were settled"),
    (TRANSACTIONS, "Storage transactions, by kind"),
];

/// The histograms, in seconds.
const HISTOGRAMS: [(&str, &str); 2] = [
    (PROCESS, "Time that handlers ran for"),
    (
        LAG,
        "Time from the put to the first receive, by the storage's clock",
    ),
];

const GAUGES: [(&str, &str); 4] = [
    (
        IN_FLIGHT,
        "Messages that listeners have received and not settled",
    ),
    (TASKS, "Running dequeue tasks of listeners"),
    (
        DEPTH,
        "Approximate number of messages on the queue when it was last read",
    ),
    (
        POISON_DEPTH,
        "Approximate number of messages on the queue's poison queue when it was last read",
    ),
];

/// Tells the recorder, if there is one, what the metrics mean, and their units.
pub(crate) fn describe() {
    for (name, meaning) in COUNTERS {
        describe_counter!(name, Unit::Count, meaning);
    }
    for (name, meaning) in HISTOGRAMS {
        describe_histogram!(name, Unit::Seconds, meaning);
    }
    for (name, meaning) in GAUGES {
        describe_gauge!(name, Unit::Count, meaning);
    }
}

/// The metrics of one queue.
#[derive(Debug, Default)]
pub(crate) struct Measures {
    /// The queue's name.
    label: Box<str>,
    sent: OnceLock<Counter>,
    received: OnceLock<Counter>,
    kinds: Mutex<BTreeMap<&'static str, Arc<KindMeasures>>>,
    lag: OnceLock<Histogram>,
    in_flight: OnceLock<Gauge>,
    tasks: OnceLock<Gauge>,
    depth: OnceLock<Gauge>,
    poison_depth: OnceLock<Gauge>,
    /// Whether a listener samples the depths.
    sampled: AtomicBool,
}

/// The metrics of the messages of one kind on a queue.
#[derive(Debug)]
pub(crate) struct KindMeasures {
    /// The queue's name.
    label: Box<str>,
    kind: &'static str,
    settled: [OnceLock<Counter>; OUTCOMES],
    process: OnceLock<Histogram>,
}

impl KindMeasures {
    /// Counts a message that was settled, or was not.
    pub(crate) fn settled(&self, outcome: Outcome) {
        let counter = || {
            let (queue, outcome) = (self.label.to_string(), outcome.as_str());
            counter!(SETTLED, QUEUE => queue, KIND => self.kind, "outcome" => outcome)
        };
        let counters = &self.settled[outcome as usize];
        counters.get_or_init(counter).increment(1);
    }

    /// Records how long a handler ran for.
    pub(crate) fn processed(&self, took: Duration) {
        let histogram = || histogram!(PROCESS, QUEUE => self.label.to_string(), KIND => self.kind);
        self.process.get_or_init(histogram).record(took);
    }
}

impl Measures {
    pub(crate) fn new(label: &str) -> Self {
        Self {
            label: label.into(),
            ..Self::default()
        }
    }

    /// Counts messages that were put.
    pub(crate) fn sent(&self, messages: usize) {
        let counter = || counter!(SENT, QUEUE => self.label());
        self.sent.get_or_init(counter).increment(as_u64(messages));
    }

    /// Counts messages that were received.
    pub(crate) fn received(&self, messages: usize) {
        let counter = || counter!(CONSUMED, QUEUE => self.label());
        self.received
            .get_or_init(counter)
            .increment(as_u64(messages));
    }

    /// Returns the metrics of the messages of this kind.
    pub(crate) fn of_kind(&self, kind: &'static str) -> Arc<KindMeasures> {
        let new = || {
            Arc::new(KindMeasures {
                label: self.label.clone(),
                kind,
                settled: Default::default(),
                process: OnceLock::new(),
            })
        };
        Arc::clone(self.kinds.hold().entry(kind).or_insert_with(new))
    }

    /// Records how long a message waited for its first receive.
    pub(crate) fn lag(&self, lag: Duration) {
        let histogram = || histogram!(LAG, QUEUE => self.label());
        self.lag.get_or_init(histogram).record(lag);
    }

    /// Adds to the messages in flight, or takes from them.
    pub(crate) fn in_flight(&self, more: f64) {
        let gauge = || gauge!(IN_FLIGHT, QUEUE => self.label());
        self.in_flight.get_or_init(gauge).increment(more);
    }

    /// Adds to the running dequeue tasks, or takes from them.
    pub(crate) fn tasks(&self, more: f64) {
        let gauge = || gauge!(TASKS, QUEUE => self.label());
        self.tasks.get_or_init(gauge).increment(more);
    }

    /// Records the approximate number of messages on the queue, `None` if not known.
    pub(crate) fn depth(&self, messages: Option<usize>) {
        let gauge = || gauge!(DEPTH, QUEUE => self.label());
        self.depth.get_or_init(gauge).set(or_nan(messages));
    }

    /// Records the approximate number of messages on the poison queue, `None` if not known.
    pub(crate) fn poison_depth(&self, messages: Option<usize>) {
        let gauge = || gauge!(POISON_DEPTH, QUEUE => self.label());
        self.poison_depth.get_or_init(gauge).set(or_nan(messages));
    }

    /// Returns whether the application has installed a recorder. Call `is_recorded` once the dequeue tasks are counted.
    pub(crate) fn is_recorded(&self) -> bool {
        let recorded = Cell::new(false);
        // Only a gauge that is recorded evaluates its value.
        let gauge = self.tasks.get();
        gauge.inspect(|gauge| gauge.increment(Probe(&recorded)));
        recorded.get()
    }

    /// Claims the sampling of the depths, unless another listener of the service samples them.
    pub(crate) fn claim_sampling(&self) -> Option<Sampling<'_>> {
        // Several queues share the label `_other`.
        let is_queue = !self.label.starts_with('_');
        let claimed = is_queue && !self.sampled.swap(true, Ordering::AcqRel);
        claimed.then(|| Sampling(self))
    }

    /// Returns whether a listener of the service samples the depths.
    pub(crate) fn is_sampled(&self) -> bool {
        self.sampled.load(Ordering::Acquire)
    }

    /// Returns the counter of one kind of storage transactions, which the caller keeps.
    pub(crate) fn transactions(&self, kind: &'static str) -> Counter {
        counter!(TRANSACTIONS, QUEUE => self.label(), "kind" => kind)
    }

    fn label(&self) -> String {
        self.label.to_string()
    }
}

/// The sampling of the depths of one queue. Once a `Sampling` is dropped, the depths are not known until another
/// samples them.
#[derive(Debug)]
pub(crate) struct Sampling<'a>(&'a Measures);

impl Drop for Sampling<'_> {
    fn drop(&mut self) {
        self.0.depth(None);
        self.0.poison_depth(None);
        self.0.sampled.store(false, Ordering::Release);
    }
}

/// A number that adds nothing, and tells that a recorder wanted to know it.
struct Probe<'a>(&'a Cell<bool>);

impl IntoF64 for Probe<'_> {
    fn into_f64(self) -> f64 {
        self.0.set(true);
        0.0
    }
}

fn or_nan(messages: Option<usize>) -> f64 {
    messages.map_or(f64::NAN, |messages| messages as f64)
}

/// How a received message was settled, as metrics and spans say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Completed,
    Duplicate,
    Retried,
    Released,
    Postponed,
    Poisoned,
    Unsettled,
}

/// The number of outcomes.
const OUTCOMES: usize = 7;

impl Outcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Duplicate => "duplicate",
            Self::Retried => "retried",
            Self::Released => "released",
            Self::Postponed => "postponed",
            Self::Poisoned => "poisoned",
            Self::Unsettled => "unsettled",
        }
    }

    /// Returns whether the attempt failed, or its outcome could not be stored.
    pub(super) fn is_error(self) -> bool {
        matches!(self, Self::Retried | Self::Poisoned | Self::Unsettled)
    }
}

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{Error, Failure, Timestamp};

use crate::kernel::panic::CaughtPanic;

/// Why, and since when, a listener cannot receive. In [`ListenerInfo`](crate::listener::ListenerInfo) and
/// [`Health`](crate::listener::Health).
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ReceiveFailure {
    /// When the first of the failed receives in a row ended, by this machine's clock.
    pub since: Timestamp,
    /// How long ago that was. Not affected by changes of the clock.
    #[serde(
        serialize_with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required::serialize"
    )]
    pub lasted: Duration,
    /// The error of the last receive.
    pub error: ReceiveError,
}

/// Why a receive of a listener failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The storage failed, or the queue does not exist.
    #[error(transparent)]
    Storage(Error),
    /// No thread could be started for a blocking handler.
    #[error("failed to start a thread for a handler: {0}")]
    NoThread(Arc<std::io::Error>),
    /// A [layer or service](super::super::ListenerEventKind::NotReady) failed to become ready.
    #[error("a layer or service failed to become ready: {0}")]
    NotReady(Failure),
    /// The dequeue task panicked, for example in a custom backend.
    #[error("failed to receive messages: the dequeue task panicked: {0}")]
    Panicked(CaughtPanic),
}

queue_core::debug_as_text!(ReceiveError);

/// As its text and its causes.
impl serde::Serialize for ReceiveError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// How the last receives of a listener ended, and what they found.
#[derive(Debug, Default)]
pub(super) struct Receiving(Mutex<LastReceives>);

#[derive(Debug, Default)]
struct LastReceives {
    last_success: Option<Timestamp>,
    failing: Option<Failing>,
    found: Found,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Messages, or nothing yet.
    #[default]
    Messages,
    NoMessage,
    NoQueue,
}

#[derive(Debug)]
struct Failing {
    since: Timestamp,
    /// On the monotonic clock.
    began: Duration,
    error: ReceiveError,
}

impl Receiving {
    /// Records that the storage answered with so many messages. Returns whether they are the first after a receive that
    /// found none or no queue.
    pub(super) fn succeeded(&self, clock: &dyn Clock, messages: usize) -> bool {
        let found = if messages > 0 {
            Found::Messages
        } else {
            Found::NoMessage
        };
        let last_success = Some(clock.now());
        let mut last = self.0.hold();
        let detected = found == Found::Messages && last.found != found;
        *last = LastReceives {
            last_success,
            failing: None,
            found,
        };
        detected
    }

    /// Records that the queue does not exist. Returns whether that is news.
    pub(super) fn missing(&self, clock: &dyn Clock, error: ReceiveError) -> bool {
        self.failed(clock, error);
        let mut last = self.0.hold();
        let is_news = last.found != Found::NoQueue;
        last.found = Found::NoQueue;
        is_news
    }

    pub(super) fn failed(&self, clock: &dyn Clock, error: ReceiveError) {
        let mut state = self.0.hold();
        let (since, began) = match &state.failing {
            Some(failing) => (failing.since, failing.began),
            None => (clock.now(), clock.monotonic()),
        };
        state.failing = Some(Failing {
            since,
            began,
            error,
        });
    }

    pub(super) fn last_success(&self) -> Option<Timestamp> {
        self.0.hold().last_success
    }

    pub(super) fn failure(&self, clock: &dyn Clock) -> Option<ReceiveFailure> {
        let state = self.0.hold();
        state.failing.as_ref().map(|failing| ReceiveFailure {
            since: failing.since,
            lasted: clock.monotonic().saturating_sub(failing.began),
            error: failing.error.clone(),
        })
    }
}

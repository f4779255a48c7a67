//! The listener's phase: one value, which only moves forward, except for pausing and resuming.
//!
//! [`Phase`] owns the phase, and the count of what has to end before the listener has stopped. Who decides on the
//! phase:
//!
//! | who | decides |
//! |---|---|
//! | the [handle](super::ListenerHandle), and `shutdown` | to pause, resume, stop and abort |
//! | a dequeue task that finds the queue empty, or paused for everybody | to stop, if the listener runs until its queue is empty |
//! | whoever pauses the queue for everybody | no phase: `intake/pauses` has the dequeue tasks wait in any phase |
//! | a task that its runtime drops | to abort |
//! | the watchdog | that all messages are settled, so that the listener has stopped |

use std::process::{ExitCode, Termination};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::{TaskTrackerToken, TrackedFuture};

use super::info::ListenerInfo;

/// The phase of a listener.
///
/// ```text
///             pause                     shutdown
///            ┌──────► Paused ───────────────────────┐
///  start     │          │                           ▼
/// ───────► Running ◄────┘                        Stopping ──── all settled ────► Stopped
///            │        resume                        │                              ▲
///            └──────────────────────────────────────┤ grace over,                  │
///                                                   │ guard dropped,               │
///                                                   ▼ or runtime gone              │
///                                                Aborting ──── all settled ────────┘
/// ```
///
/// Running and Paused also change to Aborting: when a [guard](crate::service::StopOnDrop) is dropped, or the application's runtime
/// has shut down.
///
/// ```
/// use queue_runtime::listener::ListenerPhase;
/// use queue_runtime::{Message, Received, testing};
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
/// # let listener = service.listener(ship).start()?;
/// listener.pause();
/// assert_eq!(listener.phase(), ListenerPhase::Paused);
/// // Later phases are greater.
/// assert!(listener.phase() < ListenerPhase::Stopping);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ListenerPhase {
    /// Receives messages while fewer than `max_in_flight` are in flight.
    #[default]
    Running,
    /// The listener receives no messages; handlers continue.
    Paused,
    /// The listener receives no messages and waits for handlers to finish. Messages of a receive in progress are handed
    /// back.
    Stopping,
    /// Cancels the handlers and hands their messages back.
    Aborting,
    /// All messages are settled.
    Stopped,
}

/// The phase, shared by the parts of a listener.
#[derive(Debug)]
pub(super) struct Phase {
    current: watch::Sender<ListenerPhase>,
    aborted: AtomicBool,
    /// Tracks dequeue tasks and unsettled messages: the listener has stopped once there are none.
    tracker: TaskTracker,
    /// The end of a listener that runs until its queue is empty.
    drain: Option<OnceLock<DrainEnd>>,
}

impl Phase {
    /// `drains` is whether the listener runs until its queue is empty.
    pub(super) fn running(drains: bool) -> Self {
        Self {
            current: watch::Sender::new(ListenerPhase::Running),
            aborted: AtomicBool::new(false),
            tracker: TaskTracker::new(),
            drain: drains.then(OnceLock::new),
        }
    }

    /// Returns a future that the listener does not stop before.
    pub(super) fn track<F: Future>(&self, task: F) -> TrackedFuture<F> {
        self.tracker.track_future(task)
    }

    /// Returns a token that the listener does not stop before it is dropped.
    pub(super) fn token(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// Waits until the listener is stopping, and no task or unsettled message is left.
    pub(super) async fn all_settled(&self) {
        self.tracker.wait().await;
    }

    /// Returns whether the listener runs until its queue is empty.
    pub(super) fn drains(&self) -> bool {
        self.drain.is_some()
    }

    /// Stops the listener if it runs until its queue is empty.
    pub(super) fn drained(&self, end: DrainEnd) {
        if let Some(drain) = &self.drain {
            // An error says that another task was first, whose reason is the same, or as good.
            let _ = drain.set(end);
            self.stop();
        }
    }

    /// Returns why a listener that runs until its queue is empty has ended, if it has for a reason of its own.
    pub(super) fn drain_end(&self) -> Option<DrainEnd> {
        self.drain.as_ref().and_then(OnceLock::get).copied()
    }

    pub(super) fn current(&self) -> ListenerPhase {
        *self.current.borrow()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.current() >= ListenerPhase::Stopping
    }

    pub(super) fn pause(&self) {
        self.change(
            |phase| phase == ListenerPhase::Running,
            ListenerPhase::Paused,
        );
    }

    pub(super) fn resume(&self) {
        self.change(
            |phase| phase == ListenerPhase::Paused,
            ListenerPhase::Running,
        );
    }

    /// Stops receiving. Messages in flight are still handled.
    pub(super) fn stop(&self) {
        self.forward(ListenerPhase::Stopping);
        self.tracker.close();
    }

    /// Stops receiving and hands back the messages in flight. Returns false if aborting had already begun.
    pub(super) fn abort(&self) -> bool {
        let began = self.current.send_if_modified(|phase| {
            let begins = *phase < ListenerPhase::Aborting;
            if begins {
                *phase = ListenerPhase::Aborting;
                // Stored before anybody sees a later phase.
                self.aborted.store(true, Ordering::Relaxed);
            }
            begins
        });
        self.tracker.close();
        began
    }

    /// Returns whether the phase was ever [`Aborting`](ListenerPhase::Aborting).
    pub(super) fn was_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    pub(super) fn stopped(&self) {
        self.forward(ListenerPhase::Stopped);
    }

    /// Waits until the phase is not [`Paused`](ListenerPhase::Paused), and returns it.
    pub(super) async fn not_paused(&self) -> ListenerPhase {
        self.wait_for(|phase| phase != ListenerPhase::Paused).await
    }

    /// Waits until the phase is `least` or a later one, and returns it.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn reached(&self, least: ListenerPhase) -> ListenerPhase {
        self.wait_for(|phase| phase >= least).await
    }

    async fn wait_for(&self, wanted: impl Fn(ListenerPhase) -> bool) -> ListenerPhase {
        let mut phases = self.current.subscribe();
        let phase = phases.wait_for(|phase| wanted(*phase)).await;
        *phase.expect("the sender is borrowed here, so it is not dropped")
    }

    fn forward(&self, next: ListenerPhase) -> bool {
        self.change(|phase| phase < next, next)
    }

    fn change(&self, allowed: impl Fn(ListenerPhase) -> bool, next: ListenerPhase) -> bool {
        self.current.send_if_modified(|phase| {
            let changes = allowed(*phase);
            if changes {
                *phase = next;
            }
            changes
        })
    }
}

/// The end of a listener that runs [until its queue is empty](crate::ListenerBuilder::until_empty), from
/// [`ListenerHandle::drained`](crate::ListenerHandle::drained). As the result of `main`, the report becomes the exit
/// status of the program.
///
/// ```
/// use queue_runtime::listener::DrainReport;
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<DrainReport, Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit_all((0..3).map(|number| Order { number })).await?;
///
/// let listener = service.listener(ship).until_empty().start()?;
/// let report = listener.drained().await;
/// assert_eq!((report.info.completed, report.info.poisoned), (3, 0));
/// Ok(report)
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
#[must_use = "the queue may not be empty"]
pub struct DrainReport {
    /// Why the listener ended.
    pub end: DrainEnd,
    /// The listener's final figures.
    pub info: ListenerInfo,
}

/// Why a listener that runs until its queue is empty has ended.
///
/// ```
/// use queue_runtime::listener::DrainEnd;
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await; // has no queues
/// let europe = service.queue_named("orders-europe")?;
/// let listener = europe.listener(ship).until_empty().start()?;
/// assert_eq!(listener.drained().await.end, DrainEnd::QueueMissing);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DrainEnd {
    /// The queue was empty: it had no messages, visible or not.
    Empty,
    /// The queue, which was [named](crate::QueueService::queue_named), does not exist.
    QueueMissing,
    /// The queue is [paused](crate::AnyQueue::pause) for everybody. Messages that were in flight are finished. The
    /// queue may be empty.
    QueuePaused,
    /// The listener was stopped, or the application's runtime has shut down.
    Stopped,
}

impl DrainReport {
    /// `end` is `None` if the listener was stopped before its queue was empty.
    pub(crate) fn new(end: Option<DrainEnd>, info: ListenerInfo) -> Self {
        Self {
            end: end.unwrap_or(DrainEnd::Stopped),
            info,
        }
    }

    /// Returns the exit status for this end.
    ///
    /// | status | meaning |
    /// |---|---|
    /// | 0 | The queue is empty, and this listener moved nothing to the poison queue. |
    /// | 1 | The queue may not be empty, is paused, or does not exist. |
    /// | 2 | The queue is empty, and this listener moved messages to the poison queue. |
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status())
    }

    fn status(&self) -> u8 {
        match (self.end, self.info.poisoned) {
            (DrainEnd::Empty, 0) => 0,
            (DrainEnd::Empty, _) => 2,
            (DrainEnd::QueueMissing | DrainEnd::QueuePaused | DrainEnd::Stopped, _) => 1,
        }
    }
}

impl From<DrainReport> for ExitCode {
    fn from(report: DrainReport) -> Self {
        report.exit_code()
    }
}

impl Termination for DrainReport {
    fn report(self) -> ExitCode {
        self.exit_code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTATION: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/states.md"));

    type Change = fn(&Phase);
    const CHANGES: [(&str, Change); 5] = [
        ("pause", Phase::pause),
        ("resume", Phase::resume),
        ("shutdown", Phase::stop),
        ("abort", |phase| _ = phase.abort()),
        ("all settled", Phase::stopped),
    ];

    #[test]
    fn the_transitions_in_the_documentation_are_complete_and_true() {
        use ListenerPhase::{Aborting, Paused, Running, Stopped, Stopping};
        let expected = CHANGES.map(|(event, change)| {
            let cells = [Running, Paused, Stopping, Aborting, Stopped].map(|from| {
                let phase = Phase::running(false);
                phase.current.send_replace(from);
                change(&phase);
                match phase.current() {
                    to if to == from => " |".to_owned(),
                    to => format!(" {to:?} |"),
                }
            });
            format!("| {event} |{}", cells.concat())
        });
        let header = "| event | Running | Paused | Stopping | Aborting | Stopped |";
        let rows = DOCUMENTATION.lines().skip_while(|line| *line != header);
        let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows, expected, "it should be\n{}", expected.join("\n"));
    }

    #[test]
    fn only_an_empty_queue_without_poison_is_success() {
        let report = |end, poisoned| {
            let info = ListenerInfo {
                poisoned,
                ..ListenerInfo::default()
            };
            DrainReport { end, info }.status()
        };
        assert_eq!(report(DrainEnd::Empty, 0), 0);
        assert_eq!(report(DrainEnd::Empty, 1), 2);
        for end in [
            DrainEnd::QueueMissing,
            DrainEnd::QueuePaused,
            DrainEnd::Stopped,
        ] {
            assert_eq!((report(end, 0), report(end, 1)), (1, 1));
        }
    }
}

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use super::core::Core;
use super::event::ListenerEvent;
use super::info::ListenerInfo;
use super::phase::ListenerPhase;

/// A handle on a running listener. Dropping it stops the listener at once, as
/// [`shutdown`](Self::shutdown) without grace does.
#[must_use = "dropping the handle stops the listener"]
pub struct ListenerHandle {
    core: Arc<Core>,
}

/// The result of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Whether every handler finished within the grace period.
    pub graceful: bool,
    /// The number of messages that were handed back without counting the attempt.
    pub released: u64,
    /// The number of handlers that still block their threads.
    pub stuck: usize,
    /// The listener's last figures.
    pub info: ListenerInfo,
}

/// How long handing back may take.
const HAND_BACK: Duration = Duration::from_secs(10);

impl ListenerHandle {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Returns the listener's figures.
    #[must_use]
    pub fn info(&self) -> ListenerInfo {
        self.core.counters.snapshot()
    }

    /// Returns the listener's phase.
    #[must_use]
    pub fn phase(&self) -> ListenerPhase {
        self.core.phase.current()
    }

    /// Subscribes to future events. A subscriber that falls more than 1,024 events behind is told how many
    /// it missed.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ListenerEvent> {
        self.core.events.subscribe()
    }

    /// Stops receiving. Handlers continue.
    ///
    /// A receive that is under way is not interrupted: its messages are handled.
    pub fn pause(&self) {
        self.core.phase.pause();
    }

    /// Resumes receiving after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.core.phase.resume();
    }

    /// Stops receiving and lets handlers finish for up to `grace`. Then cancels those that are left, and
    /// hands their messages back without counting the attempt.
    ///
    /// # Cancel safety
    /// Dropping the future stops the listener at once.
    pub async fn shutdown(self, grace: Duration) -> ShutdownReport {
        let core = &self.core;
        let released_before = self.info().released;
        core.stop();
        let clock = &core.context.clock;
        let graceful = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopped) => true,
            () = clock.sleep(grace) => false,
        };
        if !graceful {
            core.abort();
            tokio::select! {
                _ = core.phase.reached(ListenerPhase::Stopped) => {}
                () = clock.sleep(HAND_BACK) => tracing::error!(
                    queue = %core.consumer.queue,
                    "failed to hand back all messages in time; the rest become visible when their leases end"
                ),
            }
        }
        let info = self.info();
        ShutdownReport {
            graceful: graceful && info.stuck == 0,
            released: info.released - released_before,
            stuck: info.stuck,
            info,
        }
    }
}

impl Drop for ListenerHandle {
    fn drop(&mut self) {
        self.core.abort();
    }
}

impl fmt::Debug for ListenerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerHandle")
            .field("queue", &self.core.consumer.queue)
            .field("phase", &self.phase())
            .field("info", &self.info())
            .finish()
    }
}

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use super::event::ListenerEvent;
use super::executor::Core;
use super::state::ListenerInfo;

/// A listener that is running. Dropping it stops the listener at once, as
/// [`shutdown`](Self::shutdown) without grace does.
#[must_use = "dropping the handle stops the listener"]
pub struct ListenerHandle {
    pub(super) core: Arc<Core>,
    pub(super) pause: watch::Sender<bool>,
}

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Whether every handler finished within the grace.
    pub graceful: bool,
    /// How many messages were handed back, uncounted.
    pub released: u64,
    /// How many handlers still block their threads.
    pub stuck: usize,
    /// The listener's last figures.
    pub info: ListenerInfo,
}

/// How long what is left may take to be handed back.
const HAND_BACK: Duration = Duration::from_secs(10);

impl ListenerHandle {
    /// The listener's figures.
    #[must_use]
    pub fn info(&self) -> ListenerInfo {
        self.core.counters.snapshot()
    }

    /// What happens from now on. A subscriber that falls more than 1,024 events behind is told how many
    /// it missed.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ListenerEvent> {
        self.core.events.subscribe()
    }

    /// Stops receiving; what is in flight goes on.
    pub fn pause(&self) {
        self.pause.send_replace(true);
    }

    /// Receives again.
    pub fn resume(&self) {
        self.pause.send_replace(false);
    }

    /// Stops receiving, lets handlers finish for up to `grace`, then cuts them off and hands their
    /// messages back at once, uncounted.
    ///
    /// # Cancel safety
    /// Dropping the future stops the listener at once.
    pub async fn shutdown(self, grace: Duration) -> ShutdownReport {
        let core = &self.core;
        let released_before = self.info().released;
        core.stop.cancel();
        core.tracker.close();
        let clock = &core.shared().clock;
        let graceful = tokio::select! {
            biased;
            () = core.tracker.wait() => true,
            () = clock.sleep(grace) => false,
        };
        core.abort.cancel();
        if !graceful {
            tokio::select! {
                () = core.tracker.wait() => {}
                () = clock.sleep(HAND_BACK) => tracing::error!(
                    queue = %core.route.queue,
                    "messages were left to their leases: handing them back took too long"
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
        self.core.stop.cancel();
        self.core.abort.cancel();
        self.core.tracker.close();
        self.core.crew.close();
    }
}

impl fmt::Debug for ListenerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerHandle")
            .field("queue", &self.core.route.queue)
            .field("info", &self.info())
            .finish()
    }
}

//! The end of a listener: within a grace period, alone or with all others of its service.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use queue_core::QueueName;

use crate::kernel::listener::core::Core;
use crate::kernel::listener::info::ListenerInfo;
use crate::kernel::listener::phase::ListenerPhase;
use crate::kernel::panic::log_caught;

/// The result of shutting down a listener.
///
/// ```
/// use std::time::Duration;
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
/// let service = testing::service().await;
/// let listener = service.listener(ship).start()?;
///
/// let report = listener.shutdown(Duration::from_secs(30)).await;
/// if !report.graceful {
///     eprintln!("{}: {} messages handed back", report.queue, report.released);
/// }
/// # assert!(report.graceful);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The queue.
    pub queue: QueueName,
    /// Whether all handlers finished within the grace period, and no task of the listener was dropped before,
    /// with the application's runtime.
    pub graceful: bool,
    /// The number of messages that were handed back without counting the attempt.
    pub released: u64,
    /// The number of handlers that still block their threads.
    pub stuck: usize,
    /// The listener's final figures.
    pub info: ListenerInfo,
}

/// How long a shutdown waits for messages to be handed back.
const HAND_BACK: Duration = Duration::from_secs(10);

/// A listener that receives nothing any more.
pub(crate) struct Stopping {
    core: Arc<Core>,
    released_before: u64,
}

impl Stopping {
    /// Stops receiving.
    pub(crate) fn begin(core: &Arc<Core>) -> Self {
        let released_before = core.info().released;
        core.phase.stop();
        Self {
            core: Arc::clone(core),
            released_before,
        }
    }

    /// Waits for the running handlers until `grace_over`, and then hands back the messages of the others.
    pub(crate) async fn finish(self, grace_over: impl Future<Output = ()>) -> ShutdownReport {
        let core = &self.core;
        let in_time = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopped) => true,
            () = grace_over => false,
        };
        if !in_time {
            core.phase.abort();
            tokio::select! {
                _ = core.phase.reached(ListenerPhase::Stopped) => {}
                () = core.context.clock.sleep(HAND_BACK) => log_caught(|| tracing::error!(
                    queue = %core.consumer.queue,
                    "failed to hand back all messages within 10 seconds; the rest become visible when their leases end"
                )),
            }
        }
        let info = core.info();
        ShutdownReport {
            queue: core.consumer.queue.clone(),
            graceful: !core.phase.was_aborted() && info.stuck == 0,
            released: info.released - self.released_before,
            stuck: info.stuck,
            info,
        }
    }
}

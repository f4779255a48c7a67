use std::fmt;

use queue_core::internal::error_chain;
use queue_core::{Error, QueueName, Timestamp};
use serde::{Serialize as _, Serializer};

use super::core::Core;
use super::intake::ReceiveFailure;
use super::phase::ListenerPhase;

/// Whether the listeners of a service can receive, from [`QueueService::health`](crate::QueueService::health). Its text
/// is a line for each listener that cannot, one if payloads cannot be read, or `healthy`.
///
/// ```
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
/// let health = service.health();
/// let status = if health.is_healthy() { 200 } else { 503 };
/// println!("{status}: {health}");
/// # assert_eq!((status, health.listeners.len()), (200, 1));
/// # drop(listener);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct Health {
    /// The listeners that have not stopped, in the order in which they were started. Empty once the service is
    /// [shut down](crate::QueueService::shutdown). A listener that stopped because its runtime was dropped is not among
    /// them either: a program whose service outlives a runtime checks that those it expects are there.
    pub listeners: Vec<ListenerHealth>,
    /// Why the payloads that are not in their messages cannot be read: messages with such payloads wait. `None` if the last
    /// one was read, and before the first.
    #[serde(serialize_with = "as_text")]
    pub payloads: Option<Error>,
}

fn as_text<S: Serializer>(error: &Option<Error>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = error.as_ref().map(|error| error_chain(error));
    text.serialize(serializer)
}

/// Whether one listener can receive.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ListenerHealth {
    /// The queue.
    pub queue: QueueName,
    /// The listener's phase.
    pub phase: ListenerPhase,
    /// When the last successful receive ended, with or without messages, by this machine's clock. `None` before the
    /// first. It may be long ago although nothing fails: a listener does not receive while it is paused, while as many
    /// messages are in flight as may be, or while it waits for a [notifier](crate::notify).
    pub last_success: Option<Timestamp>,
    /// Why receives fail, and since when. `None` if the last one succeeded, and before the first has ended.
    pub failure: Option<ReceiveFailure>,
}

impl Health {
    /// Returns whether no listener's receives fail, and no reads of payloads. One failed receive makes the service unhealthy until the next
    /// successful one; to ignore short failures, compare [`ReceiveFailure::lasted`].
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.failures().next().is_none() && self.payloads.is_none()
    }

    fn failures(&self) -> impl Iterator<Item = (&QueueName, &ReceiveFailure)> {
        let listeners = self.listeners.iter();
        listeners.filter_map(|one| Some((&one.queue, one.failure.as_ref()?)))
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_healthy() {
            return f.write_str("healthy");
        }
        let receives = self.failures().map(|(queue, failure)| {
            let (lasted, error) = (failure.lasted.as_secs(), error_chain(&failure.error));
            format!("queue `{queue}` has failed for {lasted} s: {error}")
        });
        let payloads = self.payloads.iter().map(|error| {
            let error = error_chain(error);
            format!("messages wait for their payloads: {error}")
        });
        let lines: Vec<_> = receives.chain(payloads).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl ListenerHealth {
    pub(super) fn of(core: &Core) -> Self {
        let info = core.info();
        Self {
            queue: core.consumer.queue.clone(),
            phase: core.phase.current(),
            last_success: info.last_success,
            failure: info.failure,
        }
    }
}

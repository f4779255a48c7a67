use std::time::Duration;

use queue_core::Timestamp;

use super::intake::ReceiveFailure;
use super::latency::ObjectiveState;
use crate::extensions::flow::breaker::CircuitState;
use crate::extensions::meter::TransactionCounts;
use crate::kernel::settings::Paused;

/// A snapshot of a listener's figures. Counts of past events are since its start.
///
/// ```
/// # use queue_runtime::{Message, Received, testing};
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
/// # service.submit_all((0..3).map(|number| Order { number })).await?;
/// # tokio::time::sleep(std::time::Duration::from_secs(60)).await;
/// let info = listener.info();
/// println!("{} in flight, at most {} so far", info.in_flight, info.peak_in_flight);
/// println!("{} completed, {} moved to the poison queue", info.completed, info.poisoned);
/// # assert_eq!((info.in_flight, info.completed), (0, 3));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, serde::Serialize)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// Running dequeue tasks. Zero while none needs to poll, with a [range](super::ListenerBuilder::tasks) from zero.
    pub tasks: usize,
    /// The maximum number of dequeue tasks running so far.
    pub peak_tasks: usize,
    /// Dequeue tasks started so far.
    pub started_tasks: u64,
    /// The number of messages that may be in flight now: fewer than
    /// [`max_in_flight`](super::ListenerBuilder::max_in_flight) while the storage throttles.
    pub in_flight_limit: usize,
    /// The mark that [pauses](crate::AnyQueue::pause) the queue for everybody, if it had one when its metadata was last read:
    /// the listener receives nothing.
    pub queue_paused: Option<Paused>,
    /// The state of the [circuit breaker](super::ListenerBuilder::circuit_breaker), if there is one.
    pub circuit: Option<CircuitState>,
    /// How the [objective](super::ListenerBuilder::objective) is kept, if there is one.
    pub objective: Option<ObjectiveState>,
    /// Messages that have been received and not settled yet.
    pub in_flight: usize,
    /// Those of them that wait until they can be handled: for a place among those of their type, for its rate, or for room
    /// for their data.
    pub parked: usize,
    /// The maximum number of messages in flight so far.
    pub peak_in_flight: usize,
    /// Messages handled and completed.
    pub completed: u64,
    /// Messages that were completed without running the handler, because their work was done before.
    pub duplicates: u64,
    /// Failed attempts whose message will be retried.
    pub retried: u64,
    /// Messages moved to the poison queue.
    pub poisoned: u64,
    /// Messages handed back without counting the attempt: at shutdown, or because they are from a newer
    /// program.
    pub released: u64,
    /// Messages that were not settled, or may not have been, for example because the lease was lost.
    pub unsettled: u64,
    /// Cancelled handlers that still block their threads.
    pub stuck: usize,
    /// Receives that found the queue empty.
    pub empty_receives: u64,
    /// When the last successful receive ended, with or without messages, by this machine's clock. `None` before the
    /// first.
    pub last_success: Option<Timestamp>,
    /// Why receives fail, and since when. `None` if the last one succeeded, and before the first has ended.
    /// [`QueueService::health`](crate::QueueService::health) sums this up for all listeners.
    pub failure: Option<ReceiveFailure>,
    /// The visibility timeout of the last receive. `None` before the first.
    #[serde(
        serialize_with = "jiff::fmt::serde::unsigned_duration::friendly::compact::optional::serialize"
    )]
    pub visibility_timeout: Option<Duration>,
    /// The approximate number of messages on the queue, with those that are invisible, when it was last measured:
    /// by [`ListenerHandle::depth`](super::ListenerHandle::depth), or by the listener itself.
    /// `None` before that.
    pub depth: Option<u64>,
    /// The storage transactions on the listener's queue since its start: those of the listener, and of everything else
    /// that uses the queue through the same service.
    pub transactions: TransactionCounts,
}

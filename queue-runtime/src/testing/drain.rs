use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use queue_core::{ErrorKind, QueueName};
use tokio::time::{Instant, sleep};

use crate::kernel::listener::{ListenerHandle, ListenerInfo, ListenerPhase};

/// Waits until the queues of these listeners are empty. Configure the [`Drain`], then `.await` it.
///
/// All queues must be empty at once: a handler may submit to the queue of another listener. Messages count while they
/// are invisible too, because they were delayed, put back or are being handled. Messages of a poison queue count only
/// if a listener of the poison queue is given.
///
/// Use `drain` with paused time, in which delays and retries take no real time. A drain stops no listeners.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Disposition, Message, Received, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Order {
///     number: u32,
/// }
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Invoice {
///     order: u32,
/// }
///
/// async fn bill(order: Received<Order>) -> Disposition {
///     Disposition::complete().then(&Invoice { order: order.number })
/// }
///
/// async fn send(_: Received<Invoice>) {}
///
/// // In a test: #[tokio::test(start_paused = true)]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let orders = service.listener(bill).start()?;
/// let invoices = service.listener(send).start()?;
/// service.submit_all((1..=3).map(|number| Order { number })).delay(Duration::from_secs(60)).await?;
///
/// let drained = testing::drain([&orders, &invoices]).await?;
/// assert_eq!(drained.completed(), 6);
/// assert_eq!(drained.listeners[0].poisoned, 0);
/// assert!(drained.elapsed >= Duration::from_secs(60));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NotDrained`] if a queue is not empty in time. The error lists the queues that are not empty, or the error with
/// which the storage failed to count them.
///
/// # Cancel safety
/// Cancel safe.
pub fn drain<'l>(listeners: impl IntoIterator<Item = &'l ListenerHandle>) -> Drain<'l> {
    Drain {
        listeners: listeners.into_iter().collect(),
        limit: Duration::from_secs(3600),
    }
}

/// A wait until queues are empty, from [`drain`].
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
/// # async fn ship(_: Received<Order>) {}
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let orders = service.listener(ship).start()?;
/// service.submit(Order { number: 7 }).delay(Duration::from_secs(2 * 3600)).await?;
///
/// let drain = testing::drain([&orders]).timeout(Duration::from_secs(3 * 3600));
/// assert_eq!(drain.await?.completed(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is waited for until this is awaited"]
pub struct Drain<'l> {
    listeners: Vec<&'l ListenerHandle>,
    limit: Duration,
}

/// The end of a [`drain`]: the queues were empty.
///
/// ```
/// use queue_runtime::{Disposition, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// async fn ship(order: Received<Order>) -> Disposition {
///     match order.number {
///         13 => Disposition::reject("out of stock"),
///         _ => Disposition::complete(),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// let orders = service.listener(ship).start()?;
/// service.submit_all((12..=14).map(|number| Order { number })).await?;
///
/// let drained = testing::drain([&orders]).await?;
/// assert_eq!((drained.completed(), drained.poisoned()), (2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Drained {
    /// The duration of the drain, on Tokio's clock.
    pub elapsed: Duration,
    /// The figures of each listener since its start, in the order in which the listeners were given.
    pub listeners: Vec<ListenerInfo>,
}

/// An error of a [`drain`]: some queues were not empty in time.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Failure, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// async fn ship(_: Received<Order>) -> Result<(), Failure> {
///     Err(Failure::postpone(Duration::from_secs(60), "the carrier is on holiday"))
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let orders = service.listener(ship).start()?;
/// service.submit(Order { number: 7 }).await?;
///
/// let error = testing::drain([&orders]).timeout(Duration::from_secs(600)).await.unwrap_err();
/// assert_eq!(error.to_string(), "the queues are not empty after 600s: queue `order` has 1 message, 0 of them in flight");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error("the queues are not empty after {elapsed:?}: {}", joined(left))]
#[non_exhaustive]
pub struct NotDrained {
    /// How long the drain waited, on Tokio's clock.
    pub elapsed: Duration,
    /// The queues that are not known to be empty.
    pub left: Vec<NotEmpty>,
}

/// A queue that was not empty in time.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::listener::ListenerPhase;
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # async fn ship(_: Received<Order>) {}
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// service.submit(Order { number: 7 }).await?;
/// let orders = service.listener(ship).start()?;
/// orders.pause();
///
/// let drain = testing::drain([&orders]).timeout(Duration::from_secs(60));
/// let error = drain.await.expect_err("its listener is paused");
/// let left = &error.left[0];
/// assert_eq!((left.queue.as_str(), left.phase), ("order", ListenerPhase::Paused));
/// assert!(matches!(left.depth, Ok(1)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NotEmpty {
    /// The queue.
    pub queue: QueueName,
    /// The number of messages on the queue, or the error of counting them.
    pub depth: Result<usize, queue_core::Error>,
    /// The number of messages that the queue's listener has received and not settled.
    pub in_flight: usize,
    /// The phase of the queue's listener. A paused or stopped listener empties no queue.
    pub phase: ListenerPhase,
}

impl Drain<'_> {
    /// Sets how long to wait, on Tokio's clock. The default is an hour.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    async fn run(self) -> Result<Drained, NotDrained> {
        let start = Instant::now();
        // The queues are empty twice, with nothing settled in between: a message may have moved to a queue that was
        // counted before.
        let mut empty_at = None;
        loop {
            let settled = self.settled();
            let left = self.left().await;
            let (elapsed, is_empty) = (start.elapsed(), left.is_empty());
            if is_empty && empty_at == Some(settled) {
                let listeners = self.infos().collect();
                return Ok(Drained { elapsed, listeners });
            }
            if elapsed >= self.limit && !is_empty {
                return Err(NotDrained { elapsed, left });
            }
            empty_at = is_empty.then_some(settled);
            sleep(pause(elapsed, self.limit)).await;
        }
    }

    /// Returns the queues that are not known to be empty.
    async fn left(&self) -> Vec<NotEmpty> {
        let mut left = Vec::new();
        for listener in &self.listeners {
            let depth = match listener.depth().await {
                Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(0),
                depth => depth,
            };
            let in_flight = listener.info().in_flight;
            if !matches!(depth, Ok(0)) || in_flight > 0 {
                left.push(NotEmpty {
                    queue: listener.queue().clone(),
                    depth,
                    in_flight,
                    phase: listener.phase(),
                });
            }
        }
        left
    }

    /// Returns how many messages the listeners have settled, or given up.
    fn settled(&self) -> usize {
        let settled = |info: ListenerInfo| {
            let moved = info.completed + info.duplicates + info.poisoned;
            moved + info.retried + info.released + info.unsettled
        };
        self.infos().map(settled).sum()
    }

    fn infos(&self) -> impl Iterator<Item = ListenerInfo> {
        self.listeners.iter().map(|listener| listener.info())
    }
}

/// Returns how long to wait before the queues are counted again: a hundredth of the time so far, so that neither a
/// short wait becomes long, nor a long one expensive. The last count is at the limit.
fn pause(elapsed: Duration, limit: Duration) -> Duration {
    let shortest = Duration::from_millis(10);
    let left = limit.saturating_sub(elapsed).max(shortest);
    (elapsed / 100)
        .clamp(shortest, Duration::from_secs(60))
        .min(left)
}

impl<'l> IntoFuture for Drain<'l> {
    type Output = Result<Drained, NotDrained>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'l>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Drained {
    /// Returns how many messages the listeners have completed since their start.
    #[must_use]
    pub fn completed(&self) -> usize {
        self.listeners.iter().map(|info| info.completed).sum()
    }

    /// Returns how many messages the listeners have moved to poison queues since their start.
    #[must_use]
    pub fn poisoned(&self) -> usize {
        self.listeners.iter().map(|info| info.poisoned).sum()
    }
}

fn joined(left: &[NotEmpty]) -> String {
    let left: Vec<_> = left.iter().map(NotEmpty::to_string).collect();
    left.join("; ")
}

impl fmt::Display for NotEmpty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            queue, in_flight, ..
        } = self;
        match &self.depth {
            Ok(1) => write!(f, "queue `{queue}` has 1 message")?,
            Ok(depth) => write!(f, "queue `{queue}` has {depth} messages")?,
            Err(error) => write!(f, "queue `{queue}` was not counted ({error})")?,
        }
        write!(f, ", {in_flight} of them in flight")?;
        match self.phase {
            ListenerPhase::Running => Ok(()),
            phase => write!(f, ", and its listener is {phase:?}"),
        }
    }
}

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::{InvalidName, QueueName};
use tokio::sync::Semaphore;

use crate::kernel::listener::capacity::shared_room::SharedRoom;
use crate::kernel::listener::{
    ListenerBuilder, ListenerHandle, ShutdownReport, StartError, StartErrorKind,
};
use crate::kernel::settings::InvalidSetting;
use crate::kernel::stop_on_drop::StopOnDrop;

/// A builder of a group of listeners for messages of one type on several queues, such as urgent and bulk work. The
/// lanes share a maximum of messages in flight, by weight.
///
/// Capacity goes to the lanes whose queues have messages. While several lanes have messages, each gets a share of the
/// free capacity in proportion to its weight, so that no backlog keeps another lane waiting. The first message on an
/// idle lane is received as soon as the lane has seen it and a message in flight ends. If messages of a lane come one
/// after the other, each waits until the other lanes have received as many messages as their weights allow for one of
/// that lane. A handler that runs is not interrupted; to keep capacity free for urgent messages, limit
/// [`max_in_flight`](ListenerBuilder::max_in_flight) of the bulk lane's listener to less than the shared maximum.
///
/// Lanes that are [idempotent](ListenerBuilder::idempotent) with the same store share their keys: of messages with the
/// same key in two lanes, one is handled. The scope of idempotency keys is the lane whose queue's name sorts first, so
/// a group recognises the messages that another instance of the group has handled as long as that lane stays the same.
/// For submissions that are unique in all lanes, see [`Submit::unique_scope`](crate::send::Submit::unique_scope).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, QueueName, Received, testing};
/// use queue_runtime::listener::Lanes;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # #[message(queue = "orders")]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// const BULK: QueueName = QueueName::from_static("orders-bulk");
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let orders = Lanes::new(32)
///     .lane(9, service.listener(ship))
///     .lane(1, service.queue_named(BULK)?.listener(ship).create_queue())
///     .start()?;
///
/// service.submit(Order { number: 1 }).await?;
/// service.submit_all((2..100).map(|number| Order { number })).to(BULK)?.await?;
/// # testing::drain(orders.listeners()).await?;
/// # assert_eq!(orders.listeners()[1].info().completed, 98);
/// orders.shutdown(Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "lanes do nothing until `start`"]
pub struct Lanes<M> {
    max_in_flight: usize,
    lanes: Vec<(usize, ListenerBuilder<M>)>,
}

/// The greatest weight of a lane.
const MAX_WEIGHT: usize = 1_000;

impl<M> Lanes<M> {
    /// Creates a group that has up to `max_in_flight` messages in flight, all lanes together.
    pub fn new(max_in_flight: usize) -> Self {
        Self {
            max_in_flight,
            lanes: Vec::new(),
        }
    }

    /// Adds a lane, with a weight from 1 to 1,000. While several lanes wait for capacity, each gets it in proportion to
    /// its weight; of equal lanes, the one that was added first begins.
    ///
    /// The listener of a lane keeps its own settings. The `max_in_flight` of a lane is a further maximum, for this lane
    /// alone.
    pub fn lane(mut self, weight: usize, listener: ListenerBuilder<M>) -> Self {
        self.lanes.push((weight, listener));
        self
    }

    /// Starts the listeners of all lanes on the current Tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] if `max_in_flight` is 0, a weight is not from 1 to 1,000, two lanes have the same queue, or for
    /// the reasons of [`ListenerBuilder::start`] for one of the lanes. After an error no lane is running: lanes that
    /// were already started are stopped, and what they have received is handed back.
    pub fn start(mut self) -> Result<LanesHandle, StartError> {
        self.check()
            .map_err(|kind| StartError { queue: None, kind })?;
        // The scope is the same in all processes, in whichever order they add the lanes.
        let queues = self.lanes.iter().map(|(_, listener)| &listener.queue);
        let first = queues.min().cloned();
        for (_, listener) in &mut self.lanes {
            let parts = listener.parts.iter_mut().map(|part| &mut part.options);
            for options in parts.chain([&mut listener.options]) {
                if let Some(idempotency) = &mut options.idempotency {
                    idempotency.scope.clone_from(&first);
                }
            }
        }
        let weights: Vec<_> = self.lanes.iter().map(|(weight, _)| *weight).collect();
        let lanes = SharedRoom::lanes(self.max_in_flight, &weights);
        let listeners = self.lanes.into_iter().zip(lanes);
        let start = |((_, listener), lane): ((_, ListenerBuilder<M>), _)| {
            let started = listener.start_in(Some(lane))?;
            Ok::<_, StartError>(started.stop_on_drop())
        };
        let started = listeners.map(start).collect::<Result<Vec<_>, _>>()?;
        Ok(LanesHandle {
            listeners: started.into_iter().map(StopOnDrop::disarm).collect(),
        })
    }

    fn check(&self) -> Result<(), StartErrorKind> {
        InvalidSetting::count(
            "number of messages in flight",
            self.max_in_flight,
            Semaphore::MAX_PERMITS,
        )?;
        InvalidSetting::count("number of lanes", self.lanes.len(), usize::MAX)?;
        for (at, (weight, listener)) in self.lanes.iter().enumerate() {
            InvalidSetting::count("weight of a lane", *weight, MAX_WEIGHT)?;
            let batch = listener
                .parts
                .iter()
                .filter_map(|part| part.handler.batch());
            let (least, most) = (batch.max().unwrap_or(1), Semaphore::MAX_PERMITS);
            let setting = "number of messages in flight in all lanes";
            InvalidSetting::within(setting, self.max_in_flight, least, most)?;
            let same = |(_, other): &(_, ListenerBuilder<M>)| {
                other.queue == listener.queue && Arc::ptr_eq(&other.context, &listener.context)
            };
            if self.lanes[..at].iter().any(same) {
                return Err(StartErrorKind::SameQueue(listener.queue.clone()));
            }
        }
        Ok(())
    }
}

impl<M> fmt::Debug for Lanes<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
            .field("max_in_flight", &self.max_in_flight)
            .field("lanes", &self.lanes)
            .finish()
    }
}

/// A handle to a group of listeners, from [`Lanes::start`]. Dropping the handle leaves the lanes running.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, Received, testing};
/// use queue_runtime::listener::Lanes;
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
/// # let service = testing::service().await;
/// # let urgent = service.listener(ship);
/// # let bulk = service.queue_named::<Order>("order-bulk")?.listener(ship).create_queue();
/// let lanes = Lanes::new(32).lane(9, urgent).lane(1, bulk).start()?;
/// for lane in lanes.listeners() {
///     println!("{}: {} in flight", lane.queue(), lane.info().in_flight);
/// }
/// let bulk = lanes.listener("order-bulk")?.expect("it is one of them");
/// bulk.pause(); // for the night
///
/// for report in lanes.shutdown(Duration::from_secs(30)).await {
///     println!("{}: {} handled", report.queue, report.info.completed);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LanesHandle {
    listeners: Vec<ListenerHandle>,
}

impl LanesHandle {
    /// Returns the listeners, in the order of their lanes.
    pub fn listeners(&self) -> &[ListenerHandle] {
        &self.listeners
    }

    /// Returns the listener of this queue, if one of the lanes is for the queue.
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn listener(
        &self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Option<&ListenerHandle>, InvalidName> {
        let queue = queue.try_into().map_err(Into::into)?;
        let mut listeners = self.listeners.iter();
        Ok(listeners.find(|listener| *listener.queue() == queue))
    }

    /// Stops all lanes side by side, as [`ListenerHandle::shutdown`] does, and returns their reports in the order of
    /// the lanes.
    ///
    /// # Cancel safety
    /// Dropping the future stops the listeners at once.
    pub fn shutdown(
        self,
        grace: Duration,
    ) -> impl Future<Output = Vec<ShutdownReport>> + Send + use<> {
        let listeners = self.listeners.into_iter();
        join_all(listeners.map(|listener| listener.shutdown(grace)))
    }

    /// Returns a guard that stops the listeners at once when it is dropped.
    pub fn stop_on_drop(self) -> StopOnDrop<Self> {
        StopOnDrop::new(self, |lanes| {
            lanes.listeners.iter().for_each(ListenerHandle::abort);
        })
    }
}

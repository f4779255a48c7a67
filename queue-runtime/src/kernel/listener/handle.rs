use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use queue_core::QueueName;
use tokio::sync::broadcast;

use super::capacity::check_tasks;
use super::core::Core;
use super::event::ListenerEvent;
use super::health::ListenerHealth;
use super::info::ListenerInfo;
use super::intake;
use super::observer::Observer;
use super::phase::{DrainReport, ListenerPhase, ShutdownReport, Stopping};
use crate::kernel::background::StopOnDrop;
use crate::kernel::policy::TaskRange;
use crate::kernel::settings::InvalidSetting;

/// A handle to a listener. Clones are handles to the same one.
///
/// As with a task of Tokio, dropping the handle leaves the listener running: until it is
/// [shut down](Self::shutdown), alone or with [its service](crate::QueueService::shutdown), or the runtime ends.
/// [`QueueService::listeners`](crate::QueueService::listeners) returns the handle again, and
/// [`stop_on_drop`](Self::stop_on_drop) makes it a guard.
///
/// Do not keep the handle in the handler's own state: the two would keep each other, and with them the connection to the
/// storage, after the listener has stopped. Ask [`QueueService::listeners`](crate::QueueService::listeners) instead.
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
/// let mut events = listener.events();
///
/// listener.pause(); // for maintenance
/// listener.resume();
///
/// service.submit(Order { number: 7 }).await?;
/// while !events.recv().await?.is_outcome() {}
/// assert_eq!(listener.info().completed, 1);
/// listener.shutdown(Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ListenerHandle {
    core: Arc<Core>,
}

impl ListenerHandle {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Returns the queue that the listener receives from.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.core.consumer.queue
    }

    /// Returns the recent mean number of messages that the storage has as one.
    pub(crate) fn messages_per_pack(&self) -> f64 {
        let Core {
            context, consumer, ..
        } = &*self.core;
        context.packs.items_per_message(&consumer.queue)
    }

    /// Returns whether the listener can receive.
    pub(super) fn health(&self) -> ListenerHealth {
        ListenerHealth::of(&self.core)
    }

    /// Returns the listener's current figures.
    #[must_use]
    pub fn info(&self) -> ListenerInfo {
        self.core.info()
    }

    /// Asks the storage for the approximate number of messages on the queue, with those that are invisible. The
    /// answer is also in [`info`](Self::info), until the next one. Each call costs a storage transaction. The
    /// listener itself asks only where it must: to choose the number of its dequeue tasks, to drain, and to
    /// stand by.
    ///
    /// # Errors
    /// The backend's error.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn depth(&self) -> queue_core::Result<u64> {
        self.core.measure_depth().await
    }

    /// Changes the number of dequeue tasks to a fixed number or a range, as
    /// [`ListenerBuilder::tasks`](super::ListenerBuilder::tasks) does. With a range, the scale policy chooses
    /// from now on.
    ///
    /// `max_in_flight` stays, and bounds the messages of all tasks together. Surplus tasks end before their next receive;
    /// handlers continue.
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
    /// let listener = service.listener(ship).tasks(2).start()?;
    /// listener.scale(4)?;
    /// assert_eq!(listener.info().tasks, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the number is not from 1 to 1,024, or the range is empty or exceeds 1,024.
    pub fn scale(&self, tasks: impl Into<TaskRange>) -> Result<(), InvalidSetting> {
        let range = check_tasks(tasks.into())?;
        if !self.core.phase.is_stopping() {
            intake::scale(&self.core, range);
        }
        Ok(())
    }

    /// Returns the listener's current phase.
    #[must_use]
    pub fn phase(&self) -> ListenerPhase {
        self.core.phase.current()
    }

    /// Subscribes to future events.
    ///
    /// A subscriber that falls more than 1,024 events behind loses the oldest ones and gets a
    /// [`Lagged`](broadcast::error::RecvError::Lagged) error with their number.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ListenerEvent> {
        self.core.events.subscribe()
    }

    /// Subscribes to the messages that the listener handles from now on. See [`Observer`].
    pub fn observe(&self) -> Observer {
        self.core.observers.subscribe()
    }

    /// Stops receiving. Handlers continue.
    ///
    /// Messages of a receive in progress are still handled.
    pub fn pause(&self) {
        self.core.phase.pause();
    }

    /// Resumes receiving after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.core.phase.resume();
    }

    /// Waits until a listener that runs [until its queue is empty](super::ListenerBuilder::until_empty) has
    /// stopped, for that reason or another one. It goes on through failures of the storage: to give up after some
    /// time, or on a signal, call [`shutdown`](Self::shutdown).
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use queue_runtime::listener::DrainReport;
    /// use queue_runtime::{Message, QueueService, Received};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// # async fn ship(_: Received<Order>) {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<DrainReport, Box<dyn std::error::Error>> {
    /// let service = QueueService::connect("sqlite:orders.db").await?;
    /// let listener = service.listener(ship).until_empty().start()?;
    /// let limit = Duration::from_secs(3600);
    /// match tokio::time::timeout(limit, listener.drained()).await {
    ///     Ok(report) => Ok(report),
    ///     Err(_) => {
    ///         listener.shutdown(Duration::from_secs(30)).await;
    ///         Err("the queue is not empty after an hour".into())
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future does not stop the listener.
    pub async fn drained(&self) -> DrainReport {
        let core = &self.core;
        core.phase.reached(ListenerPhase::Stopped).await;
        DrainReport::new(core.phase.drain_end(), core.info())
    }

    /// Stops receiving and waits for running handlers for up to `grace`. Then cancels the remaining ones and
    /// hands their messages back without counting the attempt, which takes up to 10 seconds.
    ///
    /// # Cancel safety
    /// Dropping the future stops the listener at once, as a call without a grace period does.
    pub fn shutdown(self, grace: Duration) -> impl Future<Output = ShutdownReport> + Send + use<> {
        let guard = self.stop_on_drop();
        async move {
            let clock = &guard.core.context.clock;
            guard.begin_stop().finish(clock.sleep(grace)).await
        }
    }

    /// Returns a guard that stops the listener at once when it is dropped, as [`shutdown`](Self::shutdown) without a
    /// grace period does, but without waiting.
    pub fn stop_on_drop(self) -> StopOnDrop<Self> {
        StopOnDrop::new(self, Self::abort)
    }

    /// Stops receiving.
    pub(super) fn begin_stop(&self) -> Stopping {
        Stopping::begin(&self.core)
    }

    /// Stops the listener at once.
    pub(super) fn abort(&self) {
        self.core.phase.abort();
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

use std::sync::Arc;

use queue_core::backend::ConditionalPuts;
use queue_core::clock::Timestamp;
use queue_core::idempotency::IdempotencyStore;
use queue_core::internal::debug_fields;
use queue_core::{Message, QueueName};
use tokio::runtime::Handle;

use super::due::Missed;
use super::error::{InvalidRecurrence, ScheduleError};
use super::handle::ScheduleHandle;
use super::limits::MAX_MISSED;
use super::recurrence::{Recurrence, Ticks};
use super::run::Runner;
use super::schedules::Schedules;
use crate::kernel::clock::has_timer;
use crate::kernel::context::Context;

/// The longest name of a schedule, in bytes.
const MAX_NAME: usize = 128;

/// A schedule of messages, from [`QueueService::schedule`](crate::QueueService::schedule). Configure it, then
/// [`start`](Self::start) it.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::{Missed, every};
/// use queue_runtime::{Message, Timestamp, testing};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Report {
///     until: Timestamp,
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let hourly = every(Duration::from_secs(60 * 60));
/// let schedule = service.schedule("report", hourly, |tick| Report { until: tick });
/// let schedule = schedule.missed(Missed::All { limit: 24 }).start()?;
/// # tokio::time::sleep(Duration::from_secs(60 * 60 + 1)).await;
/// # assert_eq!(service.submitted::<Report>().len(), 1);
/// # schedule.stop().await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a schedule submits nothing until it is started"]
pub struct Schedule<M> {
    pub(super) context: Arc<Context>,
    schedules: Arc<Schedules>,
    pub(super) name: String,
    recurrence: Recurrence,
    pub(super) message: Box<dyn Fn(Timestamp) -> M + Send + Sync>,
    pub(super) queue: QueueName,
    pub(super) missed: Missed,
    pub(super) store: Option<Arc<dyn IdempotencyStore>>,
}

impl<M: Message> Schedule<M> {
    pub(crate) fn new(
        context: Arc<Context>,
        schedules: Arc<Schedules>,
        name: String,
        recurrence: Recurrence,
        message: impl Fn(Timestamp) -> M + Send + Sync + 'static,
    ) -> Self {
        Self {
            context,
            schedules,
            name,
            recurrence,
            message: Box::new(message),
            queue: M::TYPE.queue(),
            missed: Missed::default(),
            store: None,
        }
    }

    /// Sets the queue of the messages. The default is that of the type.
    pub fn to(mut self, queue: QueueName) -> Self {
        self.queue = queue;
        self
    }

    /// Sets what is done about missed ticks. The default is [`Missed::Once`].
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Records the ticks in a store of results, which all processes of the schedule must share. For storages such as
    /// Azure.
    ///
    /// The promise is weaker. A tick may be submitted again, with the same id, if the process is killed between the put
    /// and the record, or the outcome of the put is unknown. [`Missed`] applies to the ticks that are missed after
    /// the start; those that were missed while no process ran are skipped. Ticks are kept for 7 days: a clock must not
    /// be behind by more. The last tick is known to its process alone; one that is far ahead of the clock is replaced there
    /// as the [module](super) says.
    pub fn recorded_in<S: IdempotencyStore + Clone>(mut self, store: &S) -> Self {
        self.store = Some(Arc::new(store.clone()));
        self
    }

    /// Starts the schedule on the current Tokio runtime.
    ///
    /// It runs until it is stopped, its service is shut down, or the runtime ends, also without the handle. It never ends by
    /// itself: a failure of the storage or of the store, a message that cannot be encoded and a panic
    /// of the closure are logged, and the tick is tried again, after a pause of up to 30 seconds. A tick that is
    /// late by then is up to [`Missed`].
    ///
    /// # Errors
    /// [`ScheduleError`] if the name, the recurrence or the limit of missed ticks is invalid, the storage cannot record
    /// ticks and there is no store, a schedule of the same name runs on this service, the service was shut down, or there
    /// is no current Tokio runtime with a timer.
    pub fn start(self) -> Result<ScheduleHandle, ScheduleError> {
        let ticks = self.check()?;
        let runtime = Handle::try_current().map_err(ScheduleError::NoRuntime)?;
        if !has_timer(&*self.context.clock) {
            return Err(ScheduleError::NoTimer);
        }
        let handle = ScheduleHandle::new(&self.name);
        let schedules = Arc::clone(&self.schedules);
        let runner = Runner::new(self, ticks, handle.stopping().clone());
        let task = handle.task(runner.run());
        schedules.add(&handle).inspect_err(|_| handle.cancel())?;
        drop(runtime.spawn(task));
        Ok(handle)
    }

    fn check(&self) -> Result<Arc<dyn Ticks>, ScheduleError> {
        let name = || self.name.clone();
        let length = self.name.len();
        if !(1..=MAX_NAME).contains(&length) || self.name.contains(char::is_control) {
            return Err(ScheduleError::Name(name()));
        }
        let invalid = |invalid| ScheduleError::Recurrence {
            name: name(),
            invalid,
        };
        let ticks = Arc::clone(self.recurrence.ticks().map_err(invalid)?);
        if ticks.next(self.context.clock.now()).is_none() {
            return Err(invalid(InvalidRecurrence::Over));
        }
        if let Missed::All { limit } = self.missed
            && !(1..=MAX_MISSED).contains(&limit)
        {
            let name = name();
            return Err(ScheduleError::Limit { name, limit });
        }
        let conditional = self.context.backend.capabilities().conditional_puts;
        if self.store.is_none() && conditional == ConditionalPuts::Unsupported {
            return Err(ScheduleError::Unsupported(name()));
        }
        Ok(ticks)
    }
}

debug_fields!(Schedule<M> { name, recurrence, queue });

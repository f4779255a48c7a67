//! A schedule's settings and handle, and the schedules of one service.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use queue_core::backend::{Atomicity, ConditionalPuts, Groups};
use queue_core::clock::{BoxFuture, Timestamp};
use queue_core::idempotency::ResultStore;
use queue_core::internal::{LockExt as _, debug_fields};
use queue_core::{InvalidName, Message, QueueName};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::due::{MAX_MISSED, Missed};
use super::overlap::Overlap;
use super::recurrence::{InvalidRecurrence, Recurrence, Ticks};
use super::run::Runner;
use crate::kernel::clock::has_timer;
use crate::kernel::context::Context;
use crate::kernel::listener::ShuttingDown;
use crate::kernel::panic::log_caught;
use crate::kernel::stop_on_drop::StopOnDrop;

/// The longest name of a schedule, in bytes.
const MAX_NAME: usize = 128;

/// A schedule of messages, from [`QueueService::schedule`](crate::QueueService::schedule). Configure the schedule, then
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
    pub(super) overlap: Overlap,
    pub(super) store: Option<Arc<dyn ResultStore>>,
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
            overlap: Overlap::default(),
            store: None,
        }
    }

    /// Sets the queue of the messages. The default is the type's queue.
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn to(
        mut self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Self, InvalidName> {
        self.queue = queue.try_into().map_err(Into::into)?;
        Ok(self)
    }

    /// Sets what is done about missed ticks. The default is [`Missed::Once`].
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets what a tick does while the message of an earlier one is not settled. The default is [`Overlap::Allow`].
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Records the ticks in a result store, which all processes of the schedule must share. Storages such as Azure need
    /// a store for ticks: this one, or that of `ServiceBuilder::results_in`.
    ///
    /// With a store, a tick may be submitted again, with the same id, if the process is killed between the put and the
    /// record, or the outcome of the put is unknown. [`Missed`] applies to the ticks that are missed after the start;
    /// ticks that were missed while no process ran are skipped. A store keeps ticks for 7 days: a clock must not be
    /// behind by more. With a store, the last tick is known to its process alone; a last tick that is far ahead of the
    /// clock is replaced as the [module](super) says.
    pub fn recorded_in<S: ResultStore + Clone>(mut self, store: &S) -> Self {
        self.store = Some(Arc::new(store.clone()));
        self
    }

    /// Starts the schedule on the current Tokio runtime.
    ///
    /// A schedule runs until it is stopped, its service is shut down, or the runtime ends, also without the handle. A
    /// failure of the storage or result store, a message that cannot be encoded and a panic of the schedule's closure
    /// are logged, and the tick is tried again, after a pause of up to 30 seconds; [`Missed`] decides about a tick that
    /// is late by then.
    ///
    /// # Errors
    /// [`ScheduleError`] if the name, the recurrence or the limit of missed ticks is invalid, the storage cannot record
    /// ticks and there is no store, a schedule of the same name runs on this service, the service was shut down, or there
    /// is no current Tokio runtime with a timer.
    pub fn start(self) -> Result<ScheduleHandle, ScheduleError> {
        let schedule = self.name.clone();
        let started = self.try_start();
        started.map_err(|kind| ScheduleError { schedule, kind })
    }

    fn try_start(mut self) -> Result<ScheduleHandle, ScheduleErrorKind> {
        if self.store.is_none() {
            self.store = self.context.results.clone();
        }
        let ticks = self.check()?;
        let runtime = Handle::try_current().map_err(ScheduleErrorKind::NoRuntime)?;
        if !has_timer(&*self.context.clock) {
            return Err(ScheduleErrorKind::NoTimer);
        }
        let handle = ScheduleHandle::new(&self.name);
        let schedules = Arc::clone(&self.schedules);
        let runner = Runner::new(self, ticks, handle.stopping().clone());
        let task = handle.task(runner.run());
        schedules.add(&handle).inspect_err(|_| handle.cancel())?;
        drop(runtime.spawn(task));
        Ok(handle)
    }

    fn check(&self) -> Result<Arc<dyn Ticks>, ScheduleErrorKind> {
        let length = self.name.len();
        if !(1..=MAX_NAME).contains(&length) || self.name.contains(char::is_control) {
            return Err(ScheduleErrorKind::Name);
        }
        let invalid = ScheduleErrorKind::Recurrence;
        let ticks = Arc::clone(self.recurrence.ticks().map_err(invalid)?);
        if ticks.next(self.context.clock.now()).is_none() {
            return Err(invalid(InvalidRecurrence::Over));
        }
        if let Missed::All { limit } = self.missed
            && !(1..=MAX_MISSED).contains(&limit)
        {
            return Err(ScheduleErrorKind::Limit(limit));
        }
        let capabilities = self.context.backend.capabilities();
        let conditional = capabilities.conditional_puts;
        if self.store.is_none() && conditional == ConditionalPuts::Unsupported {
            return Err(ScheduleErrorKind::Unsupported);
        }
        let is_possible = match self.overlap {
            Overlap::Allow => true,
            Overlap::Skip => {
                let is_atomic = capabilities.atomicity == Atomicity::Atomic;
                let is_recorded = conditional == ConditionalPuts::Supported && is_atomic;
                self.store.is_none() && is_recorded && M::TYPE.wire().is_event()
            }
            Overlap::Wait => {
                capabilities.groups != Groups::Unsupported && M::TYPE.wire().is_event()
            }
        };
        if !is_possible {
            return Err(ScheduleErrorKind::Overlap(self.overlap));
        }
        Ok(ticks)
    }
}

debug_fields!(Schedule<M> { name, recurrence, queue });

/// A handle to a schedule. Clones are handles to the same schedule.
///
/// Dropping the handle leaves the schedule running: until it is [stopped](Self::stop), its service is
/// [shut down](crate::QueueService::shutdown), or the runtime ends.
/// [`QueueService::schedules`](crate::QueueService::schedules) returns the handle again, and
/// [`stop_on_drop`](Self::stop_on_drop) makes it a guard.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::every;
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// # struct Report {}
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let hourly = every(Duration::from_secs(60 * 60));
/// let schedule = service.schedule("report", hourly, |_| Report {}).start()?;
/// tokio::time::sleep(Duration::from_secs(2 * 60 * 60 + 1)).await;
/// schedule.stop().await;
/// assert_eq!(service.submitted::<Report>().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ScheduleHandle {
    name: Arc<str>,
    /// Cancelled when no further tick is to be submitted.
    stop: CancellationToken,
    /// Cancelled when the submission under way is not to go on either.
    abandon: CancellationToken,
    /// Tracks the task.
    tracker: TaskTracker,
}

/// A schedule's task, which ends only once it was stopped, and logs being dropped before that.
struct Running {
    name: Arc<str>,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.stop.is_cancelled() {
            return;
        }
        let schedule = &*self.name;
        log_caught(|| {
            tracing::warn!(schedule, "the schedule ends: its runtime has shut down");
        });
    }
}

impl ScheduleHandle {
    pub(super) fn new(name: &str) -> Self {
        let tracker = TaskTracker::new();
        // What the tracker has already counts.
        tracker.close();
        Self {
            name: name.into(),
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
            tracker,
        }
    }

    /// Returns the task of the schedule, which runs `schedule` until this handle abandons it. Without the task, the
    /// handle must be cancelled.
    pub(super) fn task<F>(&self, schedule: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Future<Output = ()> + Send,
    {
        let abandon = self.abandon.clone();
        let running = Running {
            name: Arc::clone(&self.name),
            stop: self.stop.clone(),
        };
        self.tracker.track_future(async move {
            let _running = running;
            // `None` means that it was abandoned.
            let _ = abandon.run_until_cancelled_owned(schedule).await;
        })
    }

    /// Returns the schedule's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stops the schedule: it submits no further tick from this call on. The future waits for the submission that is under
    /// way.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule stops all the same.
    pub fn stop(self) -> impl Future<Output = ()> + Send + use<> {
        self.cancel();
        async move { self.tracker.wait().await }
    }

    /// Returns a guard that stops the schedule when it is dropped, as [`stop`](Self::stop) does, but without waiting.
    pub fn stop_on_drop(self) -> StopOnDrop<Self> {
        StopOnDrop::new(self, Self::cancel)
    }

    /// Returns the token that is cancelled when no further tick is to be submitted.
    fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    fn cancel(&self) {
        self.stop.cancel();
    }

    /// Returns whether the schedule goes on to submit ticks, which it does not if its runtime has shut down.
    fn is_running(&self) -> bool {
        !self.stop.is_cancelled() && !self.tracker.is_empty()
    }

    /// Stops the schedule, and abandons a submission that is under way when the grace period is over. Returns the name.
    async fn end(self, grace_over: impl Future<Output = ()>) -> String {
        tokio::select! {
            biased;
            () = self.clone().stop() => {}
            () = grace_over => self.abandon.cancel(),
        }
        self.name().to_owned()
    }
}

impl fmt::Debug for ScheduleHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduleHandle")
            .field("name", &self.name)
            .field("is_running", &self.is_running())
            .finish()
    }
}

/// The schedules of one service, of which no two have the same name: the second one would never submit a tick.
#[derive(Debug, Default)]
pub(crate) struct Schedules(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// In the order of the starts; a schedule that has stopped is removed when another starts.
    started: Vec<ScheduleHandle>,
    is_shut_down: bool,
}

impl Schedules {
    /// Adds a schedule that is about to start.
    fn add(&self, schedule: &ScheduleHandle) -> Result<(), ScheduleErrorKind> {
        let mut state = self.0.hold();
        if state.is_shut_down {
            return Err(ScheduleErrorKind::ShutDown);
        }
        state.started.retain(ScheduleHandle::is_running);
        let mut others = state.started.iter();
        if others.any(|other| other.name() == schedule.name()) {
            return Err(ScheduleErrorKind::Runs);
        }
        state.started.push(schedule.clone());
        Ok(())
    }

    /// Returns the schedules that run, in the order of their start.
    pub(crate) fn running(&self) -> Vec<ScheduleHandle> {
        let mut schedules = self.0.hold().started.clone();
        schedules.retain(ScheduleHandle::is_running);
        schedules
    }

    /// Has all schedules submit no further tick, and lets none start any more. Returns a future that waits for those that
    /// ran, abandons the submissions that are under way when the grace period is over, and returns the names.
    pub(crate) fn shut_down(&self, shutdown: ShuttingDown) -> BoxFuture<'static, Vec<String>> {
        self.0.hold().is_shut_down = true;
        let schedules = self.running();
        schedules.iter().for_each(ScheduleHandle::cancel);
        Box::pin(async move {
            let end = |one: ScheduleHandle| one.end(shutdown.grace_over());
            join_all(schedules.into_iter().map(end)).await
        })
    }
}

/// An error of starting a [`Schedule`](super::Schedule).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::{ScheduleError, ScheduleErrorKind, every};
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Report {}
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let service = testing::service().await;
/// let schedule = service.schedule("report", every(Duration::from_millis(10)), |_| Report {});
/// let error = schedule.start().unwrap_err();
/// assert!(matches!(error.kind, ScheduleErrorKind::Recurrence(_)));
/// assert_eq!(
///     error.to_string(),
///     "failed to start the schedule `report`: the interval of 10ms is not within 1s to 31622400s"
/// );
/// # }
/// ```
#[non_exhaustive]
pub struct ScheduleError {
    /// The schedule's name.
    pub schedule: String,
    /// What is wrong.
    pub kind: ScheduleErrorKind,
}

/// Why a schedule was not started. The kind of a [`ScheduleError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleErrorKind {
    /// The name is empty, too long or contains control characters.
    #[error("a schedule's name must have 1 to 128 bytes and no control characters")]
    Name,
    /// The recurrence is invalid.
    #[error(transparent)]
    Recurrence(InvalidRecurrence),
    /// The limit of missed ticks is invalid: this limit.
    #[error("the limit of {0} missed ticks is not within 1 to {MAX_MISSED}")]
    Limit(usize),
    /// The storage cannot record ticks.
    #[error(
        "the storage cannot record a tick with its message; give a store by `recorded_in`, or to the service by `results_in`"
    )]
    Unsupported,
    /// The storage or the messages do not allow this [`Overlap`].
    #[error(
        "`Overlap::{0:?}` needs a storage in which {need}; `Overlap::Allow` needs nothing",
        need = needed(*.0)
    )]
    Overlap(Overlap),
    /// A schedule of this name runs on the service. A second schedule of the name would never submit a tick, because
    /// the storage knows schedules by their names.
    #[error(
        "a schedule of this name runs on this service; stop it first, or name this one differently"
    )]
    Runs,
    /// The service was [shut down](crate::QueueService::shutdown), so it starts no more schedules.
    #[error("the service was shut down")]
    ShutDown,
    /// There is no current Tokio runtime, on which the schedule would run.
    #[error("there is no current Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The current Tokio runtime has no timer.
    #[error("the Tokio runtime has no timer; build it with `enable_all()`")]
    NoTimer,
}

/// What a way of overlapping needs.
fn needed(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Allow => "nothing is asked",
        Overlap::Skip => {
            "one step records a tick and a key with their message, as memory, SQLite and PostgreSQL do without \
             `recorded_in`, and messages that are events, which carry the key"
        }
        Overlap::Wait => {
            "messages have groups, as in memory, on SQLite and PostgreSQL, and messages that are events, which carry theirs"
        }
    }
}

queue_core::debug_as_text!(ScheduleErrorKind);

queue_core::error_around!(kind in ScheduleError; |error, f| match (&error.schedule, &error.kind) {
    (name, kind @ ScheduleErrorKind::Name) => {
        write!(f, "failed to start the schedule {name:?}: {kind}")
    }
    (name, kind) => write!(f, "failed to start the schedule `{name}`: {kind}"),
});

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::kernel::background::StopOnDrop;
use crate::kernel::panic::log_caught;

/// A handle to a schedule. Clones are handles to the same one.
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

/// A schedule's task, which ends only once it was stopped. Dropped before that, it says so.
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
        // What it tracks already counts.
        tracker.close();
        Self {
            name: name.into(),
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
            tracker,
        }
    }

    /// Returns the task of the schedule, which runs `schedule` until this handle abandons it. Without it, the handle
    /// must be cancelled.
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
    /// If the future is dropped before it completes, the schedule stops all the same.
    pub fn stop(self) -> impl Future<Output = ()> + Send + use<> {
        self.cancel();
        async move { self.tracker.wait().await }
    }

    /// Returns a guard that stops the schedule when it is dropped, as [`stop`](Self::stop) does, but without waiting.
    pub fn stop_on_drop(self) -> StopOnDrop<Self> {
        StopOnDrop::new(self, Self::cancel)
    }

    /// Returns the token that is cancelled when no further tick is to be submitted.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    pub(super) fn cancel(&self) {
        self.stop.cancel();
    }

    /// Returns whether the schedule goes on to submit ticks. It does not if its runtime has shut down.
    pub(super) fn is_running(&self) -> bool {
        !self.stop.is_cancelled() && !self.tracker.is_empty()
    }

    /// Stops the schedule, and abandons a submission that is under way when the grace period is over. Returns the name.
    pub(crate) async fn end(self, grace_over: impl Future<Output = ()>) -> String {
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

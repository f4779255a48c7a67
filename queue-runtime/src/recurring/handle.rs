use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;

/// A schedule that runs. Dropping the handle stops it; [`detach`](Self::detach) lets it run as long as the service.
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
#[derive(Debug)]
#[must_use = "dropping the handle stops the schedule"]
pub struct ScheduleHandle {
    stop: DropGuard,
    task: JoinHandle<()>,
}

impl ScheduleHandle {
    pub(super) fn new(stop: DropGuard, task: JoinHandle<()>) -> Self {
        Self { stop, task }
    }

    /// Stops the schedule, and waits for the submission that is under way.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the schedule stops all the same.
    pub async fn stop(self) {
        drop(self.stop);
        // An error means that the runtime was shut down: the task catches panics.
        drop(self.task.await);
    }

    /// Lets the schedule run until all clones of the service, its listeners and its deliveries are dropped, or the
    /// runtime is shut down.
    pub fn detach(self) {
        drop(self.stop.disarm());
    }
}

use std::process::{ExitCode, Termination};

use crate::kernel::listener::info::ListenerInfo;

/// The end of a listener that runs [until its queue is empty](crate::ListenerBuilder::until_empty), from
/// [`ListenerHandle::drained`](crate::ListenerHandle::drained). As the result of `main` it becomes the exit status
/// of the program.
///
/// ```
/// use queue_runtime::listener::DrainReport;
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<DrainReport, Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit_all((0..3).map(|number| Order { number })).await?;
///
/// let listener = service.listener(ship).until_empty().start()?;
/// let report = listener.drained().await;
/// assert_eq!((report.info.completed, report.info.poisoned), (3, 0));
/// Ok(report)
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
#[must_use = "the queue may not be empty"]
pub struct DrainReport {
    /// Why the listener ended.
    pub end: DrainEnd,
    /// The listener's final figures.
    pub info: ListenerInfo,
}

/// Why a listener that runs until its queue is empty has ended.
///
/// ```
/// use queue_runtime::listener::DrainEnd;
/// use queue_runtime::{Message, Received, testing};
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
/// let service = testing::service().await; // has no queues
/// let europe = service.queue_named("orders-europe")?;
/// let listener = europe.listener(ship).until_empty().start()?;
/// assert_eq!(listener.drained().await.end, DrainEnd::QueueMissing);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DrainEnd {
    /// The queue was empty: it had no messages, visible or not.
    Empty,
    /// The queue, which was [named](crate::QueueService::queue_named), does not exist.
    QueueMissing,
    /// The queue is [paused](crate::AnyQueue::pause) for everybody. What was in flight is finished. The queue may be empty.
    QueuePaused,
    /// The listener was stopped before, or the application's runtime has shut down.
    Stopped,
}

impl DrainReport {
    /// `end` is `None` if the listener was stopped before its queue was empty.
    pub(crate) fn new(end: Option<DrainEnd>, info: ListenerInfo) -> Self {
        Self {
            end: end.unwrap_or(DrainEnd::Stopped),
            info,
        }
    }

    /// Returns the exit status for this end.
    ///
    /// | status | the queue |
    /// |---|---|
    /// | 0 | is empty, and this listener moved nothing to the poison queue |
    /// | 1 | may not be empty, is paused, or does not exist |
    /// | 2 | is empty, and this listener moved messages to the poison queue |
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status())
    }

    fn status(&self) -> u8 {
        match (self.end, self.info.poisoned) {
            (DrainEnd::Empty, 0) => 0,
            (DrainEnd::Empty, _) => 2,
            (DrainEnd::QueueMissing | DrainEnd::QueuePaused | DrainEnd::Stopped, _) => 1,
        }
    }
}

impl From<DrainReport> for ExitCode {
    fn from(report: DrainReport) -> Self {
        report.exit_code()
    }
}

impl Termination for DrainReport {
    fn report(self) -> ExitCode {
        self.exit_code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_queue_without_poison_is_success() {
        let report = |end, poisoned| {
            let info = ListenerInfo {
                poisoned,
                ..ListenerInfo::default()
            };
            DrainReport { end, info }.status()
        };
        assert_eq!(report(DrainEnd::Empty, 0), 0);
        assert_eq!(report(DrainEnd::Empty, 1), 2);
        for end in [
            DrainEnd::QueueMissing,
            DrainEnd::QueuePaused,
            DrainEnd::Stopped,
        ] {
            assert_eq!((report(end, 0), report(end, 1)), (1, 1));
        }
    }
}

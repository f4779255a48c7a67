//! What operators do with a service.

use queue_core::backend::PageMark;

use crate::extensions::recurring::{RecordedSchedules, forget, recorded, reset};
use crate::extensions::request::clean;
use crate::service::QueueService;

impl QueueService {
    /// Restarts a schedule: records the current time in place of its last tick. Returns false if the storage knows no
    /// schedule of this name.
    ///
    /// For an operator whose schedule waits because a clock was ahead when its last tick was recorded. Later ticks are
    /// submitted from then on, by all processes within a minute; earlier ones are not made up for. If the wall clock of
    /// this process is behind, ticks since then are submitted again, with the same ids.
    ///
    /// A schedule with [a store](crate::recurring::Schedule::recorded_in) keeps its last tick in its process: restart that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = queue_runtime::QueueService::connect("memory:").await?;
    /// let is_known = service.reset_schedule("hourly report").await?;
    /// assert!(!is_known, "it was never started");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) on Azure; otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the schedule may have been reset.
    pub async fn reset_schedule(&self, name: &str) -> queue_core::Result<bool> {
        reset(&self.context, name).await
    }

    /// Returns up to `max` of the schedules whose ticks the storage records, whether or not they run anywhere, with their
    /// last ticks: the first page, or the one at `from`. A page holds at most
    /// [`MAX_RECORDS`](crate::idempotency::MAX_RECORDS); it may hold fewer, or none, and yet not be the last one.
    ///
    /// A record that cannot be read is reported in its place, as an error of its schedule. Those that have a store of their
    /// own ([`recorded_in`](crate::recurring::Schedule::recorded_in)) are not among them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, QueueService, recurring::every};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Report {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = QueueService::connect("memory:").await?;
    /// let hourly = every(Duration::from_secs(3600));
    /// let schedule = service.schedule("hourly report", hourly, |_| Report {}).start()?;
    /// # while service.recorded_schedules(None, 1).await?.schedules.is_empty() {
    /// #     tokio::task::yield_now().await;
    /// # }
    ///
    /// let page = service.recorded_schedules(None, 100).await?;
    /// assert_eq!(page.schedules[0].name, "hourly report");
    /// assert!(page.schedules[0].last_tick.clone()? <= page.now);
    ///
    /// schedule.stop().await;
    /// assert!(service.forget_schedule("hourly report").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) on Azure and on a service with a payload store, where no
    /// ticks are recorded, and if the backend's store of results has no listing;
    /// [`ErrorKind::InvalidInput`](queue_core::ErrorKind::InvalidInput) for a mark that no page has returned; otherwise the
    /// backend's error.
    pub async fn recorded_schedules(
        &self,
        from: Option<&PageMark>,
        max: u32,
    ) -> queue_core::Result<RecordedSchedules> {
        recorded(&self.context, from, max).await
    }

    /// Removes what the storage has recorded of a schedule, such as one that no program starts any more. Returns false if
    /// nothing was recorded.
    ///
    /// A schedule of this name that is started later begins anew: earlier ticks are not made up for. One that runs begins
    /// anew at its next tick, which it leaves out.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) as for
    /// [`recorded_schedules`](Self::recorded_schedules); otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the schedule may have been forgotten.
    pub async fn forget_schedule(&self, name: &str) -> queue_core::Result<bool> {
        forget(&self.context, name).await
    }

    /// Deletes the queue for replies to this service's requests, if it has one. Requests that wait get no reply.
    ///
    /// Call it before a program ends. Otherwise the queue remains until another instance that makes requests, or
    /// [`clean_reply_queues`](Self::clean_reply_queues), finds that its owner is gone. Further requests create another one.
    /// A failure to delete it is logged.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the queue is deleted in the background.
    pub async fn delete_reply_queue(&self) {
        self.replies.close().await;
    }

    /// Deletes reply queues of instances that are gone, such as processes that were killed, and returns how many.
    ///
    /// A call checks up to 32 queues, chosen at random, and takes as long as the longest of their
    /// [leases](crate::ServiceBuilder::reply_lease). Each instance does this from time to time while it makes requests,
    /// so programs need not call it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = queue_runtime::QueueService::connect("memory:").await?;
    /// let deleted = service.clean_reply_queues().await?;
    /// assert_eq!(deleted, 0, "nobody was killed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The backend's error: if the queues cannot be listed, or else the first one of a queue that cannot be read or deleted.
    /// Such a queue is logged and left alone, and the others are cleaned all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, some of the queues may have been deleted.
    pub async fn clean_reply_queues(&self) -> queue_core::Result<usize> {
        clean(&self.context, None).await
    }
}

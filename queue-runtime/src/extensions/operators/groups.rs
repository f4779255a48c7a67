use queue_core::backend::{GROUP_LIMIT, GroupLimit};
use queue_core::{Error, ErrorKind, Operation, Result};

use crate::service::AnyQueue;

impl AnyQueue {
    /// Sets how many messages of each [group](crate::backend::NewMessage::group) of the queue are leased at once, to all processes
    /// together: the entry [`GROUP_LIMIT`] of its metadata. Returns the limit before. Calling it again is safe, also after an
    /// error.
    ///
    /// A higher number holds at once. A lower number holds for messages that are received from now on: those that are leased
    /// stay so. Whether groups keep their [order](GroupLimit::InOrder) or have another limit can only change while no message
    /// with a group is on the queue.
    ///
    /// A message that is put back, or delayed, does not count while it waits.
    ///
    /// ```
    /// use queue_runtime::backend::GroupLimit;
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Report {
    ///     #[message(group)]
    ///     tenant: String,
    ///     month: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let reports = service.queue::<Report>();
    /// reports.any().create().await?;
    /// reports.any().set_group_limit("2".parse()?).await?;
    ///
    /// for month in 1..=12 {
    ///     service.submit(Report { tenant: "large".into(), month }).await?;
    /// }
    /// service.submit(Report { tenant: "small".into(), month: 1 }).await?;
    /// let leased = service.accept_many::<Report>(16).await?;
    /// let mut tenants: Vec<_> = leased.iter().map(|report| &*report.tenant).collect();
    /// tenants.sort();
    /// assert_eq!(tenants, ["large", "large", "small"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the storage has no groups. [`Conflict`](ErrorKind::Conflict) if there are
    /// messages with groups, and the change would begin or end to keep their order, or if others have overwritten the metadata
    /// three times. Else the backend's error, also for a missing queue. If the error's outcome is unknown, the limit may be set.
    ///
    /// # Cancel safety
    /// If the future is dropped, the limit may be set.
    pub async fn set_group_limit(&self, limit: GroupLimit) -> Result<GroupLimit> {
        let set = self.mark(|metadata| {
            if limit.is_in_order() {
                metadata.remove(GROUP_LIMIT);
                return Ok(());
            }
            metadata.insert(GROUP_LIMIT, &limit.to_string())
        });
        let (before, _) = set.await?;
        Ok(GroupLimit::of(&before).ok().flatten().unwrap_or_default())
    }

    /// Reads how many messages of each [group](crate::backend::NewMessage::group) of the queue are leased at once.
    ///
    /// # Errors
    /// The backend's error, also for a missing queue. [`Corrupt`](ErrorKind::Corrupt) if another program has set what is no
    /// limit; messages of groups are then kept in order.
    pub async fn group_limit(&self) -> Result<GroupLimit> {
        let limit = GroupLimit::of(&self.metadata().await?);
        let limit = limit.map_err(|error| {
            let corrupt = Error::new(ErrorKind::Corrupt, Operation::Properties);
            corrupt
                .with_queue(self.name())
                .with_detail(error.to_string())
        })?;
        Ok(limit.unwrap_or_default())
    }
}

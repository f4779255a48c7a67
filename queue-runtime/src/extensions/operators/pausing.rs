use queue_core::backend::{InvalidMetadata, Metadata};
use queue_core::{Error, ErrorKind, Operation, Outcome, Result, Timestamp};

use crate::kernel::repeat::Repeats;
use crate::kernel::settings::{PAUSED, PAUSED_REASON, Paused, paused};
use crate::service::AnyQueue;

/// How often the mark is written, while other writers of the metadata overwrite it.
const WRITES: usize = 3;

impl AnyQueue {
    /// Pauses the queue for every listener of this library, in every process: sets [`PAUSED`] in its metadata, to this
    /// machine's time, and keeps the other entries. A paused queue keeps the time of its first pause; a new reason
    /// replaces the old reason. Calling `pause` again is safe, also after an error.
    ///
    /// The listeners of this service stop receiving at once, those of other services that receive messages within 5
    /// seconds in memory and on SQLite, and within a minute on Azure. An idle listener reads no metadata: it stops at
    /// the first messages that it finds, and hands them back. Messages in flight are finished. Listeners receive again
    /// when the queue is [resumed](Self::resume). Consumers that are not listeners are not affected:
    /// [`accept`](Self::accept), `messages`, redrives.
    ///
    /// No storage replaces metadata only if it is unchanged, so whoever else writes the queue's metadata at the same
    /// time may lose an entry, or overwrite `PAUSED`. `pause` reads `PAUSED` again once it is written, and writes it
    /// again if it is gone.
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
    /// # async fn ship(_: Received<Order>) {}
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let orders = service.queue::<Order>().any();
    /// orders.create().await?;
    /// let listener = service.listener(ship).start()?;
    ///
    /// orders.pause(Some("the warehouse is closed")).await?;
    /// service.submit(Order { number: 7 }).await?;
    /// # tokio::time::sleep(Duration::from_secs(60)).await;
    /// assert_eq!(listener.info().completed, 0);
    ///
    /// orders.resume().await?;
    /// testing::drain([&listener]).await?;
    /// assert_eq!(listener.info().completed, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The backend's error, also for a missing queue. [`InvalidInput`](ErrorKind::InvalidInput) if the reason is too
    /// long for the storage, and [`Conflict`](ErrorKind::Conflict) if others have overwritten `PAUSED` three times. If
    /// the error's outcome is unknown, the queue may be paused.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may be paused.
    pub async fn pause(&self, reason: Option<&str>) -> Result<Paused> {
        let reason = reason.filter(|reason| !reason.trim().is_empty());
        let now = self.context.clock.now();
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let marked = self.mark(|metadata| {
            if metadata.find(PAUSED).is_none() {
                metadata.remove(PAUSED_REASON);
                metadata.insert(PAUSED, &now.to_string())?;
            }
            reason.map_or(Ok(()), |reason| metadata.insert_text(PAUSED_REASON, reason))
        });
        let (_, after) = marked.await?;
        Ok(paused(&after).expect("it was marked, or is"))
    }

    /// Ends a [pause](Self::pause): removes the mark from the queue's metadata, and keeps the other entries. Returns
    /// the pause's mark, or `None` if the queue was not paused. Listeners receive again as fast as they stop at a
    /// pause.
    ///
    /// A listener that was also paused by [its handle](crate::ListenerHandle::pause) stays paused.
    ///
    /// # Errors
    /// The backend's error, also for a missing queue. [`Conflict`](ErrorKind::Conflict) if others have written `PAUSED`
    /// again three times. If the error's outcome is unknown, the queue may be paused or not.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may be paused or not.
    pub async fn resume(&self) -> Result<Option<Paused>> {
        let marked = self.mark(|metadata| {
            metadata.remove(PAUSED);
            metadata.remove(PAUSED_REASON);
            Ok(())
        });
        let (before, _) = marked.await?;
        Ok(paused(&before))
    }

    /// Reads whether the queue is [paused](Self::pause), since when and why. The function [`paused`] reads the pause
    /// from metadata of another call, such as [`properties`](Self::properties).
    ///
    /// # Errors
    /// The backend's error, also for a missing queue.
    pub async fn paused(&self) -> Result<Option<Paused>> {
        Ok(paused(&self.metadata().await?))
    }

    pub(super) async fn metadata(&self) -> Result<Metadata> {
        let backend = &self.context.backend;
        self.context.ask(|| backend.metadata(&self.name)).await
    }

    /// Changes the metadata until the storage has the change. Returns the metadata before and after the change.
    pub(super) async fn mark(
        &self,
        change: impl Fn(&mut Metadata) -> Result<(), InvalidMetadata>,
    ) -> Result<(Metadata, Metadata)> {
        let refused = |kind| Error::new(kind, Operation::SetMetadata).with_queue(&self.name);
        let (mut before, mut writes) = (None, 0);
        let mut repeats = Repeats::by(&self.context.storage_retry, &*self.context.clock);
        loop {
            let is = self.metadata().await?;
            let mut wanted = is.clone();
            change(&mut wanted).map_err(|error| {
                let refused = refused(ErrorKind::InvalidInput).unsent();
                refused.with_detail(error.to_string())
            })?;
            if wanted == is {
                return Ok((before.unwrap_or_else(|| is.clone()), is));
            }
            if writes == WRITES {
                let why = "other programs have overwritten the metadata each time";
                return Err(refused(ErrorKind::Conflict).with_detail(why));
            }
            before.get_or_insert(is);
            writes += 1;
            match self.set_metadata(&wanted).await {
                // The mark may have been written, and overwritten since: what the storage has decides.
                Err(error) if error.outcome() == Outcome::Unknown => repeats.pause(error).await?,
                set => set?,
            }
        }
    }
}

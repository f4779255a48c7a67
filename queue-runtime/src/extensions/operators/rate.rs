use queue_core::{Error, ErrorKind, Operation, Result};

use crate::kernel::policy::{InvalidRate, Rate};
use crate::kernel::settings::RECEIVE_RATE;
use crate::service::AnyQueue;

impl AnyQueue {
    /// Sets the rate at which the listeners of all processes together receive messages of the queue, or removes it: the entry
    /// [`RECEIVE_RATE`] of its metadata. Returns the rate before. Calling it again is safe, also after an error.
    ///
    /// In any period, at most as many messages are received as the rate says, plus the burst, plus for each listener what the
    /// rate gives in 50 ms, at least one. Every receive of a message counts, also of one that is tried again; a pack counts
    /// as one. After a crash, and where many processes take turns, somewhat fewer are received. The burst is at least what
    /// the rate gives in 50 ms.
    ///
    /// The listeners of this service keep a new rate at once, those of others that receive messages within 5 seconds, and
    /// idle ones from the second receive that finds messages. Consumers that are not listeners are not limited:
    /// [`accept`](Self::accept), `messages`, redrives. For one listener's own rate, see
    /// [`ListenerBuilder::rate`](crate::ListenerBuilder::rate).
    ///
    /// ```
    /// use queue_runtime::policy::Rate;
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
    /// orders.set_rate(Some(Rate::per_minute(10))).await?;
    ///
    /// service.submit_all((0..30).map(|number| Order { number })).await?;
    /// let listeners = [service.listener(ship).start()?, service.listener(ship).start()?];
    /// tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    /// let completed: usize = listeners.iter().map(|one| one.info().completed).sum();
    /// assert!((10..=13).contains(&completed), "{completed}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the storage keeps no records, as on Azure: give each instance its share
    /// with [`ListenerBuilder::rate`](crate::ListenerBuilder::rate). [`Conflict`](ErrorKind::Conflict) if others have
    /// overwritten the metadata three times. Else the backend's error, also for a missing queue. If the error's outcome is
    /// unknown, the rate may be set.
    ///
    /// # Cancel safety
    /// If the future is dropped, the rate may be set.
    pub async fn set_rate(&self, rate: Option<Rate>) -> Result<Option<Rate>> {
        let refused = |kind, detail: String| {
            let error = Error::new(kind, Operation::SetMetadata).with_queue(self.name());
            error.with_detail(detail).unsent()
        };
        if self.context.backend.results().is_none() {
            let detail = "this storage keeps no records, in which processes could share a rate; give each its part with `rate` \
                          of its listener";
            return Err(refused(ErrorKind::Unsupported, detail.to_owned()));
        }
        let text = rate.map(|rate| rate.to_string());
        // A rate may have been built of numbers that no text has.
        if let Some(Err(error)) = text.as_deref().map(str::parse::<Rate>) {
            return Err(refused(ErrorKind::InvalidInput, error.to_string()));
        }
        let set = self.mark(|metadata| match &text {
            Some(text) => metadata.insert(RECEIVE_RATE, text),
            None => {
                metadata.remove(RECEIVE_RATE);
                Ok(())
            }
        });
        let (before, _) = set.await?;
        let before = before.find(RECEIVE_RATE).map(str::parse);
        Ok(before.transpose().ok().flatten())
    }

    /// Reads the [rate](Self::set_rate) at which the listeners of all processes together receive messages of the queue.
    ///
    /// # Errors
    /// The backend's error, also for a missing queue. [`Corrupt`](ErrorKind::Corrupt) if another program has set what is no
    /// rate; listeners then receive without one.
    pub async fn rate(&self) -> Result<Option<Rate>> {
        let metadata = self.metadata().await?;
        let rate = metadata.find(RECEIVE_RATE).map(str::parse);
        rate.transpose().map_err(|error: InvalidRate| {
            Error::new(ErrorKind::Corrupt, Operation::Properties)
                .with_queue(self.name())
                .with_detail(error.to_string())
        })
    }
}

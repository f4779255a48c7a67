use std::fmt;
use std::sync::Arc;

use queue_core::envelope::{Envelope, PoisonRecord};
use queue_core::wire::Body;
use queue_core::{FollowUp, Message};

/// A message that is about to be moved to the poison queue: the argument of
/// [`on_poison`](crate::ListenerBuilder::on_poison).
///
/// ```
/// use queue_runtime::{FollowUp, Message, Poisoned, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// #[derive(Serialize, Deserialize, Message)]
/// struct OrderFailed {
///     reason: String,
/// }
///
/// let service = testing::service().await;
/// service.submit(Order { number: 7 }).await?;
/// let accept = service.accept::<Order>().on_poison(|order: Poisoned<Order>| {
///     let reason = order.record.error.unwrap_or_default();
///     Some(FollowUp::new(&OrderFailed { reason }))
/// });
/// accept.await?.expect("just submitted").reject("sold out").await?;
///
/// let failed = service.accept::<OrderFailed>().await?.expect("submitted with the move");
/// assert_eq!(failed.reason, "sold out");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Poisoned<M> {
    /// The message. `None` if its body does not decode.
    pub message: Option<M>,
    /// The envelope. For a body that is not an event, it is derived from the metadata that the storage
    /// reports.
    pub envelope: Arc<Envelope>,
    /// The reason for the move, the error, and the number of attempts.
    pub record: PoisonRecord,
}

/// An `on_poison` callback with its message type erased.
#[derive(Clone)]
pub(crate) struct OnPoison(Arc<Callback>);

type Callback = dyn Fn(&Body, Arc<Envelope>, PoisonRecord) -> Option<FollowUp> + Send + Sync;

impl OnPoison {
    pub(crate) fn new<M: Message>(
        callback: impl Fn(Poisoned<M>) -> Option<FollowUp> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |body, envelope, record| {
            callback(Poisoned {
                message: body.decode::<M>().ok(),
                envelope,
                record,
            })
        }))
    }

    pub(crate) fn call(
        &self,
        body: &Body,
        envelope: Arc<Envelope>,
        record: PoisonRecord,
    ) -> Option<FollowUp> {
        (self.0)(body, envelope, record)
    }
}

impl fmt::Debug for OnPoison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnPoison(…)")
    }
}

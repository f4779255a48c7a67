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
    /// The message. `None` if its body does not decode, or if three attempts to move it ended without a record:
    /// decoding it may be what crashes the process.
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

type Callback =
    dyn Fn(Option<&Body>, Arc<Envelope>, PoisonRecord) -> Option<FollowUp> + Send + Sync;

/// How a callback is called for a message whose attempts ended without a record, as when a process is killed.
/// Decoding the message, or the callback, may be what kills it each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caution {
    /// With the message decoded.
    None,
    /// Without decoding the message.
    Undecoded,
    /// The callback is not called.
    Uncalled,
}

impl Caution {
    /// The number of attempts to move a message with its body decoded, and then without.
    const DECODED: u32 = 3;
    const UNDECODED: u32 = 7;

    /// Returns the caution for a message after this many attempts. Those beyond the threshold and the last chance
    /// were attempts to move the message.
    pub(crate) fn after(attempts: u32, threshold: u32) -> Self {
        let earlier_moves = attempts.saturating_sub(threshold.saturating_add(1));
        match earlier_moves {
            moves if moves < Self::DECODED => Self::None,
            moves if moves < Self::DECODED + Self::UNDECODED => Self::Undecoded,
            _ => Self::Uncalled,
        }
    }
}

impl OnPoison {
    pub(crate) fn new<M: Message>(
        callback: impl Fn(Poisoned<M>) -> Option<FollowUp> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |body, envelope, record| {
            callback(Poisoned {
                message: body.and_then(|body| body.decode::<M>().ok()),
                envelope,
                record,
            })
        }))
    }

    /// Calls the callback, with the message decoded from `body`.
    pub(crate) fn call(
        &self,
        body: Option<&Body>,
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

//! What the application is asked about a message that ends: what to do about an error of a handler, by its type, and what to
//! submit when a message is moved to the poison queue.

use std::any::type_name;
use std::error::Error;
use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use queue_core::envelope::{Envelope, PoisonRecord};
use queue_core::wire::Body;
use queue_core::{Failure, FollowUp, Message};

use crate::kernel::panic;
use crate::kernel::policy::RetryPolicy;

/// The consequence of a handler's error, or of the error that an [accepted](crate::receive::Accept::classify) message failed
/// with: the result of [`ListenerBuilder::classify`](crate::ListenerBuilder::classify).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, Received, testing};
/// use queue_runtime::receive::OnError;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// #[derive(Debug, thiserror::Error)]
/// enum ShipError {
///     #[error("no item {0}")]
///     NoItem(u32),
///     #[error("the carrier is busy")]
///     Busy,
/// }
///
/// async fn ship(order: Received<Order>) -> Result<(), ShipError> {
///     match order.number {
///         0 => Err(ShipError::NoItem(0)),
///         _ => Err(ShipError::Busy),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// let listener = service
///     .listener(ship)
///     .classify(|error: &ShipError| match error {
///         ShipError::NoItem(_) => OnError::Reject,
///         ShipError::Busy => OnError::RetryAfter(Duration::from_secs(60)),
///     })
///     .start()?;
/// # service.submit(Order { number: 0 }).await?;
/// # tokio::time::sleep(Duration::from_secs(5)).await;
/// # assert_eq!(listener.info().poisoned, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// Count a failed attempt, and retry according to the listener's retry policy.
    Retry,
    /// Count a failed attempt, and retry according to this policy.
    RetryBy(RetryPolicy),
    /// Count a failed attempt, and retry after this delay.
    RetryAfter(Duration),
    /// Move the message to the poison queue.
    Reject,
    /// Put the message back for this long without counting the attempt, as
    /// [`Disposition::postpone`](queue_core::Disposition::postpone) does.
    Postpone(Duration),
}

/// The classifiers of a listener, in the order of their addition.
#[derive(Clone, Default)]
pub(crate) struct Classifiers(Vec<Arc<dyn Classify>>);

trait Classify: Send + Sync {
    /// Returns the decision, if the error is of the classifier's type.
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<OnError>;

    fn type_name(&self) -> &'static str;
}

struct ByType<E> {
    decide: Box<dyn Fn(&E) -> OnError + Send + Sync>,
}

impl<E: Error + 'static> Classify for ByType<E> {
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<OnError> {
        error.downcast_ref().map(|error| (self.decide)(error))
    }

    fn type_name(&self) -> &'static str {
        type_name::<E>()
    }
}

impl Classifiers {
    pub(crate) fn add<E: Error + 'static>(
        &mut self,
        decide: impl Fn(&E) -> OnError + Send + Sync + 'static,
    ) {
        let decide = Box::new(decide);
        self.0.push(Arc::new(ByType { decide }));
    }

    /// Returns these classifiers, and then others.
    pub(crate) fn then(mut self, others: &Self) -> Self {
        self.0.extend_from_slice(&others.0);
        self
    }

    /// Returns the decision of the first classifier whose type is in the error's source chain, or
    /// [`OnError::Retry`] if there is none or it panics.
    pub(super) fn decide(&self, failure: &Failure) -> OnError {
        self.0
            .iter()
            .find_map(|classifier| {
                let decided = panic::catch(|| chain(failure).find_map(|e| classifier.classify(e)));
                decided.unwrap_or_else(|panic| {
                    let error_type = classifier.type_name();
                    tracing::error!(error_type, %panic, "a classifier of errors panicked; retrying by the policy");
                    Some(OnError::Retry)
                })
            })
            .unwrap_or(OnError::Retry)
    }
}

impl fmt::Debug for Classifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.0.iter().map(|classifier| classifier.type_name());
        f.debug_list().entries(types).finish()
    }
}

/// Returns the error and its sources, outermost first.
fn chain(failure: &Failure) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let outermost: &(dyn Error + 'static) = failure.error();
    successors(Some(outermost), |&error| error.source())
}

/// A message that is about to be moved to the poison queue: the argument of
/// [`on_poison`](crate::ListenerBuilder::on_poison).
///
/// ```
/// use queue_runtime::{FollowUp, Message, testing};
/// use queue_runtime::receive::Poisoned;
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
    /// The message. `None` if the message's body does not decode, or if three attempts to move the message ended
    /// without recording how: decoding may be what crashes the process.
    pub message: Option<M>,
    /// The envelope. For a body that is not an event, the envelope is derived from the metadata that the storage
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
/// Decoding the message, or the callback, may be what kills the process each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caution {
    /// The callback gets the decoded message.
    None,
    /// The callback is called without decoding the message.
    Undecoded,
    /// The callback is not called.
    Uncalled,
}

impl Caution {
    /// The number of attempts to move a message with its body decoded, and then without.
    const DECODED: usize = 3;
    const UNDECODED: usize = 7;

    /// Returns the caution for a message after this many attempts. Attempts beyond the threshold and the last chance
    /// were attempts to move the message.
    pub(crate) fn after(attempts: usize, threshold: usize) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("status {0}")]
    struct Status(u16);

    #[derive(Debug, thiserror::Error)]
    #[error("fetch the picture")]
    struct Fetch(#[source] Status);

    fn on_status(status: &Status) -> OnError {
        match status.0 {
            404 => OnError::Reject,
            0 => panic!("no status"),
            seconds => OnError::RetryAfter(Duration::from_secs(seconds.into())),
        }
    }

    #[test]
    fn the_type_is_found_anywhere_in_the_chain_and_the_first_classifier_wins() {
        let mut classifiers = Classifiers::default();
        classifiers.add(on_status);
        classifiers.add(|_: &Fetch| OnError::Postpone(Duration::ZERO));
        let decide = |failure: Failure| classifiers.decide(&failure);
        assert_eq!(decide(Status(404).into()), OnError::Reject);
        assert_eq!(decide(Fetch(Status(404)).into()), OnError::Reject);
        let after = OnError::RetryAfter(Duration::from_secs(7));
        assert_eq!(decide(Fetch(Status(7)).into()), after);
        assert_eq!(decide("another error".into()), OnError::Retry);
        assert_eq!(
            Classifiers::default().decide(&Status(404).into()),
            OnError::Retry
        );
    }

    #[test]
    fn a_classifier_that_panics_decides_nothing() {
        let mut classifiers = Classifiers::default();
        classifiers.add(on_status);
        assert_eq!(classifiers.decide(&Status(0).into()), OnError::Retry);
    }
}

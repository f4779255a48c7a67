//! Deciding by the type of a handler's error what to do about the failed attempt.

use std::any::type_name;
use std::error::Error;
use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use queue_core::Failure;

use crate::kernel::panic;
use crate::kernel::policy::RetryPolicy;

/// What to do about an error of a handler, or of what was [accepted](crate::Accept::classify): the result of
/// [`ListenerBuilder::classify`](crate::ListenerBuilder::classify).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, OnError, Received, testing};
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

/// The classifiers of a listener, in the order in which they were added.
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

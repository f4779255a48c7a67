use std::time::Duration;

use queue_core::{ErrorKind, Operation};

/// What goes wrong with one call to a [`FaultInjector`](super::FaultInjector).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::Operation;
/// use queue_runtime::testing::Fault;
///
/// assert!(Fault::AnswerLost.applies_to(Operation::Receive));
/// assert!(Fault::Duplicated.applies_to(Operation::Put));
/// assert!(!Fault::LeaseLost(Duration::from_secs(30)).applies_to(Operation::Put));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call is carried out, and fails as [`Unreachable`](ErrorKind::Unreachable) with
    /// [`Outcome::Unknown`](crate::Outcome::Unknown).
    AnswerLost,
    /// The call is not carried out, and fails as [`Fault::AnswerLost`] does.
    RequestLost,
    /// The call is not carried out, and fails with this kind and
    /// [`Outcome::NotDone`](crate::Outcome::NotDone).
    Refused(ErrorKind),
    /// The call is not carried out, and fails as [`Throttled`](ErrorKind::Throttled), with the time to
    /// wait if there is one.
    Throttled(Option<Duration>),
    /// The call starts after this long, on Tokio's timer.
    Delayed(Duration),
    /// The call starts when [`release`](super::FaultInjector::release) is called. A caller that gives
    /// up before that has changed nothing.
    Stalled,
    /// The call is carried out, and its answer arrives when
    /// [`release`](super::FaultInjector::release) is called.
    AnswerStalled,
    /// Every put of the call is carried out twice; the answer is that of the first.
    Duplicated,
    /// Another client receives the message before the call is carried out, holds it for this long, and
    /// never settles it. The call's receipt is then stale.
    ///
    /// The messages ahead of it in the queue are received too, and released: their dequeue counts rise
    /// by one.
    LeaseLost(Duration),
}

impl Fault {
    /// Whether the fault can happen to calls of this operation: [`Duplicated`](Self::Duplicated) needs a
    /// put, [`LeaseLost`](Self::LeaseLost) an update or delete. A call of [`Operation::Apply`] may hold
    /// either. [`Operation::Open`] is no call to an open backend.
    #[must_use]
    pub fn applies_to(&self, operation: Operation) -> bool {
        match self {
            Self::Duplicated => matches!(operation, Operation::Put | Operation::Apply),
            Self::LeaseLost(_) => matches!(
                operation,
                Operation::Update | Operation::Delete | Operation::Apply
            ),
            _ => operation != Operation::Open,
        }
    }
}

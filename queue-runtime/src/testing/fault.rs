use std::time::Duration;

use queue_core::backend::{
    BrowsedMessage, Lease, OpOutcome, Page, PeekedMessage, PutReceipt, ReceivedMessage,
};
use queue_core::{ErrorKind, Operation, Timestamp};

/// A fault of one call to a [`FaultInjector`](super::FaultInjector).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::error::Operation;
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
    /// [`Outcome::Unknown`](crate::error::Outcome::Unknown).
    AnswerLost,
    /// The call is not carried out, and fails as [`Fault::AnswerLost`] does.
    RequestLost,
    /// The call is not carried out, and fails with this kind and
    /// [`Outcome::NotDone`](crate::error::Outcome::NotDone).
    Refused(ErrorKind),
    /// The call is not carried out, and fails as [`Throttled`](ErrorKind::Throttled), with this delay
    /// before a retry, if any.
    Throttled(Option<Duration>),
    /// The call starts after this delay, on Tokio's timer.
    Delayed(Duration),
    /// The call starts when [`release`](super::FaultInjector::release) is called. A call whose future is dropped while
    /// it is stalled is not carried out.
    Stalled,
    /// The call is carried out, and its answer arrives when
    /// [`release`](super::FaultInjector::release) is called.
    AnswerStalled,
    /// Every put of the call is carried out twice; the answer is the answer of the first put. A [conditional
    /// put](crate::backend::BackendExt::put_if) is not carried out twice, because its second time has no effect.
    Duplicated,
    /// Every put of the call becomes visible this much later than it asks for, so that later messages overtake
    /// it.
    VisibleLater(Duration),
    /// Another client receives the message before the call is carried out, holds it for this long, and never settles
    /// it. The receipt of the failed call is stale.
    ///
    /// The fault also receives and releases the messages ahead of its message in the queue: their dequeue counts rise
    /// by one.
    LeaseLost(Duration),
    /// The storage answers a receive with up to this many messages more than were asked for.
    Surplus(usize),
    /// The call is not carried out: the backend panics.
    Panics,
}

impl Fault {
    /// Returns whether the fault can happen to calls of this operation.
    ///
    /// [`Duplicated`](Self::Duplicated) and [`VisibleLater`](Self::VisibleLater) require a put,
    /// [`LeaseLost`](Self::LeaseLost) an update or delete; a call of [`Operation::Apply`] may contain either.
    /// [`Surplus`](Self::Surplus) requires a receive. No fault applies to [`Operation::Open`], which is not a call
    /// to a backend.
    #[must_use]
    pub fn applies_to(&self, operation: Operation) -> bool {
        match self {
            Self::Duplicated | Self::VisibleLater(_) => {
                matches!(operation, Operation::Put | Operation::Apply)
            }
            Self::LeaseLost(_) => matches!(
                operation,
                Operation::Update | Operation::Delete | Operation::Apply
            ),
            Self::Surplus(_) => operation == Operation::Receive,
            _ => operation != Operation::Open,
        }
    }
}

/// The difference between the storage's clock and the actual time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Skew {
    Ahead(Duration),
    Behind(Duration),
}

impl Skew {
    pub(super) const NONE: Self = Self::Ahead(Duration::ZERO);

    pub(super) fn put(self, mut put: PutReceipt) -> PutReceipt {
        self.shift(&mut put.inserted_at);
        self.shift(&mut put.visible_at);
        put.expires_at.iter_mut().for_each(|at| self.shift(at));
        put
    }

    pub(super) fn received(self, mut message: ReceivedMessage) -> ReceivedMessage {
        self.shift(&mut message.inserted_at);
        self.shift(&mut message.received_at);
        self.shift(&mut message.visible_at);
        message.expires_at.iter_mut().for_each(|at| self.shift(at));
        message
    }

    pub(super) fn peeked(self, mut message: PeekedMessage) -> PeekedMessage {
        self.shift(&mut message.inserted_at);
        message.expires_at.iter_mut().for_each(|at| self.shift(at));
        message
    }

    pub(super) fn page(self, mut page: Page) -> Page {
        self.shift(&mut page.now);
        let messages = page.messages.into_iter();
        page.messages = messages.map(|one| self.browsed(one)).collect();
        page
    }

    pub(super) fn browsed(self, mut message: BrowsedMessage) -> BrowsedMessage {
        self.shift(&mut message.inserted_at);
        self.shift(&mut message.read_at);
        self.shift(&mut message.visible_at);
        message.expires_at.iter_mut().for_each(|at| self.shift(at));
        message
    }

    pub(super) fn lease(self, mut lease: Lease) -> Lease {
        self.shift(&mut lease.visible_at);
        lease
    }

    pub(super) fn outcome(self, outcome: OpOutcome) -> OpOutcome {
        match outcome {
            OpOutcome::Put(put) => OpOutcome::Put(self.put(put)),
            OpOutcome::Updated(lease) => OpOutcome::Updated(self.lease(lease)),
            other => other,
        }
    }

    fn shift(self, time: &mut Timestamp) {
        *time = match self {
            Self::Ahead(by) => time.checked_add(by).unwrap_or(Timestamp::MAX),
            Self::Behind(by) => time.checked_sub(by).unwrap_or(Timestamp::MIN),
        };
    }
}

//! The lease on a received message: one owner of its pop receipt.
//!
//! ```text
//!             answered
//!            ┌────────┐
//!            ▼        │
//!          Held ──────┘◄── renewal answered ─────┐
//!           │ │                                  │
//!           │ └── update or delete unanswered ─► Doubtful
//!           │                                    │
//!           ├── settled ──────► Settled ◄────────┤ settled, or gone after a settlement of our own
//!           └── gone, or the ─► Lost ◄───────────┘ the certain end
//!               certain end
//! ```
//!
//! Every transition stands in `docs/states.md`.
//!
//! Renewals and settlements lock the same state, so one never overtakes the other. A renewal that got
//! no answer may have changed the receipt: from then on a stale receipt proves nothing, and only the
//! moment after which no lease can be left ends it. [`Keeper`] decides when to renew.

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend, Lease as NewLease, PopReceipt, ReceivedMessage, StorageId};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};
use tokio::sync::{Mutex, MutexGuard as AsyncGuard};
use tokio_util::sync::CancellationToken;

use crate::keeper::Keeper;

/// The right to settle one received message. Dropping it stops the renewals and settles nothing.
#[derive(Debug)]
pub(crate) struct Lease {
    shared: Arc<Shared>,
    keeper: Keeper,
}

/// What the holder of a lease and the keeper share.
pub(crate) struct Shared {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    pub(crate) queue: QueueName,
    pub(crate) id: StorageId,
    pub(crate) visibility: Duration,
    pub(crate) renew_until: Duration,
    pub(crate) state: Mutex<State>,
    timing: StdMutex<Timing>,
    lost: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct State {
    hold: Hold,
    /// Whether an update or delete of ours went unanswered.
    pub(crate) doubtful: bool,
    /// The last settlement of ours that went unanswered.
    unanswered: Option<SettlementKind>,
}

/// What a settlement does to the message itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettlementKind {
    Delete,
    PutBack,
}

#[derive(Debug)]
enum Hold {
    Held(PopReceipt),
    Settled,
    Lost,
}

/// Moments on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// When the keeper looks at the lease next, and the entry's number there.
    pub(crate) due: Option<(Duration, u64)>,
    /// Until when the lease that we know of lasts at least.
    pub(crate) known_end: Duration,
    /// When no lease of ours can be left.
    pub(crate) certain_end: Duration,
    /// Whether nobody is there any more to settle the message.
    pub(crate) abandoned: bool,
}

/// A lease whose state is locked: nobody renews it meanwhile.
pub(crate) struct Locked<'a> {
    lease: &'a Lease,
    state: AsyncGuard<'a, State>,
}

impl Lease {
    /// Takes over a message that was received with `visibility`, by a call that was made at
    /// `asked_at`, and has it renewed until `renew_for` from then.
    pub(crate) fn hold(
        keeper: &Keeper,
        queue: &QueueName,
        message: &ReceivedMessage,
        visibility: Duration,
        asked_at: Duration,
        renew_for: Duration,
    ) -> Self {
        let shared = Arc::new(Shared {
            backend: Arc::clone(keeper.backend()),
            clock: Arc::clone(keeper.clock()),
            queue: queue.clone(),
            id: message.id.clone(),
            visibility,
            renew_until: asked_at.saturating_add(renew_for),
            state: Mutex::new(State {
                hold: Hold::Held(message.receipt.clone()),
                doubtful: false,
                unanswered: None,
            }),
            timing: StdMutex::new(Timing {
                due: None,
                known_end: asked_at.saturating_add(visibility),
                certain_end: keeper.clock().monotonic().saturating_add(visibility),
                abandoned: false,
            }),
            lost: CancellationToken::new(),
        });
        keeper.schedule(&shared, asked_at.saturating_add(visibility / 2));
        Self {
            shared,
            keeper: keeper.clone(),
        }
    }

    /// Cancelled once the lease is certainly lost.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.shared.lost
    }

    pub(crate) fn queue(&self) -> &QueueName {
        &self.shared.queue
    }

    pub(crate) fn id(&self) -> &StorageId {
        &self.shared.id
    }

    /// Stops the renewals, as dropping does, while others still hold the message.
    pub(crate) fn abandon(&self) {
        self.keeper.forget(&self.shared);
    }

    /// Waits for a renewal on the way and keeps further ones off.
    pub(crate) async fn lock(&self) -> Locked<'_> {
        Locked {
            lease: self,
            state: self.shared.state.lock().await,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.forget(&self.shared);
    }
}

impl Locked<'_> {
    /// The receipt, while the message is ours as far as we know.
    pub(crate) fn receipt(&self) -> Result<PopReceipt, Error> {
        match &self.state.hold {
            Hold::Held(receipt) => Ok(receipt.clone()),
            Hold::Settled | Hold::Lost => {
                Err(Error::new(ErrorKind::ReceiptMismatch, Operation::Update)
                    .with_queue(&self.lease.shared.queue)
                    .with_detail(format!(
                        "the lease of message {} has ended",
                        self.lease.id()
                    )))
            }
        }
    }

    /// Whether an operation of ours went unanswered, so that a stale receipt proves nothing.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.state.doubtful
    }

    /// A settlement of ours went unanswered: from now on a stale receipt proves nothing else.
    pub(crate) fn settlement_unanswered(&mut self, kind: SettlementKind) {
        self.state.doubtful = true;
        self.state.unanswered = Some(kind);
    }

    /// The last settlement of ours that went unanswered, in this call or an earlier one.
    pub(crate) fn unanswered_settlement(&self) -> Option<SettlementKind> {
        self.state.unanswered
    }

    pub(crate) fn queue(&self) -> &QueueName {
        self.lease.queue()
    }

    /// How long the lease can last at most.
    pub(crate) fn remaining(&self) -> Duration {
        let shared = &self.lease.shared;
        shared
            .timing()
            .certain_end
            .saturating_sub(shared.clock.monotonic())
    }

    /// The message is gone from us for good, as we wanted.
    pub(crate) fn settled(&mut self) {
        self.state.hold = Hold::Settled;
        self.lease.keeper.forget(&self.lease.shared);
    }

    /// The message belongs to somebody else, or nobody.
    pub(crate) fn lose(&mut self) {
        self.state.hold = Hold::Lost;
        self.lease.shared.lost.cancel();
        self.lease.keeper.forget(&self.lease.shared);
    }

    /// Writes a new body and keeps the message leased.
    pub(crate) async fn rewrite(&mut self, body: Bytes) -> Result<(), Error> {
        let lease = self.lease;
        lease
            .shared
            .extend(&mut self.state, Some(body))
            .await
            .map(|_| ())
    }
}

impl State {
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.hold, Hold::Held(_))
    }
}

impl Shared {
    pub(crate) fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the lease, with a deadline that leaves time to try again.
    pub(crate) async fn extend(
        &self,
        state: &mut State,
        body: Option<Bytes>,
    ) -> Result<NewLease, Error> {
        let Hold::Held(receipt) = &state.hold else {
            return Err(Error::new(ErrorKind::ReceiptMismatch, Operation::Update));
        };
        let asked_at = self.clock.monotonic();
        let remaining = self.timing().certain_end.saturating_sub(asked_at);
        let deadline = (remaining / 2).max(Duration::from_millis(100));
        let answer = tokio::select! {
            answer = self.backend.update(&self.queue, &self.id, receipt, self.visibility, body) => answer,
            () = self.clock.sleep(deadline) => Err(
                Error::new(ErrorKind::Timeout, Operation::Update)
                    .with_queue(&self.queue)
                    .with_outcome(Outcome::Unknown),
            ),
        };
        let answered_at = self.clock.monotonic();
        let mut timing = self.timing();
        match &answer {
            Ok(lease) => {
                timing.known_end = asked_at.saturating_add(self.visibility);
                timing.certain_end = answered_at.saturating_add(self.visibility);
                state.hold = Hold::Held(lease.receipt.clone());
                state.doubtful = false;
            }
            Err(error) if error.outcome() == Outcome::Unknown => {
                timing.certain_end = answered_at.saturating_add(self.visibility);
                state.doubtful = true;
            }
            Err(_) => {}
        }
        answer
    }

    /// Finds that the lease has ended.
    pub(crate) fn lose(&self, state: &mut State, why: &str) {
        tracing::warn!(queue = %self.queue, id = %self.id, "lost a lease: {why}");
        state.hold = Hold::Lost;
        self.lost.cancel();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("queue", &self.queue)
            .field("id", &self.id)
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend, PopReceipt, ReceivedMessage, StorageId};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};
use tokio::sync::Mutex;

use super::cancellation::{Cancellation, Cause};
use crate::schedule::Ticket;

/// The state of a lease, shared by its owner and the renewals.
pub(super) struct Leased {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    pub(super) queue: QueueName,
    pub(super) id: StorageId,
    pub(super) visibility: Duration,
    pub(super) state: Mutex<State>,
    term: StdMutex<Term>,
    /// Its entry in the schedule of renewals, closed once the owner no longer needs the lease.
    pub(super) ticket: Ticket,
    pub(super) cancellation: Arc<Cancellation>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) hold: Hold,
    /// Whether an update or delete got no answer.
    pub(super) doubtful: bool,
    /// The last settlement that got no answer.
    pub(super) unanswered: Option<SettlementKind>,
}

#[derive(Debug)]
pub(super) enum Hold {
    Held(PopReceipt),
    Settled,
    Lost,
}

/// What a settlement does to the message itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettlementKind {
    Delete,
    PutBack,
}

/// The end of the lease and of its renewals, on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    /// The earliest time at which the last confirmed lease can end.
    pub(super) known_end: Duration,
    /// The time after which the lease cannot be valid, even if unanswered renewals were carried out.
    pub(super) certain_end: Duration,
    /// When renewing stops.
    pub(super) renew_until: Duration,
}

/// A receive that returned a message: when it was sent and answered, on the monotonic clock, and the
/// requested visibility timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) asked_at: Duration,
    pub(crate) answered_at: Duration,
    pub(crate) visibility: Duration,
}

impl Leased {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        queue: &QueueName,
        message: &ReceivedMessage,
        receive: Receive,
        renew_for: Duration,
    ) -> Self {
        let Receive {
            asked_at,
            answered_at,
            visibility,
        } = receive;
        Self {
            backend,
            clock,
            queue: queue.clone(),
            id: message.id.clone(),
            visibility,
            state: Mutex::new(State {
                hold: Hold::Held(message.receipt.clone()),
                doubtful: false,
                unanswered: None,
            }),
            term: StdMutex::new(Term {
                known_end: asked_at.saturating_add(visibility),
                certain_end: answered_at.saturating_add(visibility),
                renew_until: asked_at.saturating_add(renew_for),
            }),
            ticket: Ticket::default(),
            cancellation: Arc::default(),
        }
    }

    pub(super) fn term(&self) -> Term {
        *self.lock_term()
    }

    pub(super) fn renew_until(&self, at: Duration) {
        self.lock_term().renew_until = at;
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.clock.monotonic() >= self.term().known_end
    }

    /// Returns how long the lease can last at most.
    pub(super) fn remaining(&self) -> Duration {
        let end = self.term().certain_end;
        end.saturating_sub(self.clock.monotonic())
    }

    /// Renews the lease, and replaces the body if one is given. Gives up after half of the remaining lease,
    /// which leaves time for another try.
    pub(super) async fn extend(&self, state: &mut State, body: Option<Bytes>) -> Result<(), Error> {
        let Hold::Held(receipt) = &state.hold else {
            return Err(self.ended());
        };
        let asked_at = self.clock.monotonic();
        let deadline = (self.remaining() / 2).max(Duration::from_millis(100));
        let answer = tokio::select! {
            answer = self.backend.update(&self.queue, &self.id, receipt, self.visibility, body) => answer,
            () = self.clock.sleep(deadline) => Err(
                Error::new(ErrorKind::Timeout, Operation::Update)
                    .with_queue(&self.queue)
                    .with_outcome(Outcome::Unknown),
            ),
        };
        let answered_at = self.clock.monotonic();
        let mut term = self.lock_term();
        match &answer {
            Ok(lease) => {
                term.known_end = asked_at.saturating_add(self.visibility);
                term.certain_end = answered_at.saturating_add(self.visibility);
                state.hold = Hold::Held(lease.receipt.clone());
                state.doubtful = false;
            }
            Err(error) if error.outcome() == Outcome::Unknown => {
                term.certain_end = answered_at.saturating_add(self.visibility);
                state.doubtful = true;
            }
            Err(_) => {}
        }
        answer.map(drop)
    }

    /// Records that the lease is lost, and cancels the work on the message.
    pub(super) fn lose(&self, state: &mut State) {
        state.hold = Hold::Lost;
        self.cancellation.cancel(Cause::LeaseLost);
    }

    /// Returns the error of an operation that needs the lease after it has ended.
    pub(super) fn ended(&self) -> Error {
        Error::new(ErrorKind::ReceiptMismatch, Operation::Update)
            .with_queue(&self.queue)
            .with_detail(format!("the lease of message {} has ended", self.id))
    }

    fn lock_term(&self) -> MutexGuard<'_, Term> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn is_held(&self) -> bool {
        matches!(self.hold, Hold::Held(_))
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("queue", &self.queue)
            .field("id", &self.id)
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

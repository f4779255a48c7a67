use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend, PopReceipt, ReceivedMessage, StorageId};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};
use tokio::sync::Mutex;

use super::cancellation::{Cancellation, Cause};
use super::promise::Promise;
use super::storage_time::{MARGIN, Receive, StorageTime};
use super::unanswered::Unanswered;
use crate::schedule::Ticket;

/// The state of a lease, shared by its owner and the renewals.
pub(super) struct Leased {
    pub(super) backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    pub(super) queue: QueueName,
    pub(super) id: StorageId,
    /// The visibility timeout of the renewals.
    pub(super) visibility: Duration,
    pub(super) storage_time: StorageTime,
    expiry: Expiry,
    pub(super) state: Mutex<State>,
    term: StdMutex<Term>,
    /// The receipt, as far as its changes were answered. Written under the lock of `state`.
    receipt: StdMutex<PopReceipt>,
    pub(super) promised: StdMutex<Promise>,
    /// Its entry in the schedule of renewals, closed once the owner no longer needs the lease.
    pub(super) ticket: Ticket,
    pub(super) cancellation: Arc<Cancellation>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) hold: Hold,
    pub(super) unanswered: Unanswered,
}

#[derive(Debug)]
pub(super) enum Hold {
    Held,
    Settled,
    Lost,
}

/// The moment at which the message expires, on the monotonic clock: [`Duration::MAX`] for never.
#[derive(Debug, Clone, Copy)]
struct Expiry {
    /// The estimate, counted from the request.
    known: Duration,
    /// The time after which the message has certainly expired.
    certain: Duration,
}

/// The end of the lease and of its renewals, on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    /// The earliest time at which the last confirmed lease can end.
    pub(super) known_end: Duration,
    /// The visibility timeout of that lease.
    pub(super) visibility: Duration,
    /// The time after which the lease cannot be valid, even if unanswered renewals were carried out.
    pub(super) certain_end: Duration,
    /// When renewing stops.
    pub(super) renew_until: Duration,
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
            renewal,
        } = receive;
        let storage_time = StorageTime::of(message, receive);
        let expiry = Expiry {
            known: message
                .expires_at
                .map_or(Duration::MAX, |at| storage_time.earliest(at)),
            certain: message.expires_at.map_or(Duration::MAX, |at| {
                storage_time.latest(at).saturating_add(MARGIN)
            }),
        };
        Self {
            backend,
            clock,
            queue: queue.clone(),
            id: message.id.clone(),
            visibility: renewal,
            storage_time,
            expiry,
            state: Mutex::new(State {
                hold: Hold::Held,
                unanswered: Unanswered::default(),
            }),
            term: StdMutex::new(Term {
                known_end: asked_at.saturating_add(visibility).min(expiry.known),
                visibility,
                certain_end: answered_at.saturating_add(visibility).min(expiry.certain),
                renew_until: asked_at.saturating_add(renew_for),
            }),
            receipt: StdMutex::new(message.receipt.clone()),
            promised: StdMutex::new(Promise::None),
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

    /// Returns the time of the monotonic clock.
    pub(super) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.now() >= self.term().known_end
    }

    /// Returns how long the lease can last at most.
    pub(super) fn remaining(&self) -> Duration {
        let end = self.term().certain_end;
        end.saturating_sub(self.clock.monotonic())
    }

    /// Returns when to renew the lease: half its visibility timeout before its end.
    pub(super) fn renew_at(&self) -> Duration {
        let term = self.term();
        term.known_end.saturating_sub(term.visibility / 2)
    }

    /// Whether the message has certainly expired.
    pub(super) fn has_expired(&self) -> bool {
        self.clock.monotonic() >= self.expiry.certain
    }

    /// Returns the visibility timeout of a renewal that is sent now: it ends before the message expires, and
    /// is zero if the message is about to.
    pub(super) fn next_visibility(&self) -> Duration {
        let latest_end = self.expiry.known.saturating_sub(MARGIN);
        let left = latest_end.saturating_sub(self.clock.monotonic());
        self.visibility.min(left)
    }

    /// Renews the lease, and replaces the body if one is given. Gives up after half of the remaining lease,
    /// which leaves time for another try, or after a quarter of the visibility timeout if the lease has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped before the answer, the renewal is recorded as unanswered.
    pub(super) async fn extend(&self, state: &mut State, body: Option<Bytes>) -> Result<(), Error> {
        if !state.is_held() {
            return Err(self.ended());
        }
        let receipt = self.receipt();
        let asked_at = self.clock.monotonic();
        let visibility = self.next_visibility();
        if visibility.is_zero() {
            return Err(self.expiring());
        }
        let deadline = match self.remaining() {
            Duration::ZERO => (self.visibility / 4).max(Duration::from_secs(2)),
            remaining => (remaining / 2).max(Duration::from_millis(100)),
        };
        let mut renewal = Renewal {
            leased: self,
            state,
            asked_at,
            visibility,
            answered: false,
        };
        let answer = tokio::select! {
            answer = self.backend.update(&self.queue, &self.id, &receipt, visibility, body) => answer,
            () = self.clock.sleep(deadline) => Err(
                Error::new(ErrorKind::Timeout, Operation::Update)
                    .with_queue(&self.queue)
                    .with_outcome(Outcome::Unknown),
            ),
        };
        renewal.answered = !matches!(&answer, Err(error) if error.outcome() == Outcome::Unknown);
        drop(renewal);
        let lease = answer?;
        let mut term = self.lock_term();
        term.known_end = asked_at.saturating_add(visibility);
        term.visibility = self.visibility;
        let end = self.clock.monotonic().saturating_add(visibility);
        term.certain_end = end.min(self.expiry.certain);
        *self.lock_receipt() = lease.receipt;
        // The receipt was valid until now: no unanswered request was carried out, nor can it be now.
        state.unanswered = Unanswered::default();
        Ok(())
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

    /// Returns the error of a renewal that would end after the message expires, which a service may refuse.
    fn expiring(&self) -> Error {
        Error::new(ErrorKind::InvalidInput, Operation::Update)
            .with_queue(&self.queue)
            .with_detail(format!("message {} is about to expire", self.id))
    }

    pub(super) fn receipt(&self) -> PopReceipt {
        self.lock_receipt().clone()
    }

    fn lock_receipt(&self) -> MutexGuard<'_, PopReceipt> {
        self.receipt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_term(&self) -> MutexGuard<'_, Term> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A renewal that the backend was asked for. Dropped without an answer, also by a panic, it is recorded as
/// unanswered.
struct Renewal<'a> {
    leased: &'a Leased,
    state: &'a mut State,
    asked_at: Duration,
    visibility: Duration,
    answered: bool,
}

impl Drop for Renewal<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let leased = self.leased;
        let mut term = leased.lock_term();
        // Before the expiry it may have made the lease shorter.
        let earliest = self.asked_at.saturating_add(self.visibility);
        term.known_end = term.known_end.min(earliest);
        let latest = leased.clock.monotonic().saturating_add(self.visibility);
        term.certain_end = term.certain_end.max(latest.min(leased.expiry.certain));
        self.state.unanswered.renewal = true;
    }
}

impl State {
    pub(super) fn is_held(&self) -> bool {
        matches!(self.hold, Hold::Held)
    }

    /// Whether a request got no answer, so that a stale receipt does not prove that the lease is lost.
    pub(super) fn is_doubtful(&self) -> bool {
        self.unanswered.any()
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

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend, BackendExt as _, Mark, PopReceipt, ReceivedMessage, StorageId};
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Timestamp};
use tokio::sync::{Mutex, SetOnce};

use super::machine::{Expiry, Impossible, Machine, Renewal};
use super::renewal::Unrenewed;
use super::storage_time::{MARGIN, Receive, StorageTime};
use crate::kernel::delay_queue::{DelayQueue, Ticket};

/// What the leases of a service share.
#[derive(Debug)]
pub(super) struct LeasesShared {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) clock: Arc<dyn Clock>,
    /// The leases, by the time of their next renewal.
    pub(super) renewals: DelayQueue<Arc<Leased>>,
    pub(super) unrenewed: Unrenewed,
}

/// The state of a lease, shared by its owner and the renewals.
pub(super) struct Leased {
    pub(super) shared: Arc<LeasesShared>,
    pub(super) queue: QueueName,
    pub(super) id: StorageId,
    /// Whether the end of the message may make another one of its group visible.
    pub(super) has_group: bool,
    pub(super) storage_time: StorageTime,
    /// Taken for every request to the backend, so that no request overtakes another.
    pub(super) turn: Mutex<RequestTurn>,
    machine: StdMutex<Machine>,
    /// The body that renewals write, if any.
    pub(super) body: OnceLock<Box<dyn Fn() -> Option<Bytes> + Send + Sync>>,
    /// The last receipt that the backend has answered with, written only by the holder of the turn.
    receipt: StdMutex<PopReceipt>,
    pub(super) promised: StdMutex<Promise>,
    /// The lease's entry in the schedule of renewals, closed once the owner no longer needs it.
    pub(super) ticket: Ticket,
    pub(super) cancellation: Arc<Cancellation>,
}

/// The right to send a request about the message, one at a time.
#[derive(Debug)]
pub(super) struct RequestTurn(());

impl Leased {
    pub(super) fn new(
        shared: Arc<LeasesShared>,
        queue: &QueueName,
        message: &ReceivedMessage,
        receive: Receive,
        renew_for: Duration,
    ) -> Self {
        let storage_time = StorageTime::of(message, receive);
        let expiry = Expiry::of(storage_time, message.expires_at);
        let renew_until = receive.asked_at.saturating_add(renew_for);
        Self {
            shared,
            queue: queue.clone(),
            id: message.id.clone(),
            has_group: message.fence.is_some(),
            storage_time,
            turn: Mutex::new(RequestTurn(())),
            body: OnceLock::new(),
            machine: StdMutex::new(Machine::new(receive, renew_until, expiry)),
            receipt: StdMutex::new(message.receipt.clone()),
            promised: StdMutex::new(Promise::None),
            ticket: Ticket::default(),
            cancellation: Arc::default(),
        }
    }

    /// Returns the time of the monotonic clock.
    pub(super) fn now(&self) -> Duration {
        self.shared.clock.monotonic()
    }

    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.hold()
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.machine().is_overdue(self.now())
    }

    /// Renews the lease, and replaces the body if one is given, whether a renewal is due or not.
    ///
    /// # Cancel safety
    /// As [`renew`](Self::renew).
    pub(super) async fn extend(
        &self,
        turn: &mut RequestTurn,
        body: Option<Bytes>,
    ) -> Result<(), Error> {
        let renewal = self.machine().renewal(self.now());
        match renewal {
            Ok(renewal) => self.renew(turn, renewal, body).await,
            Err(Impossible::Ended) => Err(self.ended()),
            Err(Impossible::Expiring) => Err(self.expiring()),
        }
    }

    /// Sends a renewal, and replaces the body if one is given.
    ///
    /// # Cancel safety
    /// If the future is dropped before the answer, the renewal is recorded as unanswered.
    pub(super) async fn renew(
        &self,
        _turn: &mut RequestTurn,
        renewal: Renewal,
        body: Option<Bytes>,
    ) -> Result<(), Error> {
        let body = body.or_else(|| self.body.get().and_then(|body| body()));
        let receipt = self.receipt();
        let (queue, id, visibility) = (&self.queue, &self.id, renewal.visibility);
        let mut sent = Sent {
            leased: self,
            renewal,
            answered: false,
        };
        let answer = tokio::select! {
            answer = self.shared.backend.renew(queue, id, &receipt, visibility, body) => answer,
            () = self.shared.clock.sleep(renewal.patience) => Err(
                Error::new(ErrorKind::Timeout, Operation::Update)
                    .with_queue(queue)
                    .with_outcome(Outcome::Unknown),
            ),
        };
        sent.answered = !matches!(&answer, Err(error) if error.outcome() == Outcome::Unknown);
        drop(sent);
        let lease = answer?;
        let now = self.now();
        let mut machine = self.machine();
        machine.renewed(renewal, now);
        *self.receipt.hold() = lease.receipt;
        Ok(())
    }

    /// Stops renewing the lease.
    pub(super) fn abandon(&self) {
        self.machine().abandon();
        self.shared.renewals.close(&self.ticket);
    }

    /// Records that the lease is lost, and cancels the work on the message.
    pub(super) fn lose(&self) {
        self.machine().lost();
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
        self.receipt.hold().clone()
    }
}

/// A renewal that the backend was asked for, recorded as unanswered if dropped without an answer, also by a panic.
struct Sent<'a> {
    leased: &'a Leased,
    renewal: Renewal,
    answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let now = self.leased.now();
            self.leased.machine().renewal_unanswered(self.renewal, now);
        }
    }
}

impl Expiry {
    fn of(storage_time: StorageTime, expires_at: Option<Timestamp>) -> Self {
        Self {
            known: expires_at.map_or(Duration::MAX, |at| storage_time.earliest(at)),
            certain: expires_at.map_or(Duration::MAX, |at| {
                storage_time.latest(at).saturating_add(MARGIN)
            }),
        }
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("queue", &self.queue)
            .field("id", &self.id)
            .field("machine", &self.machine)
            .finish_non_exhaustive()
    }
}

/// The completion of the message within an application's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// There was no completion.
    None,
    /// The outcome of the transaction is not known yet.
    Open {
        mark: Mark,
        /// When the completion was written, on the monotonic clock.
        written_at: Duration,
    },
    Committed,
    RolledBack,
}

/// The signal that work on a message should stop. The first cause is kept; later causes are ignored.
#[derive(Debug, Default)]
pub(crate) struct Cancellation(SetOnce<Cause>);

/// Why work on a message should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The lease was certainly lost.
    LeaseLost,
    /// The handler timeout is over.
    TimedOut,
    /// The listener is stopping.
    Stopping,
    /// Another consumer may have taken over the work of the message's key.
    ClaimLost,
}

impl Cancellation {
    /// Sends the signal, unless it was sent before.
    pub(crate) fn cancel(&self, cause: Cause) {
        // An error means that the signal was sent before.
        let _ = self.0.set(cause);
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        self.0.get().copied()
    }

    /// Waits for the signal.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn cancelled(&self) -> Cause {
        *self.0.wait().await
    }
}

#[cfg(test)]
mod tests;

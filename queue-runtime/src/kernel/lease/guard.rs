use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{PopReceipt, ReceivedMessage, StorageId};
use queue_core::{Error, QueueName};
use tokio::sync::MutexGuard;

use super::completion::Completer;
use super::proof::{Gone, LastOp, Proof};
use super::renewal::Renewals;
use super::state::{Cancellation, Leased, Promise, RequestTurn};
use super::storage_time::{Receive, StorageTime};
use super::unanswered::{Earlier, Intent};

/// The lease of one received message, with the right to settle it. Dropping the `Lease` stops the renewals and settles
/// nothing.
#[derive(Debug)]
pub(crate) struct Lease(pub(super) Arc<Leased>);

/// Writes new bodies of a leased message, without the right to settle it.
#[derive(Debug, Clone)]
pub(crate) struct Rewriter(Arc<Leased>);

/// A locked lease, which is not renewed until the `Locked` is dropped.
pub(crate) struct Locked<'a> {
    lease: &'a Lease,
    turn: MutexGuard<'a, RequestTurn>,
}

impl Lease {
    /// Takes over the lease of a received message, and renews it until `renew_for` after the receive was sent.
    pub(crate) fn hold(
        renewals: &Renewals,
        queue: &QueueName,
        message: &ReceivedMessage,
        receive: Receive,
        renew_for: Duration,
    ) -> Self {
        let shared = Arc::clone(&renewals.0);
        let receive = receive.of(message);
        let leased = Leased::new(shared, queue, message, receive, renew_for);
        let leased = Arc::new(leased);
        let due = leased.machine().renew_at();
        leased.schedule(due);
        Self(leased)
    }

    /// Returns the signal that work on the message should stop, which a lost lease sends.
    pub(crate) fn cancellation(&self) -> &Arc<Cancellation> {
        &self.0.cancellation
    }

    pub(crate) fn queue(&self) -> &QueueName {
        &self.0.queue
    }

    pub(crate) fn id(&self) -> &StorageId {
        &self.0.id
    }

    /// Whether the message has a [group](queue_core::backend::NewMessage::group).
    pub(crate) fn has_group(&self) -> bool {
        self.0.has_group
    }

    /// Has the lease renewed until this moment on the monotonic clock.
    pub(crate) fn renew_until(&self, at: Duration) {
        self.0.machine().renew_until(at);
    }

    /// Whether the lease that we know of has ended.
    pub(crate) fn is_overdue(&self) -> bool {
        self.0.is_overdue()
    }

    /// Renews the lease if it has ended, as far as we know.
    ///
    /// The future does not borrow the lease. Run the future to its end, maybe in the background: an update that
    /// is dropped before its answer leaves the lease without its receipt.
    ///
    /// # Errors
    /// The renewal's error: [`is_lease_gone`](Error::is_lease_gone) also if the message is about to expire, and so
    /// cannot be leased again.
    pub(crate) fn renew_if_overdue(
        &self,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leased = Arc::clone(&self.0);
        async move {
            let mut turn = leased.turn.lock().await;
            let next = {
                let (machine, now) = (leased.machine(), leased.now());
                machine.is_overdue(now).then(|| machine.renewal(now))
            };
            match next {
                Some(Ok(renewal)) => leased.renew(&mut turn, renewal, None).await,
                Some(Err(_)) => Err(leased.ended()),
                None => Ok(()),
            }
        }
    }

    /// Returns how long the lease certainly lasts from `now` on, on the monotonic clock.
    pub(crate) fn lasts_for(&self, now: Duration) -> Duration {
        self.0.machine().lasts_for(now)
    }

    /// Whether the lease certainly lasts until this moment on the monotonic clock, or as long as the message can be leased.
    pub(crate) fn lasts_until(&self, at: Duration) -> bool {
        self.0.machine().lasts_until(at)
    }

    /// Has the lease last at least until this moment on the monotonic clock, or as long as the message can be leased: renews
    /// it unless it does.
    ///
    /// # Errors
    /// The errors of [`renew_if_overdue`](Self::renew_if_overdue).
    ///
    /// # Cancel safety
    /// Cancel safe: the renewal goes on to its answer, or is recorded as unanswered.
    pub(crate) async fn last_until(&self, at: Duration) -> Result<(), Error> {
        let leased = &self.0;
        if leased.machine().lasts_until(at) {
            return Ok(());
        }
        let mut turn = leased.turn.lock().await;
        if leased.machine().lasts_until(at) {
            return Ok(());
        }
        leased.extend(&mut turn, None).await
    }

    /// Has each renewal write what `body` returns, if anything.
    pub(crate) fn write_with_renewals(
        &self,
        body: impl Fn() -> Option<Bytes> + Send + Sync + 'static,
    ) {
        // An error means that there is a function already.
        drop(self.0.body.set(Box::new(body)));
    }

    /// Whether the message is settled, or the lease lost or given up.
    pub(crate) fn is_over(&self) -> bool {
        let machine = self.0.machine();
        !machine.is_held() || machine.is_abandoned()
    }

    /// The visibility timeout of the renewals.
    pub(crate) fn renewal(&self) -> Duration {
        self.0.machine().renewal_visibility()
    }

    /// The last known receipt, only for what learns otherwise whether it is still valid.
    pub(crate) fn receipt(&self) -> PopReceipt {
        self.0.receipt()
    }

    /// Returns a writer of new bodies, which may outlive the lease.
    pub(crate) fn rewriter(&self) -> Rewriter {
        Rewriter(Arc::clone(&self.0))
    }

    /// Returns the right to complete the message within a transaction, which may outlive the lease.
    pub(crate) fn completer(&self) -> Completer {
        Completer(Arc::clone(&self.0))
    }

    /// Whether the message was completed within a transaction, whatever became of that.
    pub(crate) fn is_promised(&self) -> bool {
        *self.0.promise() != Promise::None
    }

    /// Returns the storage's time.
    pub(crate) fn storage_time(&self) -> StorageTime {
        self.0.storage_time
    }

    /// Stops the renewals, as dropping the lease does.
    pub(crate) fn abandon(&self) {
        self.0.abandon();
    }

    /// Returns the error of an operation that needs the lease after it has ended.
    pub(crate) fn ended(&self) -> Error {
        self.0.ended()
    }

    /// Waits for a renewal in progress and prevents further ones while the lock is held.
    pub(crate) async fn lock(&self) -> Locked<'_> {
        // The turn is mostly free, which costs less to find out than to wait.
        let turn = match self.0.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => self.0.turn.lock().await,
        };
        Locked { lease: self, turn }
    }
}

impl Rewriter {
    /// Writes a new body and keeps the message leased. Run the future to its end, as that of
    /// [`Lease::renew_if_overdue`].
    pub(crate) fn rewrite(
        &self,
        body: Bytes,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leased = Arc::clone(&self.0);
        async move {
            let mut turn = leased.turn.lock().await;
            leased.extend(&mut turn, Some(body)).await
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Locked<'_> {
    /// Returns the pop receipt.
    ///
    /// # Errors
    /// If the message is settled or the lease is known to be lost.
    pub(crate) fn receipt(&self) -> Result<PopReceipt, Error> {
        let leased = &self.lease.0;
        if leased.machine().is_held() {
            Ok(leased.receipt())
        } else {
            Err(leased.ended())
        }
    }

    /// Renews the lease, with the body that [renewals write](Lease::write_with_renewals).
    ///
    /// # Errors
    /// The errors of [`renew_if_overdue`](Lease::renew_if_overdue).
    pub(crate) async fn renew(&mut self) -> Result<(), Error> {
        self.lease.0.extend(&mut self.turn, None).await
    }

    /// Returns when the lease has ended at the latest, on the monotonic clock.
    pub(crate) fn certain_end(&self) -> Duration {
        self.lease.0.machine().certain_end()
    }

    /// Returns the unanswered settlements before one with this intent, in any call.
    pub(crate) fn before(&self, intent: &Intent) -> Earlier {
        self.lease.0.machine().before(intent)
    }

    /// Records that a settlement got no answer.
    pub(crate) fn settlement_unanswered(&mut self, intent: &Intent) {
        self.lease.0.machine().settlement_unanswered(intent);
    }

    /// Records that the answer to a settlement was a missing message or a stale receipt, and returns what that proves.
    pub(crate) fn settlement_gone(
        &mut self,
        request: LastOp,
        answer: Gone,
        intent: &Intent,
    ) -> Proof {
        let leased = &self.lease.0;
        let stale_receipts = leased.shared.backend.capabilities().stale_receipts;
        let now = leased.now();
        let asked = (request, answer);
        let proof = leased
            .machine()
            .settlement_gone(asked, stale_receipts, intent, now);
        match proof {
            Proof::CarriedOut => self.lease.abandon(),
            Proof::LeaseLost | Proof::Expired => self.lose(),
            Proof::NotCarriedOut | Proof::Nothing => {}
        }
        proof
    }

    /// Waits for the end of the transaction that completed the message, and finds out whether it was committed.
    ///
    /// # Errors
    /// If the transaction stays open for too long, or the storage fails.
    pub(crate) async fn conclude(&mut self) -> Result<Promise, Error> {
        let concluded = self.lease.0.conclude(&mut self.turn).await?;
        if concluded == Promise::Committed {
            self.lease.abandon();
        }
        Ok(concluded)
    }

    /// Records that the message was settled.
    pub(crate) fn settled(&mut self) {
        self.lease.0.machine().settled();
        self.lease.abandon();
    }

    /// Records that the lease is lost: another consumer has received the message, or it no longer exists.
    pub(crate) fn lose(&mut self) {
        self.lease.0.lose();
        self.lease.abandon();
    }
}

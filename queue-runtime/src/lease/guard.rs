use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{PopReceipt, ReceivedMessage, StorageId};
use queue_core::{Error, QueueName};
use tokio::sync::MutexGuard;

use super::cancellation::Cancellation;
use super::completion::Completer;
use super::promise::Promise;
use super::renewal::Renewals;
use super::state::{Hold, Leased, State};
use super::storage_time::{Receive, StorageTime};
use super::unanswered::{Earlier, Intent};

/// The lease of one received message, with the right to settle it. Dropping it stops the renewals and settles
/// nothing.
#[derive(Debug)]
pub(crate) struct Lease {
    leased: Arc<Leased>,
    renewals: Renewals,
}

/// Writes new bodies of a leased message, without the right to settle it.
#[derive(Debug, Clone)]
pub(crate) struct Rewriter(Arc<Leased>);

/// A locked lease, which is not renewed until this is dropped.
pub(crate) struct Locked<'a> {
    lease: &'a Lease,
    state: MutexGuard<'a, State>,
}

impl Lease {
    /// Takes over the lease of a received message. It is renewed until `renew_for` after the receive was
    /// sent.
    pub(crate) fn hold(
        renewals: &Renewals,
        queue: &QueueName,
        message: &ReceivedMessage,
        receive: Receive,
        renew_for: Duration,
    ) -> Self {
        Self {
            leased: renewals.hold(queue, message, receive, renew_for),
            renewals: renewals.clone(),
        }
    }

    /// Returns the signal that work on the message should stop. A lost lease sends it.
    pub(crate) fn cancellation(&self) -> &Arc<Cancellation> {
        &self.leased.cancellation
    }

    pub(crate) fn queue(&self) -> &QueueName {
        &self.leased.queue
    }

    pub(crate) fn id(&self) -> &StorageId {
        &self.leased.id
    }

    /// Has the lease renewed until this moment on the monotonic clock.
    pub(crate) fn renew_until(&self, at: Duration) {
        self.leased.renew_until(at);
    }

    /// Whether the lease that we know of has ended.
    pub(crate) fn is_overdue(&self) -> bool {
        self.leased.is_overdue()
    }

    /// Renews the lease if it has ended, as far as we know.
    ///
    /// The future does not borrow the lease. Run it to its end, in the background if need be: an update that
    /// is dropped before its answer leaves the lease without its receipt.
    ///
    /// # Errors
    /// That of the renewal. [`is_lease_gone`](Error::is_lease_gone) also if the message is about to expire,
    /// and so cannot be leased again.
    pub(crate) fn renew_if_overdue(
        &self,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leased = Arc::clone(&self.leased);
        async move {
            let mut state = leased.state.lock().await;
            match leased.is_overdue() {
                true if leased.next_visibility().is_zero() => Err(leased.ended()),
                true => leased.extend(&mut state, None).await,
                false => Ok(()),
            }
        }
    }

    /// Returns a writer of new bodies, which may outlive the lease.
    pub(crate) fn rewriter(&self) -> Rewriter {
        Rewriter(Arc::clone(&self.leased))
    }

    /// Returns the right to complete the message within a transaction, which may outlive the lease.
    pub(crate) fn completer(&self) -> Completer {
        Completer(Arc::clone(&self.leased))
    }

    /// Whether the message was completed within a transaction, whatever has become of it.
    pub(crate) fn is_promised(&self) -> bool {
        *self.leased.promise() != Promise::None
    }

    /// Returns the storage's time.
    pub(crate) fn storage_time(&self) -> StorageTime {
        self.leased.storage_time
    }

    /// Stops the renewals, as dropping the lease does.
    pub(crate) fn abandon(&self) {
        self.renewals.forget(&self.leased);
    }

    /// Returns the error of an operation that needs the lease after it has ended.
    pub(crate) fn ended(&self) -> Error {
        self.leased.ended()
    }

    /// Waits for a renewal in progress and prevents further ones while the lock is held.
    pub(crate) async fn lock(&self) -> Locked<'_> {
        Locked {
            lease: self,
            state: self.leased.state.lock().await,
        }
    }
}

impl Rewriter {
    /// Writes a new body and keeps the message leased. The future is as that of
    /// [`Lease::renew_if_overdue`].
    pub(crate) fn rewrite(
        &self,
        body: Bytes,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leased = Arc::clone(&self.0);
        async move {
            let mut state = leased.state.lock().await;
            leased.extend(&mut state, Some(body)).await
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
        match self.state.is_held() {
            true => Ok(self.lease.leased.receipt()),
            false => Err(self.lease.ended()),
        }
    }

    /// Records that a settlement got no answer.
    pub(crate) fn settlement_unanswered(&mut self, intent: &Intent) {
        self.state.unanswered.add_settlement(intent);
    }

    /// Returns the unanswered settlements before one with this intent, in this call or an earlier one.
    pub(crate) fn before(&self, intent: &Intent) -> Earlier {
        self.state.unanswered.before(intent)
    }

    pub(crate) fn renewal_unanswered(&self) -> bool {
        self.state.unanswered.renewal
    }

    /// Returns how long the lease can last at most.
    pub(crate) fn remaining(&self) -> Duration {
        self.lease.leased.remaining()
    }

    /// Finds out whether the transaction that completed the message was committed. Waits for its end.
    ///
    /// # Errors
    /// If it stays open for too long, or the storage fails.
    pub(crate) async fn conclude(&mut self) -> Result<Promise, Error> {
        let concluded = self.lease.leased.conclude(&mut self.state).await?;
        if concluded == Promise::Committed {
            self.lease.abandon();
        }
        Ok(concluded)
    }

    /// Records that the message was settled.
    pub(crate) fn settled(&mut self) {
        self.state.hold = Hold::Settled;
        self.lease.abandon();
    }

    /// Records that the lease is lost: another consumer has received the message, or it no longer exists.
    pub(crate) fn lose(&mut self) {
        self.lease.leased.lose(&mut self.state);
        self.lease.abandon();
    }
}

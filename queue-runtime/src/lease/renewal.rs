//! Renewing leases. Renewals run in the background, so handlers that block their threads lose no leases.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, ReceivedMessage};
use queue_core::clock::Clock;
use queue_core::{QueueName, RetryAdvice};
use tokio::task::JoinSet;

use super::machine::{Loss, Next};
use super::promise::Promise;
use super::state::{Leased, Shared, Turn};
use super::storage_time::Receive;
use crate::delay_queue::DelayQueue;
use crate::panic::{CaughtPanic, catch_async, log_caught};
use crate::policy::jitter;

/// Renews every lease of a service after half its visibility timeout. Clones share the leases.
#[derive(Debug, Clone)]
pub(crate) struct Renewals(Arc<Shared>);

impl Renewals {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared {
            backend,
            clock,
            renewals: DelayQueue::default(),
        }))
    }

    /// Renews leases forever. Renewals run concurrently, so a stalled one does not delay others.
    pub(crate) async fn run(self) {
        let mut renewing = JoinSet::new();
        loop {
            for lease in self.0.renewals.due(&*self.0.clock).await {
                let renewals = self.clone();
                renewing.spawn(async move {
                    let checked = catch_async(renewals.check(Arc::clone(&lease))).await;
                    if let Err(panic) = checked {
                        renewals.panicked(&lease, &panic).await;
                    }
                });
            }
            while renewing.try_join_next().is_some() {}
        }
    }

    /// Takes over the lease of a received message, and renews it until `renew_for` after the receive was
    /// sent.
    pub(super) fn hold(
        &self,
        queue: &QueueName,
        message: &ReceivedMessage,
        receive: Receive,
        renew_for: Duration,
    ) -> Arc<Leased> {
        let shared = Arc::clone(&self.0);
        let lease = Leased::new(shared, queue, message, receive, renew_for);
        let lease = Arc::new(lease);
        let due = lease.machine().renew_at();
        self.schedule(&lease, due);
        lease
    }

    /// Does what is to be done about the lease now, and schedules the next check.
    async fn check(&self, lease: Arc<Leased>) {
        let mut turn = lease.turn.lock().await;
        let next = lease.machine().check(lease.now());
        match next {
            Next::Renew(renewal) => match lease.renew(&mut turn, renewal, None).await {
                Ok(()) => {
                    let due = lease.machine().renew_at();
                    self.schedule(&lease, due);
                }
                Err(error) => {
                    let due = lease
                        .machine()
                        .renewal_failed(&error, lease.now(), jitter());
                    let Some(due) = due else {
                        return self.lost(&lease, &mut turn, Loss::Gone).await;
                    };
                    if !error.is_lease_gone() {
                        let (queue, id) = (&lease.queue, &lease.id);
                        tracing::warn!(%queue, %id, %error, "failed to renew a lease; will retry");
                    }
                    self.schedule(&lease, due);
                }
            },
            Next::CheckAt(due) => self.schedule(&lease, due),
            Next::Lost(loss) => self.lost(&lease, &mut turn, loss).await,
            Next::Nothing => {}
        }
    }

    /// Cancels the work on the message, unless a transaction has completed it.
    async fn lost(&self, lease: &Arc<Leased>, turn: &mut Turn, loss: Loss) {
        match lease.was_completed(turn).await {
            Some(true) => {}
            None if loss == Loss::Gone => {
                let due = lease.machine().certain_end();
                self.schedule(lease, due);
            }
            Some(false) | None => {
                let (queue, id, cause) = (&lease.queue, &lease.id, loss.cause());
                tracing::warn!(%queue, %id, cause, "lost a lease");
                lease.lose();
            }
        }
    }

    /// Tries again after a panic of the backend, which may have carried out the renewal.
    async fn panicked(&self, lease: &Arc<Leased>, panic: &CaughtPanic) {
        let (queue, id) = (&lease.queue, &lease.id);
        log_caught(
            || tracing::error!(%queue, %id, %panic, "the renewal of a lease panicked; will retry"),
        );
        let due = lease
            .machine()
            .retry_at(RetryAdvice::Temporary, lease.now(), 0.5);
        self.schedule(lease, due);
    }

    fn schedule(&self, lease: &Arc<Leased>, due: Duration) {
        self.0
            .renewals
            .schedule(&lease.ticket, due, Arc::clone(lease));
    }
}

impl Leased {
    /// Whether the message is gone because a transaction of the application's has completed it. `None` if that cannot
    /// be found out now.
    async fn was_completed(&self, turn: &mut Turn) -> Option<bool> {
        match self.conclude(turn).await {
            Ok(promise) => Some(promise == Promise::Committed),
            Err(error) => {
                let (queue, id) = (&self.queue, &self.id);
                tracing::warn!(%queue, %id, %error, "failed to learn whether a transaction was committed; will retry");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;

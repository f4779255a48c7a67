//! Renewing leases. Renewals run in the background, so handlers that block their threads lose no leases.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, ReceivedMessage};
use queue_core::clock::Clock;
use queue_core::{QueueName, Retry};
use tokio::task::JoinSet;

use super::promise::Promise;
use super::state::{Leased, State};
use super::storage_time::Receive;
use crate::panic::{CaughtPanic, catch_async, log_caught};
use crate::policy::{SHORTEST, jitter};
use crate::schedule::Schedule;

/// Renews every lease of a service after half its visibility timeout. Clones share the leases.
#[derive(Debug, Clone)]
pub(crate) struct Renewals {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    leases: Arc<Schedule<Arc<Leased>>>,
}

impl Renewals {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Self {
        Self {
            backend,
            clock,
            leases: Arc::default(),
        }
    }

    /// Renews leases forever. Renewals run concurrently, so a stalled one does not delay others.
    pub(crate) async fn run(self) {
        let mut renewing = JoinSet::new();
        loop {
            for lease in self.leases.due(&*self.clock).await {
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
        let (backend, clock) = (Arc::clone(&self.backend), Arc::clone(&self.clock));
        let lease = Leased::new(backend, clock, queue, message, receive, renew_for);
        let lease = Arc::new(lease);
        self.schedule(&lease, lease.renew_at());
        lease
    }

    /// Stops renewing the lease.
    pub(super) fn forget(&self, lease: &Leased) {
        self.leases.close(&lease.ticket);
    }

    /// Renews the lease or detects that it has ended, and schedules the next check.
    async fn check(&self, lease: Arc<Leased>) {
        let mut state = lease.state.lock().await;
        if !state.is_held() || lease.ticket.is_closed() {
            return;
        }
        let (now, term) = (self.clock.monotonic(), lease.term());
        if now >= term.certain_end {
            if lease.was_completed(&mut state).await == Some(true) {
                return;
            }
            let cause = match lease.has_expired() {
                true => "the message has expired",
                false => "it has expired",
            };
            warn_lost(&lease, cause);
            return lease.lose(&mut state);
        }
        if now < lease.renew_at() {
            // Renewed meanwhile: by the mark of the last chance, or before the handler was started.
            return self.schedule(&lease, lease.renew_at());
        }
        // At most one of several unanswered renewals was carried out, because it made the receipt of the
        // others stale. More of them would only postpone the certain end.
        let in_vain = state.is_doubtful() && now >= term.known_end;
        // Not if the message expires before the lease that a renewal would bring ends.
        let prolongs = now.saturating_add(lease.next_visibility()) > term.known_end;
        if now >= term.renew_until || in_vain || !prolongs {
            return self.schedule(&lease, term.certain_end);
        }
        match lease.extend(&mut state, None).await {
            Ok(()) => self.schedule(&lease, lease.renew_at()),
            Err(error) if error.is_lease_gone() && !state.is_doubtful() => {
                match lease.was_completed(&mut state).await {
                    Some(true) => return,
                    Some(false) => {}
                    None => return self.schedule(&lease, term.certain_end),
                }
                warn_lost(
                    &lease,
                    "the message was received by another consumer or deleted",
                );
                lease.lose(&mut state);
            }
            Err(error) if error.is_lease_gone() => self.schedule(&lease, term.certain_end),
            Err(error) => {
                let (queue, id) = (&lease.queue, &lease.id);
                tracing::warn!(%queue, %id, %error, "failed to renew a lease; will retry");
                let remaining = lease.remaining();
                let pause = match error.retry() {
                    Retry::Permanent => remaining,
                    Retry::Temporary => (lease.visibility / 16).mul_f64(0.5 + jitter()),
                    // Even if the service asks for a delay beyond the end of the lease, try once more
                    // before it.
                    Retry::Throttled(after) => after
                        .unwrap_or(lease.visibility / 8)
                        .min(remaining / 2)
                        .max(lease.visibility / 64),
                };
                let pause = pause.max(SHORTEST).min(remaining);
                let next = self.clock.monotonic().saturating_add(pause);
                self.schedule(&lease, next);
            }
        }
    }

    /// Tries again after a panic of the backend, which may have carried out the renewal.
    async fn panicked(&self, lease: &Arc<Leased>, panic: &CaughtPanic) {
        let (queue, id) = (&lease.queue, &lease.id);
        log_caught(
            || tracing::error!(%queue, %id, %panic, "the renewal of a lease panicked; will retry"),
        );
        let next = self.clock.monotonic().saturating_add(lease.visibility / 16);
        self.schedule(lease, next);
    }

    fn schedule(&self, lease: &Arc<Leased>, due: Duration) {
        self.leases.schedule(&lease.ticket, due, Arc::clone(lease));
    }
}

impl Leased {
    /// Whether the message is gone because a transaction of the application's has completed it. `None` if that cannot
    /// be found out now.
    async fn was_completed(&self, state: &mut State) -> Option<bool> {
        match self.conclude(state).await {
            Ok(promise) => Some(promise == Promise::Committed),
            Err(error) => {
                let (queue, id) = (&self.queue, &self.id);
                tracing::warn!(%queue, %id, %error, "failed to learn whether a transaction was committed; will retry");
                None
            }
        }
    }
}

fn warn_lost(lease: &Leased, cause: &str) {
    tracing::warn!(queue = %lease.queue, id = %lease.id, cause, "lost a lease");
}

#[cfg(test)]
mod tests;

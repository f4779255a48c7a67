//! Renewing leases. Renewals run in the background, so handlers that block their threads lose no leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{QueueName, RetryAdvice};
use tokio::task::JoinSet;

use super::machine::{Loss, Next};
use super::state::{Leased, LeasesShared, Promise, RequestTurn};
use crate::kernel::background::Background;
use crate::kernel::delay_queue::DelayQueue;
use crate::kernel::panic::{CaughtPanic, catch_async, log_caught};
use crate::kernel::policy::jitter;

/// Renews every lease of a service after half its visibility timeout. Clones share the leases.
#[derive(Debug, Clone)]
pub(crate) struct Renewals(pub(super) Arc<LeasesShared>);

impl Renewals {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(LeasesShared {
            backend,
            clock,
            renewals: DelayQueue::default(),
            unrenewed: Unrenewed::default(),
        }))
    }

    /// Has a task of the background renew leases of messages of a backend.
    pub(crate) fn start(
        name: &'static str,
        backend: &Arc<dyn Backend>,
        clock: &Arc<dyn Clock>,
        background: &Background,
    ) -> Self {
        let renewals = Self::new(Arc::clone(backend), Arc::clone(clock));
        let tasks = renewals.clone();
        background.keep_running(name, Arc::clone(clock), move || tasks.clone().run());
        renewals
    }

    /// Renews leases forever. Renewals run concurrently, so a stalled one does not delay others.
    pub(crate) async fn run(self) {
        let mut renewing = JoinSet::new();
        loop {
            for lease in self.0.renewals.due(&*self.0.clock).await {
                renewing.spawn(async move {
                    if let Err(panic) = catch_async(lease.check()).await {
                        lease.panicked(&panic);
                    }
                });
            }
            while renewing.try_join_next().is_some() {}
        }
    }
}

impl Leased {
    /// Has the lease checked at `due`.
    pub(super) fn schedule(self: &Arc<Self>, due: Duration) {
        let renewals = &self.shared.renewals;
        renewals.schedule(&self.ticket, due, Arc::clone(self));
    }

    /// Does what is to be done about the lease now, and schedules the next check.
    async fn check(self: &Arc<Self>) {
        let unrenewed = &self.shared.unrenewed;
        unrenewed.begun(self);
        let mut turn = self.turn.lock().await;
        let next = self.machine().check(self.now());
        if !matches!(next, Next::Renew(_)) {
            unrenewed.ended(self);
        }
        match next {
            Next::Renew(renewal) => match self.renew(&mut turn, renewal, None).await {
                Ok(()) => {
                    unrenewed.ended(self);
                    let due = self.machine().renew_at();
                    self.schedule(due);
                }
                Err(error) => {
                    let (now, jitter) = (self.now(), jitter());
                    let due = self.machine().renewal_failed(&error, now, jitter);
                    let Some(due) = due else {
                        return self.lost(&mut turn, Loss::Gone).await;
                    };
                    if !error.is_lease_gone() {
                        let (queue, id) = (&self.queue, &self.id);
                        tracing::warn!(%queue, %id, %error, "failed to renew a lease; will retry");
                    }
                    self.schedule(due);
                }
            },
            Next::CheckAt(due) => self.schedule(due),
            Next::Lost(loss) => self.lost(&mut turn, loss).await,
            Next::Nothing => {}
        }
    }

    /// Cancels the work on the message, unless a transaction has completed it.
    async fn lost(self: &Arc<Self>, turn: &mut RequestTurn, loss: Loss) {
        match self.was_completed(turn).await {
            Some(true) => {}
            None if loss == Loss::Gone => {
                let due = self.machine().certain_end();
                self.schedule(due);
            }
            Some(false) | None => {
                let (queue, id, cause) = (&self.queue, &self.id, loss.cause());
                tracing::warn!(%queue, %id, cause, "lost a lease");
                self.lose();
            }
        }
    }

    /// Tries the renewal again after a panic of the backend, which may have carried it out.
    fn panicked(self: &Arc<Self>, panic: &CaughtPanic) {
        let (queue, id, now) = (&self.queue, &self.id, self.now());
        log_caught(
            || tracing::error!(%queue, %id, %panic, "the renewal of a lease panicked; will retry"),
        );
        let due = self.machine().retry_at(RetryAdvice::Temporary, now, 0.5);
        self.schedule(due);
    }

    /// Whether the message is gone because an application's transaction has completed it. `None` if the
    /// transaction's outcome is not known now.
    async fn was_completed(&self, turn: &mut RequestTurn) -> Option<bool> {
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

/// The renewal of a lease that should have succeeded before now.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct OverdueRenewal {
    /// The queue of the message.
    pub queue: QueueName,
    /// How long ago the renewal was due.
    #[serde(
        serialize_with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required::serialize"
    )]
    pub since_due: Duration,
}

/// The leases whose renewal has begun, and has not succeeded.
#[derive(Debug, Default)]
pub(super) struct Unrenewed(Mutex<HashMap<usize, Weak<Leased>>>);

impl Unrenewed {
    pub(super) fn begun(&self, lease: &Arc<Leased>) {
        let mut leases = self.0.hold();
        if leases.len() == leases.capacity() {
            // Forgets leases whose renewals failed until their message was settled.
            leases.retain(|_, lease| lease.strong_count() > 0);
            let twice = 2 * leases.len();
            leases.shrink_to(twice);
        }
        leases.insert(key(lease), Arc::downgrade(lease));
    }

    pub(super) fn ended(&self, lease: &Arc<Leased>) {
        self.0.hold().remove(&key(lease));
    }

    fn leases(&self) -> Vec<Arc<Leased>> {
        self.0.hold().values().filter_map(Weak::upgrade).collect()
    }
}

fn key(lease: &Arc<Leased>) -> usize {
    Arc::as_ptr(lease).addr()
}

impl Renewals {
    /// Returns the renewal that has been due for longest, if it is late by more than a quarter of the visibility
    /// timeout.
    pub(crate) fn overdue(&self) -> Option<OverdueRenewal> {
        let shared = &self.0;
        let now = shared.clock.monotonic();
        // The next renewal is late only if nobody looks at the schedule.
        let next = shared.renewals.next_until(now);
        let leases = shared.unrenewed.leases().into_iter().chain(next);
        let overdue = leases.filter_map(|lease| {
            let since_due = lease.machine().overdue_for(now)?;
            let queue = lease.queue.clone();
            Some(OverdueRenewal { queue, since_due })
        });
        overdue.max_by_key(|overdue| overdue.since_due)
    }
}

#[cfg(test)]
mod tests;

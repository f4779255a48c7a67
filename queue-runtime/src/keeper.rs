//! The keeper: when each lease is renewed. It runs on the engine's thread, so handlers that block
//! theirs cost no lease.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::Retry;
use queue_core::backend::Backend;
use queue_core::clock::Clock;
use tokio::sync::Notify;

use crate::lease::Shared;
use crate::policy::jitter;

/// Renews every lease of a service when its half-life is over.
#[derive(Clone)]
pub(crate) struct Keeper {
    inner: Arc<KeeperInner>,
}

struct KeeperInner {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    schedule: Mutex<Schedule>,
    earlier: Notify,
    numbers: AtomicU64,
}

#[derive(Default)]
struct Schedule {
    leases: BTreeMap<(Duration, u64), Arc<Shared>>,
    wake_at: Option<Duration>,
}

impl Keeper {
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Arc::new(KeeperInner {
                backend,
                clock,
                schedule: Mutex::default(),
                earlier: Notify::new(),
                numbers: AtomicU64::new(0),
            }),
        }
    }

    /// Looks after the leases for ever. Renewals run side by side, so a stalled one delays no other.
    pub(crate) async fn run(self) {
        let mut renewals = tokio::task::JoinSet::new();
        loop {
            let now = self.inner.clock.monotonic();
            let (due, next) = self.take_due(now);
            for shared in due {
                let keeper = self.clone();
                renewals.spawn(async move { keeper.look_after(shared).await });
            }
            while renewals.try_join_next().is_some() {}
            match next {
                Some(at) => tokio::select! {
                    () = self.inner.clock.sleep(at.saturating_sub(now)) => {}
                    () = self.inner.earlier.notified() => {}
                },
                None => self.inner.earlier.notified().await,
            }
        }
    }

    fn take_due(&self, now: Duration) -> (Vec<Arc<Shared>>, Option<Duration>) {
        let mut schedule = self.lock();
        let later = schedule.leases.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut schedule.leases, later);
        let next = schedule.leases.keys().next().map(|key| key.0);
        schedule.wake_at = next;
        for shared in due.values() {
            shared.timing().due = None;
        }
        (due.into_values().collect(), next)
    }

    /// Renews the lease or finds that it has ended, and schedules the next look.
    async fn look_after(&self, shared: Arc<Shared>) {
        let mut state = shared.state.lock().await;
        let timing = *shared.timing();
        if !state.is_held() || timing.abandoned {
            return;
        }
        let now = self.inner.clock.monotonic();
        let end = timing.certain_end;
        if now >= end {
            return shared.lose(&mut state, "it ran out");
        }
        // Only one of several unanswered renewals can have been carried out, for it made the receipt of
        // the others stale; going on with them would put off the certain end for ever.
        let in_vain = state.doubtful && now >= timing.known_end;
        if now >= shared.renew_until || in_vain {
            return self.schedule(&shared, end);
        }
        match shared.extend(&mut state, None).await {
            Ok(_) => self.schedule(&shared, now.saturating_add(shared.visibility / 2)),
            Err(error) if error.is_lease_gone() && !state.doubtful => {
                shared.lose(&mut state, "the message was received by another or deleted");
            }
            Err(error) if error.is_lease_gone() => self.schedule(&shared, end),
            Err(error) => {
                tracing::warn!(
                    queue = %shared.queue, id = %shared.id, %error, "failed to renew a lease; trying again"
                );
                let now = self.inner.clock.monotonic();
                let end = shared.timing().certain_end;
                let pause = match error.retry() {
                    Retry::Permanent => end.saturating_sub(now),
                    Retry::Temporary => (shared.visibility / 16).mul_f64(0.5 + jitter()),
                    // Asked to wait for longer than the lease, it still tries before the end.
                    Retry::Throttled(after) => after
                        .unwrap_or(shared.visibility / 8)
                        .min(end.saturating_sub(now) / 2)
                        .max(shared.visibility / 64),
                };
                self.schedule(&shared, now.saturating_add(pause).min(end));
            }
        }
    }

    /// Has the keeper look at the lease then, unless nobody holds it any more.
    pub(crate) fn schedule(&self, shared: &Arc<Shared>, due: Duration) {
        let key = (due, self.inner.numbers.fetch_add(1, Ordering::Relaxed));
        let mut schedule = self.lock();
        let mut timing = shared.timing();
        if timing.abandoned {
            return;
        }
        timing.due = Some(key);
        drop(timing);
        schedule.leases.insert(key, Arc::clone(shared));
        if schedule.wake_at.is_none_or(|at| due < at) {
            schedule.wake_at = Some(due);
            self.inner.earlier.notify_one();
        }
    }

    /// Never looks at the lease again.
    pub(crate) fn forget(&self, shared: &Shared) {
        let mut schedule = self.lock();
        let mut timing = shared.timing();
        timing.abandoned = true;
        if let Some(key) = timing.due.take() {
            schedule.leases.remove(&key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.inner
            .schedule
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("leases", &self.lock().leases.len())
            .finish_non_exhaustive()
    }
}

//! Renewals that were due some time ago, for health checks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use queue_core::QueueName;
use queue_core::internal::LockExt as _;

use super::renewal::Renewals;
use super::state::Leased;

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
            // Those that have failed until their message was settled.
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
    /// Returns the renewal that has been due for longest, if one is late by more than a quarter of the visibility timeout.
    pub(crate) fn overdue(&self) -> Option<OverdueRenewal> {
        let shared = &self.0;
        let now = shared.clock.monotonic();
        // The next one is late only if nobody looks at the schedule.
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

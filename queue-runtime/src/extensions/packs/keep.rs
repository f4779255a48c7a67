//! What is due: leases of items that have ended, and packs that were held for long enough.

use std::sync::Arc;
use std::time::Duration;

use queue_core::{Outcome, QueueName};
use tokio::task::JoinSet;

use super::backend::Packs;
use super::open::{Item, OpenPack, Status};

/// The pause before another try to split a pack.
const RETRY: Duration = Duration::from_secs(1);

impl Packs {
    /// Looks at open packs when something about them is due, forever.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut looking = JoinSet::new();
        loop {
            for pack in self.due.due(&*self.clock).await {
                let packs = Arc::clone(&self);
                looking.spawn(async move { packs.check(&pack).await });
            }
            while looking.try_join_next().is_some() {}
        }
    }

    /// Has a pack looked at when the lease of an item ends, or the pack was held for long enough.
    pub(super) fn look_at(&self, pack: &Arc<OpenPack>) {
        let due = |item: &Item| match item.status {
            Status::Waiting => Some(pack.hold_until),
            Status::Held(until) => Some(until.min(pack.hold_until)),
            Status::Moved { until, .. } => Some(until),
            Status::Gone => None,
        };
        let first = pack.state().items.iter().filter_map(due).min();
        if let Some(due) = first {
            self.due.schedule(&pack.ticket, due, Arc::clone(pack));
        }
    }

    async fn check(self: &Arc<Self>, pack: &Arc<OpenPack>) {
        let now = self.clock.monotonic();
        if pack.lease.is_over() && pack.counts().moved == 0 {
            return self.forget(pack);
        }
        let is_over = now >= pack.hold_until;
        let is_due = |status: &Status| match status {
            Status::Waiting => is_over,
            Status::Held(until) => is_over || *until <= now,
            Status::Moved { .. } | Status::Gone => false,
        };
        let any_due = pack.state().items.iter().any(|item| is_due(&item.status));
        if any_due && let Err(error) = self.move_out(pack, is_due).await {
            let (queue, id) = (pack.queue(), pack.id());
            tracing::warn!(%queue, %id, %error, "failed to take items out of a pack; will retry while its lease lasts");
            // If it is not known whether they have left, nobody may conclude anything from their absence.
            let is_unknown = error.outcome() == Outcome::Unknown;
            if is_unknown || pack.lease.is_over() || error.is_lease_gone() {
                return self.forget(pack);
            }
            let again = now.saturating_add(RETRY);
            return self.due.schedule(&pack.ticket, again, Arc::clone(pack));
        }
        for item in &mut pack.state().items {
            // Nobody renews it any more.
            if matches!(item.status, Status::Moved { until, .. } if until <= now) {
                item.status = Status::Gone;
            }
        }
        let counts = pack.counts();
        if counts.waiting + counts.held + counts.moved == 0 {
            return self.forget(pack);
        }
        if counts.waiting == 0 {
            self.shelves.none_waiting(pack);
        } else if counts.held == 0 && pack.state().closing {
            return self.give_back(pack).await;
        }
        self.look_at(pack);
    }

    /// Removes a pack that is not open any more.
    pub(super) fn forget(&self, pack: &Arc<OpenPack>) {
        pack.lease.abandon();
        self.due.close(&pack.ticket);
        self.shelves.remove(pack);
    }

    /// Gives back the packs of a queue of which items wait, once none of their items is held. For a consumer that ends.
    pub(crate) async fn give_back_waiting(self: &Arc<Self>, queue: &QueueName) {
        for pack in self.shelves.open(queue) {
            self.shelves.none_waiting(&pack);
            let is_idle = {
                let mut state = pack.state();
                let counts = state.counts();
                state.closing = true;
                counts.waiting > 0 && counts.held == 0
            };
            if is_idle {
                self.give_back(&pack).await;
            }
        }
    }

    /// Gives back the packs of all queues, as [`give_back_waiting`](Self::give_back_waiting) does.
    pub(crate) async fn give_back_all(self: &Arc<Self>) {
        for queue in self.shelves.queues() {
            self.give_back_waiting(&queue).await;
        }
    }
}

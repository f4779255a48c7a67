//! Items that become messages of their own, and packs that are given back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use queue_core::backend::{
    Backend as _, BackendExt as _, ItemSet, NewMessage, Op, OpOutcome, PopReceipt, PutBackPlace,
    PutReceipt, TimeToLive,
};
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, Outcome, QueueName, Result};
use tokio::task::JoinSet;

use super::backend::Packs;
use super::open::{Item, ItemCounts, ItemStatus, OpenPack};
use crate::kernel::lease::Locked;
use crate::kernel::repeat::Repeats;

/// How many requests are made at once for what cannot be in one operation.
const AT_ONCE: usize = 8;

/// After how many items that have become messages of their own the header of their pack tells so, even if nothing fails: as
/// many as a crash puts again at most.
const UNRECORDED: usize = 4 * AT_ONCE;

/// How long giving back a pack is tried again: somebody waits for the end of its consumer.
const GIVING_BACK: Duration = Duration::from_secs(2);

/// An item that leaves its pack.
pub(super) struct Leaving {
    pub(super) number: u32,
    pub(super) body: Bytes,
    /// For how long the item's message is invisible.
    pub(super) delay: Duration,
}

impl Packs {
    /// Returns the message that takes the place of an item. `None` if the item has expired.
    pub(super) fn own_message(&self, pack: &OpenPack, leaving: &Leaving) -> Option<NewMessage> {
        let now = self.clock.monotonic();
        let time_to_live = match pack.message.expires_at {
            None => TimeToLive::Never,
            Some(expiry) => {
                let left = pack
                    .lease
                    .storage_time()
                    .earliest(expiry)
                    .saturating_sub(now);
                if left.is_zero() {
                    return None;
                }
                TimeToLive::After(left)
            }
        };
        let key = Body::shard_key(&leaving.body);
        let body = leaving.body.clone();
        let mut message = NewMessage::moved(body).with_shard_key(key.as_deref());
        message.delay = leaving.delay;
        message.time_to_live = time_to_live;
        Some(message)
    }

    /// Splits a pack before any of its items is handled: nobody knows which of them ended the process before. If the
    /// split fails, the pack stays leased, and the rest is split when it is received again.
    pub(super) async fn split_unexplained(&self, pack: &Arc<OpenPack>) {
        let (queue, id, count) = (pack.queue(), pack.id(), pack.message.dequeue_count);
        tracing::info!(%queue, %id, dequeue_count = count, "splitting a pack: an earlier receive of it ended without a record");
        let mut repeats = match pack.repeat_until {
            Some(until) => Repeats::within_lease(until, &*self.clock),
            None => self.repeats(pack),
        };
        loop {
            let waiting = pack.counts().waiting;
            let Err(error) = self.move_out(pack, |it| *it == ItemStatus::Waiting).await else {
                break;
            };
            if pack.counts().waiting < waiting {
                repeats.succeeded();
            }
            let is_final = error.outcome() == Outcome::Unknown || error.is_lease_gone();
            let again = if is_final {
                Err(error)
            } else {
                repeats.pause(error).await
            };
            if let Err(error) = again {
                tracing::warn!(%queue, %id, %error, "failed to split a pack; the rest of the pack is received again");
                break;
            }
        }
        pack.lease.abandon();
    }

    /// Makes messages of their own of the items with such a status. A held item stays hidden as long as its lease
    /// lasts; if the lease has ended, the attempt counts.
    async fn move_out(
        &self,
        pack: &Arc<OpenPack>,
        which: impl Fn(&ItemStatus) -> bool,
    ) -> Result<()> {
        self.see_to_lease(pack).await?;
        let mut locked = pack.lease.lock().await;
        let receipt = locked.receipt()?;
        let now = self.clock.monotonic();
        let items = pack.state().begin_leaving(which);
        let leaving = items.into_iter().map(|(number, event, status)| {
            let (delay, ended) = match status {
                ItemStatus::Held(until) => (until.saturating_sub(now), until <= now),
                _ => (Duration::ZERO, false),
            };
            Leaving {
                number,
                body: self.encoder.unpacked(&event, usize::from(ended)),
                delay,
            }
        });
        let leaving: Vec<Leaving> = leaving.collect();
        let moved = if self.is_atomic() {
            self.move_at_once(pack, &leaving, &receipt).await
        } else {
            self.move_one_by_one(pack, &mut locked, &leaving).await
        };
        pack.state().end_leaving();
        if moved.is_ok() {
            self.delete_if_done(pack, &mut locked).await?;
        }
        moved
    }

    /// Renews the lease of a pack if it may have ended, as after a stop of the process, where no other operation would
    /// tell: in a storage that is not atomic, what leaves the pack is put without its receipt.
    pub(super) async fn see_to_lease(&self, pack: &OpenPack) -> Result<()> {
        if self.is_atomic() {
            return Ok(());
        }
        pack.lease.renew_if_overdue().await
    }

    async fn move_at_once(
        &self,
        pack: &OpenPack,
        leaving: &[Leaving],
        receipt: &PopReceipt,
    ) -> Result<()> {
        let mut rest = leaving;
        while !rest.is_empty() {
            let mut puts: Vec<Op> = Vec::with_capacity(rest.len() + 1);
            for one in rest {
                let Some(message) = self.own_message(pack, one) else {
                    return Err(pack.gone());
                };
                let queue = pack.queue().clone();
                puts.push(Op::Put { queue, message });
            }
            let limit = self.storage.capabilities().max_apply - 1;
            let fitting = self.storage.capabilities().fitting(&puts).min(limit).max(1);
            puts.truncate(fitting);
            let (now, later) = rest.split_at(puts.len());
            let items = now.iter().map(|one| one.number).collect();
            puts.push(self.delete_items(pack, receipt, items));
            let outcomes = self.storage.apply(puts.into()).await;
            let outcomes = outcomes.map_err(|failed| failed.error)?;
            for (one, outcome) in now.iter().zip(outcomes) {
                if let OpOutcome::Put(put) = outcome {
                    self.moved(pack, one, &put);
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// Puts each item by itself, unless the storage refuses several in a row. What was put is recorded in the header before
    /// an error is returned, so that whoever tries again, or receives the pack next, puts none of it again.
    ///
    /// # Errors
    /// Of several errors, one whose outcome is unknown, if there is any: such an item may have left its pack.
    async fn move_one_by_one(
        &self,
        pack: &OpenPack,
        locked: &mut Locked<'_>,
        leaving: &[Leaving],
    ) -> Result<()> {
        let (mut unrecorded, mut failed) = (0, None);
        for some in leaving.chunks(AT_ONCE) {
            let puts = some.iter().map(|one| self.move_one(pack, one));
            let (mut moved, mut ended) = (0, false);
            for put in join_all(puts).await {
                match put {
                    Ok(()) => moved += 1,
                    Err(error) => {
                        ended |= error.is_lease_gone();
                        failed = Some(graver(failed, error));
                    }
                }
            }
            unrecorded += moved;
            if ended || moved == 0 {
                break;
            }
            if unrecorded >= UNRECORDED {
                self.record(pack, locked, failed.clone()).await?;
                unrecorded = 0;
            }
        }
        if let Some(error) = failed {
            if unrecorded > 0 {
                self.record(pack, locked, Some(error.clone())).await?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Writes into the header of a pack what has left it.
    ///
    /// # Errors
    /// `before`, if its outcome is unknown, or the write's error.
    async fn record(
        &self,
        pack: &OpenPack,
        locked: &mut Locked<'_>,
        before: Option<Error>,
    ) -> Result<()> {
        let mut repeats = self.repeats(pack);
        while let Err(error) = locked.renew().await {
            // The receipt is not known any more.
            let is_unknown = error.outcome() == Outcome::Unknown;
            let again = if is_unknown {
                Err(error)
            } else {
                repeats.pause(error).await
            };
            again.map_err(|error| graver(before.clone(), error))?;
        }
        Ok(())
    }

    async fn move_one(&self, pack: &OpenPack, one: &Leaving) -> Result<()> {
        let message = self.own_message(pack, one).ok_or_else(|| pack.gone())?;
        // The process may have been stopped since the last put.
        if pack.lease.is_overdue() {
            return Err(pack.lease.ended());
        }
        let put = self.storage.put(pack.queue(), message).await?;
        self.moved(pack, one, &put);
        Ok(())
    }

    /// Records that an item is a message of its own.
    pub(super) fn moved(&self, pack: &OpenPack, leaving: &Leaving, put: &PutReceipt) {
        let until = self.clock.monotonic().saturating_add(leaving.delay);
        let (id, receipt) = (put.id.clone(), put.receipt.clone());
        pack.set(leaving.number, ItemStatus::Moved { id, receipt, until });
    }

    pub(super) fn delete_items(&self, pack: &OpenPack, receipt: &PopReceipt, items: ItemSet) -> Op {
        Op::DeleteItems {
            queue: pack.queue().clone(),
            id: pack.id().clone(),
            receipt: receipt.clone(),
            items,
            of: pack.items,
        }
    }

    /// Deletes a pack whose items are all gone, where the storage does not do that with the last item.
    pub(super) async fn delete_if_done(
        &self,
        pack: &Arc<OpenPack>,
        locked: &mut Locked<'_>,
    ) -> Result<()> {
        let ItemCounts { waiting, held, .. } = pack.counts();
        if waiting + held > 0 {
            return Ok(());
        }
        if !self.is_atomic() {
            self.delete(pack, &locked.receipt()?).await?;
        }
        locked.settled();
        Ok(())
    }

    /// Deletes a pack: received again, it would repeat what its header does not tell.
    async fn delete(&self, pack: &OpenPack, receipt: &PopReceipt) -> Result<()> {
        let (mut repeats, mut unanswered) = (self.repeats(pack), false);
        loop {
            match self.storage.delete(pack.queue(), pack.id(), receipt).await {
                Err(error) if unanswered && error.is_lease_gone() => return Ok(()),
                Err(error) => {
                    unanswered |= error.outcome() == Outcome::Unknown;
                    repeats.pause(error).await?;
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Returns the repeats of an operation on a pack: for half of the time that its lease lasts, so that what was received
    /// with it does not wait for longer.
    fn repeats(&self, pack: &OpenPack) -> Repeats<'_> {
        let now = self.clock.monotonic();
        let half = now.saturating_add(pack.lease.lasts_for(now) / 2);
        Repeats::within_lease(half, &*self.clock)
    }

    /// Gives packs back, several at once.
    pub(super) async fn give_all_back(&self, packs: &[Arc<OpenPack>]) {
        for some in packs.chunks(AT_ONCE) {
            join_all(some.iter().map(|pack| self.give_back(pack))).await;
        }
    }

    /// Makes a pack visible for others, without counting the attempt: none of its items that is left was handled.
    pub(super) async fn give_back(&self, pack: &Arc<OpenPack>) {
        self.shelves.none_waiting(pack);
        let mut locked = pack.lease.lock().await;
        let mut attempts = pack.event.envelope.attempts.clone();
        attempts.forgiven = attempts.forgiven.saturating_add(1);
        let Some(body) = self
            .encoder
            .pack_with(&pack.event, &attempts, &pack.deleted())
        else {
            let (queue, id) = (pack.queue(), pack.id());
            tracing::warn!(%queue, %id, "a pack has no room for the record that it is given back; the pack is received again when its lease ends");
            drop(locked);
            return self.forget(pack);
        };
        let given_back = match locked.receipt() {
            Ok(receipt) => {
                let (queue, id) = (pack.queue(), pack.id());
                let hand_back = || {
                    self.storage.put_back(
                        queue,
                        id,
                        &receipt,
                        PutBackPlace::Kept,
                        Some(body.clone()),
                    )
                };
                let until = self.clock.monotonic().saturating_add(GIVING_BACK);
                let repeats = Repeats::within_lease(until, &*self.clock);
                repeats.ask(hand_back, Error::is_lease_gone).await
            }
            Err(error) => Err(error),
        };
        match given_back {
            Ok(_) => locked.settled(),
            Err(error) if error.kind() == ErrorKind::MessageNotFound => locked.lose(),
            Err(error) => {
                let (queue, id) = (pack.queue(), pack.id());
                tracing::warn!(%queue, %id, %error, "failed to give back a pack; the pack is received again when its lease ends");
                pack.lease.abandon();
            }
        }
        drop(locked);
        self.forget(pack);
    }
}

/// Returns the error to report of two: one whose outcome is unknown, if there is any, since the item may have left its pack.
fn graver(one: Option<Error>, other: Error) -> Error {
    one.filter(|one| one.outcome() == Outcome::Unknown)
        .unwrap_or(other)
}

/// The pause before another try to split a pack.
const RETRY: Duration = Duration::from_secs(1);

impl Packs {
    /// Looks at open packs when something about them is due, forever.
    pub(super) async fn keep(self: Arc<Self>) {
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
            ItemStatus::Waiting => Some(pack.hold_until),
            ItemStatus::Held(until) => Some(until.min(pack.hold_until)),
            ItemStatus::Moved { until, .. } => Some(until),
            ItemStatus::Gone => None,
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
        let is_due = |status: &ItemStatus| match status {
            ItemStatus::Waiting => is_over,
            ItemStatus::Held(until) => is_over || *until <= now,
            ItemStatus::Moved { .. } | ItemStatus::Gone => false,
        };
        let any_due = pack.state().items.iter().any(|item| is_due(&item.status));
        if any_due && let Err(error) = self.move_out(pack, is_due).await {
            let (queue, id) = (pack.queue(), pack.id());
            tracing::warn!(%queue, %id, %error, "failed to take items out of a pack; will retry while its lease lasts");
            // If it is not known whether items have left, nobody may conclude anything from their absence.
            let is_unknown = error.outcome() == Outcome::Unknown;
            if is_unknown || pack.lease.is_over() || error.is_lease_gone() {
                return self.forget(pack);
            }
            let again = now.saturating_add(RETRY);
            return self.due.schedule(&pack.ticket, again, Arc::clone(pack));
        }
        for item in &mut pack.state().items {
            // Nobody renews the item any more.
            if matches!(item.status, ItemStatus::Moved { until, .. } if until <= now) {
                item.status = ItemStatus::Gone;
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

    /// Gives back the packs of a queue of which items wait, once none of their items is held, for a consumer that ends.
    pub(super) async fn give_back_waiting(self: &Arc<Self>, queue: &QueueName) {
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
}

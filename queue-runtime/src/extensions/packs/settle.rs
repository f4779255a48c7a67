//! Settling items.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Atomicity, Backend as _, ItemSet, Lease, Op, OpOutcome, PackItem, PopReceipt,
    StorageId,
};
use queue_core::{ErrorKind, QueueName, Result};
use tokio::sync::oneshot;

use super::backend::Packs;
use super::leave::Leaving;
use super::open::{ItemCounts, ItemOf, ItemStatus, OpenPack, parse_item};
use crate::kernel::lease::{CompletedItem, Locked};

impl Packs {
    /// Deletes an item.
    pub(super) async fn delete_item(
        self: &Arc<Self>,
        (pack, number): ItemOf,
        receipt: &PopReceipt,
    ) -> Result<()> {
        loop {
            let deleted = match pack.held(number, receipt)? {
                ItemStatus::Moved { id, receipt, .. } => {
                    let deleted = self.storage.delete(pack.queue(), &id, &receipt).await;
                    if deleted.is_ok() {
                        pack.set(number, ItemStatus::Gone);
                    }
                    Some(deleted)
                }
                _ if self.is_atomic() => self.delete_together(&pack, number).await,
                _ => self.delete_in_header(&pack, number).await.transpose(),
            };
            // `None` if it has left the pack meanwhile, which it does once.
            if let Some(deleted) = deleted {
                self.changed(&pack).await;
                return deleted;
            }
        }
    }

    /// Has an item leased for this long from now, or makes a message of it that is hidden for as long.
    pub(super) async fn update_item(
        self: &Arc<Self>,
        (pack, number): ItemOf,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        let held = pack.held(number, receipt)?;
        let until = self.clock.monotonic().saturating_add(visibility);
        let is_renewal = body.is_none() && !visibility.is_zero();
        if is_renewal && matches!(held, ItemStatus::Held(_)) && visibility <= self.reach(&pack) {
            pack.lease.last_until(until).await?;
            if pack.is_leaving(number) {
                // Until it is known whether it has left.
                drop(pack.lease.lock().await);
            }
            // Unless it has left the pack meanwhile.
            if pack.hold_on(number, until) {
                self.look_at(&pack);
                let visible_at = pack.lease.storage_time().latest_now(until);
                return Ok(Lease::new(pack.receipt.clone(), visible_at));
            }
        }
        let op = Op::Update {
            queue: pack.queue().clone(),
            id: pack.id().clone(),
            receipt: receipt.clone(),
            visibility,
            body,
        };
        let changed = self.change_item((pack, number), receipt, vec![op], 0).await;
        match changed.map_err(|failed| failed.error)?.pop() {
            Some(OpOutcome::Updated(lease)) => Ok(lease),
            other => unreachable!("it was an update: {other:?}"),
        }
    }

    /// Hands back an item that nobody has handled. It stays in its pack, of which no further item is returned: as soon as
    /// none is held, the pack goes back where it was.
    pub(super) async fn hand_back_item(
        self: &Arc<Self>,
        (pack, number): ItemOf,
        receipt: &PopReceipt,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        pack.held(number, receipt)?;
        if !pack.stay(number) {
            let item = (pack, number);
            return self.update_item(item, receipt, Duration::ZERO, body).await;
        }
        let now = self.clock.monotonic();
        let visible_at = pack.lease.storage_time().latest_now(now);
        self.changed(&pack).await;
        Ok(Lease::new(pack.receipt.clone(), visible_at))
    }

    /// Carries out operations of which the one at `at` is about an item.
    pub(super) async fn change_item(
        self: &Arc<Self>,
        (pack, number): ItemOf,
        receipt: &PopReceipt,
        ops: Vec<Op>,
        at: usize,
    ) -> Result<Vec<OpOutcome>, ApplyError> {
        let refused = |error| ApplyError::new(at, Vec::new(), error);
        if let Ok(ItemStatus::Held(_)) = pack.held(number, receipt) {
            self.see_to_lease(&pack).await.map_err(refused)?;
        }
        // It leaves the pack in its turn only.
        let locked = pack.lease.lock().await;
        let changed = match pack.held(number, receipt) {
            Err(error) => Err(refused(error)),
            Ok(ItemStatus::Moved { id, receipt, .. }) => {
                drop(locked);
                self.change_moved((&pack, number), (id, receipt), ops, at)
                    .await
            }
            Ok(_) if self.is_atomic() => {
                self.change_at_once((&pack, number), locked, ops, at).await
            }
            Ok(_) if matches!(ops[at], Op::Delete { .. }) => {
                drop(locked);
                self.delete_after_others((&pack, number), receipt, ops, at)
                    .await
            }
            Ok(_) => self.leave_in_order((&pack, number), locked, ops, at).await,
        };
        self.changed(&pack).await;
        changed
    }

    /// Deletes an item of a storage that is atomic, in one operation with the others of its pack that wait for that.
    async fn delete_together(&self, pack: &Arc<OpenPack>, number: u32) -> Option<Result<()>> {
        let (reply, mut answer) = oneshot::channel();
        pack.state().deleting.push((number, reply));
        // Items that are finished at the same moment are deleted by one operation, not the first of them by its own.
        tokio::task::yield_now().await;
        let locked = tokio::select! {
            biased;
            answered = &mut answer => match answered {
                Ok(answered) => return Some(answered),
                // Who asked for it has gone before the answer.
                Err(_) => pack.lease.lock().await,
            },
            locked = pack.lease.lock() => locked,
        };
        if let Ok(answered) = answer.try_recv() {
            return Some(answered);
        }
        let others = {
            let mut state = pack.state();
            let mut others = mem::take(&mut state.deleting);
            // Who waits for one that has left the pack asks again.
            others.retain(|(other, _)| *other != number && state.is_held(*other));
            if !state.is_held(number) {
                state.deleting.append(&mut others);
                return None;
            }
            others
        };
        let all = others.iter().map(|(other, _)| *other).chain([number]);
        let deleted = self.delete_set(pack, &locked, all.collect()).await;
        if others.is_empty() {
            return Some(deleted);
        }
        Some(match deleted {
            Err(error) if error.kind() == ErrorKind::MessageNotFound => {
                // One of them was deleted before. Each has its own answer then.
                for (other, reply) in others {
                    let alone = ItemSet::from_iter([other]);
                    let _ = reply.send(self.delete_set(pack, &locked, alone).await);
                }
                self.delete_set(pack, &locked, ItemSet::from_iter([number]))
                    .await
            }
            deleted => {
                for (_, reply) in others {
                    // It may be gone.
                    let _ = reply.send(deleted.clone());
                }
                deleted
            }
        })
    }

    async fn delete_set(
        &self,
        pack: &Arc<OpenPack>,
        locked: &Locked<'_>,
        items: ItemSet,
    ) -> Result<()> {
        let receipt = locked.receipt()?;
        let op = self.delete_items(pack, &receipt, items.clone());
        let deleted = self.storage.apply(vec![op]).await;
        deleted.map_err(|failed| failed.error)?;
        for item in items.iter() {
            pack.set(item, ItemStatus::Gone);
        }
        Ok(())
    }

    /// Deletes an item of a storage that is not atomic: the header of the pack tells it from the next renewal on, and the
    /// last item takes the pack along. Returns `None` if it has left the pack.
    async fn delete_in_header(&self, pack: &Arc<OpenPack>, number: u32) -> Result<Option<()>> {
        self.see_to_lease(pack).await?;
        let locked = pack.lease.lock().await;
        if !pack.state().is_held(number) {
            return Ok(None);
        }
        let receipt = locked.receipt()?;
        let ItemCounts { waiting, held, .. } = pack.counts();
        if waiting + held == 1 {
            self.storage
                .delete(pack.queue(), pack.id(), &receipt)
                .await?;
        }
        pack.set(number, ItemStatus::Gone);
        Ok(Some(()))
    }

    async fn change_at_once(
        &self,
        (pack, number): (&Arc<OpenPack>, u32),
        locked: Locked<'_>,
        mut ops: Vec<Op>,
        at: usize,
    ) -> Result<Vec<OpOutcome>, ApplyError> {
        let refused = |error| ApplyError::new(at, Vec::new(), error);
        let leaving = self.leaving(pack, number, &ops[at]);
        let own = match &leaving {
            Some(leaving) => Some(self.put_of(pack, leaving).map_err(refused)?),
            None => None,
        };
        let receipt = locked.receipt().map_err(refused)?;
        let deletion = self.delete_items(pack, &receipt, ItemSet::from_iter([number]));
        let more = own.iter().len();
        ops.splice(at..=at, own.into_iter().chain([deletion]));
        let mut outcomes = self.storage.apply(ops).await.map_err(|mut failed| {
            failed.index -= failed.index.saturating_sub(at).min(more);
            failed
        })?;
        match leaving {
            Some(leaving) => {
                outcomes.remove(at + 1);
                self.take_outcome(pack, &leaving, &mut outcomes[at]);
            }
            None => pack.set(number, ItemStatus::Gone),
        }
        Ok(outcomes)
    }

    /// Carries out operations of which the one at `at` deletes an item, and that one after the others: only it is not sent
    /// to the storage.
    async fn delete_after_others(
        self: &Arc<Self>,
        item: (&Arc<OpenPack>, u32),
        receipt: &PopReceipt,
        mut ops: Vec<Op>,
        at: usize,
    ) -> Result<Vec<OpOutcome>, ApplyError> {
        ops.remove(at);
        let mut outcomes = if ops.is_empty() {
            Vec::new()
        } else {
            self.storage.apply(ops).await.map_err(|mut failed| {
                failed.index += usize::from(failed.index >= at);
                failed
            })?
        };
        let item = (Arc::clone(item.0), item.1);
        if let Err(error) = Box::pin(self.delete_item(item, receipt)).await {
            outcomes.truncate(at);
            return Err(ApplyError::new(at, outcomes, error));
        }
        outcomes.insert(at, OpOutcome::Deleted);
        Ok(outcomes)
    }

    /// Carries out operations of which the one at `at` has an item leave its pack.
    async fn leave_in_order(
        &self,
        (pack, number): (&Arc<OpenPack>, u32),
        mut locked: Locked<'_>,
        mut ops: Vec<Op>,
        at: usize,
    ) -> Result<Vec<OpOutcome>, ApplyError> {
        let leaving = self.leaving(pack, number, &ops[at]);
        let leaving = leaving.expect("it is an update");
        let refused = |error| ApplyError::new(at, Vec::new(), error);
        locked.receipt().map_err(refused)?;
        ops[at] = self.put_of(pack, &leaving).map_err(refused)?;
        let mut applied = self.storage.apply(ops).await;
        // Also if a later one failed.
        if let Some(outcome) = done(&mut applied).get_mut(at) {
            self.take_outcome(pack, &leaving, outcome);
        }
        let outcomes = applied?;
        if let Err(error) = self.delete_if_done(pack, &mut locked).await {
            let (queue, id) = (pack.queue(), pack.id());
            tracing::warn!(%queue, %id, %error, "failed to delete a pack whose messages are all settled; the pack is received again");
        }
        Ok(outcomes)
    }

    /// Carries out operations of which one is about an item that is a message of its own by now.
    async fn change_moved(
        &self,
        (pack, number): (&Arc<OpenPack>, u32),
        (own, current): (StorageId, PopReceipt),
        mut ops: Vec<Op>,
        at: usize,
    ) -> Result<Vec<OpOutcome>, ApplyError> {
        let (Op::Update { id, receipt, .. } | Op::Delete { id, receipt, .. }) = &mut ops[at] else {
            unreachable!("an item is updated or deleted");
        };
        (*id, *receipt) = (own.clone(), current);
        let visibility = match &ops[at] {
            Op::Update { visibility, .. } => *visibility,
            _ => Duration::ZERO,
        };
        let mut applied = self.storage.apply(ops).await;
        match done(&mut applied).get_mut(at) {
            Some(OpOutcome::Updated(lease)) => {
                let receipt = mem::replace(&mut lease.receipt, pack.receipt.clone());
                let until = self.clock.monotonic().saturating_add(visibility);
                let id = own;
                pack.set(number, ItemStatus::Moved { id, receipt, until });
            }
            Some(_) => pack.set(number, ItemStatus::Gone),
            None => {}
        }
        applied
    }

    /// Returns the item as it leaves the pack, if this operation has it do that.
    fn leaving(&self, pack: &OpenPack, number: u32, op: &Op) -> Option<Leaving> {
        let Op::Update {
            visibility, body, ..
        } = op
        else {
            return None;
        };
        let body = match body {
            Some(body) => body.clone(),
            None => pack.state().items[number as usize].event.clone(),
        };
        Some(Leaving {
            number,
            body: self.encoder.unpacked(&body, 0),
            delay: *visibility,
        })
    }

    fn put_of(&self, pack: &OpenPack, leaving: &Leaving) -> Result<Op> {
        let message = self.own_message(pack, leaving).ok_or_else(|| pack.gone())?;
        let queue = pack.queue().clone();
        Ok(Op::Put { queue, message })
    }

    /// Records that an item was put as a message of its own, and turns the outcome into that of an update.
    fn take_outcome(&self, pack: &OpenPack, leaving: &Leaving, outcome: &mut OpOutcome) {
        if let OpOutcome::Put(put) = outcome {
            self.moved(pack, leaving, put);
            let lease = Lease::new(pack.receipt.clone(), put.visible_at);
            *outcome = OpOutcome::Updated(lease);
        }
    }

    /// Returns what a transaction of the application's completes, if this is an item.
    pub(crate) fn completed_item(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
    ) -> Option<Result<CompletedItem>> {
        let (pack, number) = match self.item(queue, id)? {
            Ok(item) => item,
            Err(error) => return Some(Err(error)),
        };
        let held = match pack.held(number, receipt) {
            Ok(held) => held,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(match held {
            ItemStatus::Moved { id, receipt, .. } => CompletedItem {
                id,
                receipt,
                dequeue_count: 0,
                visibility: Duration::ZERO,
                item: None,
            },
            _ => CompletedItem {
                id: pack.id().clone(),
                receipt: pack.lease.receipt(),
                dequeue_count: pack.message.dequeue_count,
                visibility: self.reach(&pack).saturating_mul(2),
                item: Some(PackItem {
                    number,
                    of: pack.items,
                }),
            },
        }))
    }

    /// Records that a transaction of the application's has deleted an item.
    pub(crate) async fn completed(self: &Arc<Self>, queue: &QueueName, id: &StorageId) {
        if let Some((pack, number)) = parse_item(id)
            && let Some(pack) = self.shelves.find(queue, &pack)
        {
            pack.set(number, ItemStatus::Gone);
            self.changed(&pack).await;
        }
    }

    /// Does what follows from a change of a pack's items.
    async fn changed(self: &Arc<Self>, pack: &Arc<OpenPack>) {
        let (counts, closing) = {
            let state = pack.state();
            (state.counts(), state.closing)
        };
        match counts {
            ItemCounts {
                waiting: 0,
                held: 0,
                moved: 0,
            } => self.forget(pack),
            ItemCounts {
                waiting: 0,
                held: 0,
                ..
            } => pack.lease.abandon(),
            ItemCounts { held: 0, .. } if closing => self.give_back(pack).await,
            _ => {}
        }
    }

    /// The longest time for which an item can be leased within its pack.
    fn reach(&self, pack: &OpenPack) -> Duration {
        pack.lease.renewal() / 2
    }

    pub(super) fn is_atomic(&self) -> bool {
        self.storage.capabilities().atomicity == Atomicity::Atomic
    }
}

/// Returns the outcomes of what was done, also if one of the operations failed.
fn done(applied: &mut Result<Vec<OpOutcome>, ApplyError>) -> &mut Vec<OpOutcome> {
    match applied {
        Ok(outcomes) => outcomes,
        Err(failed) => &mut failed.completed,
    }
}

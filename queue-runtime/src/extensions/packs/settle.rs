//! Settling items.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Atomicity, Backend as _, ItemSet, Lease, Op, OpOutcome, OpOutcomes, Ops, PackItem,
    PopReceipt, PutBackPlace, StorageId,
};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::backend::{Packs, position_of_item, seen};
use super::leave::Leaving;
use super::open::{ItemCounts, ItemOf, ItemStatus, OpenPack, parse_item};
use crate::kernel::lease::{CompletedItem, Locked};

impl Packs {
    /// Carries out operations of which the one at `at` is about an item, and no other.
    pub(super) async fn apply_to_item(
        self: &Arc<Self>,
        mut ops: Ops,
        at: usize,
    ) -> Result<OpOutcomes, ApplyError> {
        let refused = |error| ApplyError::nothing_done(at, error);
        let (queue, id, receipt) = ops[at].received().expect("it is about an item");
        if position_of_item(&ops[at + 1..]).is_some() {
            let detail = "several items of packs are settled by several calls";
            let error = Error::new(ErrorKind::InvalidInput, Operation::Apply).with_queue(queue);
            return Err(refused(error.with_detail(detail).unsent()));
        }
        if let ([Op::Delete { moved: false, .. }], Some(pack)) = (&ops[..], seen(receipt)) {
            let (queue, id) = (queue.clone(), id.clone());
            let deleted = self.delete_seen(queue, &id, pack).await;
            return deleted.map_err(refused);
        }
        let item = self.item(queue, id).expect("it is an item");
        let (item, receipt) = (item.map_err(refused)?, receipt.clone());
        let alone = match &ops[..] {
            [Op::Delete { moved: false, .. }] => {
                let deleted = self.delete_item(item, &receipt).await;
                deleted.map(|()| OpOutcome::Deleted)
            }
            [
                Op::Renew {
                    visibility,
                    body: None,
                    ..
                },
            ] => {
                let renewed = self.renew_item(item, &receipt, *visibility).await;
                renewed.map(OpOutcome::Updated)
            }
            [
                Op::PutBack {
                    place: PutBackPlace::Kept,
                    body,
                    ..
                },
            ] => {
                let handed_back = self.hand_back_item(item, &receipt, body.clone()).await;
                handed_back.map(OpOutcome::Updated)
            }
            _ => {
                if let Op::PutBack { place, .. } = &mut ops[at] {
                    // The item leaves its pack, and its place with it.
                    *place = PutBackPlace::After(place.delay());
                }
                return self.change_item(item, &receipt, ops, at).await;
            }
        };
        alone.map(|one| OpOutcomes::from([one])).map_err(refused)
    }

    /// Has an item leased for this long from now. An item that cannot be leased for as long within its pack becomes a
    /// message of its own.
    async fn renew_item(
        self: &Arc<Self>,
        (pack, number): ItemOf,
        receipt: &PopReceipt,
        visibility: Duration,
    ) -> Result<Lease> {
        let held = pack.held(number, receipt)?;
        let until = self.clock.monotonic().saturating_add(visibility);
        let is_held = matches!(held, ItemStatus::Held(_)) && !visibility.is_zero();
        if is_held && visibility <= self.reach(&pack) {
            pack.lease.last_until(until).await?;
            if pack.is_leaving(number) {
                // Waits until it is known whether the item has left.
                drop(pack.lease.lock().await);
            }
            // False if the item has left the pack meanwhile.
            if pack.hold_on(number, until) {
                self.look_at(&pack);
                let visible_at = pack.lease.storage_time().latest_now(until);
                return Ok(Lease::new(pack.receipt.clone(), visible_at));
            }
        }
        let renewal = Op::Renew {
            queue: pack.queue().clone(),
            id: pack.id().clone(),
            receipt: receipt.clone(),
            visibility,
            body: None,
        };
        self.update_item((pack, number), receipt, renewal).await
    }

    /// Hands back an item that nobody has handled. The item stays in its pack, of which no further item is returned: as
    /// soon as none is held, the pack goes back where it was.
    async fn hand_back_item(
        self: &Arc<Self>,
        (pack, number): ItemOf,
        receipt: &PopReceipt,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        pack.held(number, receipt)?;
        if !pack.stay(number) {
            let put_back = Op::PutBack {
                queue: pack.queue().clone(),
                id: pack.id().clone(),
                receipt: receipt.clone(),
                place: PutBackPlace::After(Duration::ZERO),
                body,
            };
            return self.update_item((pack, number), receipt, put_back).await;
        }
        let now = self.clock.monotonic();
        let visible_at = pack.lease.storage_time().latest_now(now);
        self.changed(&pack).await;
        Ok(Lease::new(pack.receipt.clone(), visible_at))
    }

    /// Carries out a renewal or a put-back, for which an item leaves its pack.
    async fn update_item(
        self: &Arc<Self>,
        item: ItemOf,
        receipt: &PopReceipt,
        op: Op,
    ) -> Result<Lease> {
        let changed = self.change_item(item, receipt, Ops::from([op]), 0).await;
        match changed.map_err(|failed| failed.error)?.pop() {
            Some(OpOutcome::Updated(lease)) => Ok(lease),
            other => unreachable!("it was an update: {other:?}"),
        }
    }

    /// Carries out operations of which the one at `at` is about an item.
    async fn change_item(
        self: &Arc<Self>,
        (pack, number): ItemOf,
        receipt: &PopReceipt,
        ops: Ops,
        at: usize,
    ) -> Result<OpOutcomes, ApplyError> {
        let refused = |error| ApplyError::nothing_done(at, error);
        if let Ok(ItemStatus::Held(_)) = pack.held(number, receipt) {
            self.see_to_lease(&pack).await.map_err(refused)?;
        }
        // The item leaves the pack in its turn only.
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

    async fn change_at_once(
        &self,
        (pack, number): (&Arc<OpenPack>, u32),
        locked: Locked<'_>,
        mut ops: Ops,
        at: usize,
    ) -> Result<OpOutcomes, ApplyError> {
        let refused = |error| ApplyError::nothing_done(at, error);
        let leaving = self.leaving(pack, number, &ops[at]);
        let own = match &leaving {
            Some(leaving) => Some(self.put_of(pack, leaving).map_err(refused)?),
            None => None,
        };
        let receipt = locked.receipt().map_err(refused)?;
        let deletion = self.delete_items(pack, &receipt, ItemSet::from_iter([number]));
        let more = usize::from(own.is_some());
        match own {
            Some(own) => {
                ops[at] = own;
                ops.insert(at + 1, deletion);
            }
            None => ops[at] = deletion,
        }
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
        mut ops: Ops,
        at: usize,
    ) -> Result<OpOutcomes, ApplyError> {
        ops.remove(at);
        let mut outcomes = if ops.is_empty() {
            OpOutcomes::new()
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
        mut ops: Ops,
        at: usize,
    ) -> Result<OpOutcomes, ApplyError> {
        let leaving = self.leaving(pack, number, &ops[at]);
        let leaving = leaving.expect("it is an update");
        let refused = |error| ApplyError::nothing_done(at, error);
        locked.receipt().map_err(refused)?;
        ops[at] = self.put_of(pack, &leaving).map_err(refused)?;
        let mut applied = self.storage.apply(ops).await;
        // Recorded also if a later operation failed.
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
        mut ops: Ops,
        at: usize,
    ) -> Result<OpOutcomes, ApplyError> {
        if let Some((_, id, receipt)) = ops[at].received_mut() {
            (*id, *receipt) = (own.clone(), current);
        }
        let visibility = change_of(&ops[at]).map_or(Duration::ZERO, |(visibility, _)| visibility);
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
        let (delay, body) = change_of(op)?;
        let body = match body {
            Some(body) => body.clone(),
            None => pack.state().items[number as usize].event.clone(),
        };
        Some(Leaving {
            number,
            body: self.encoder.unpacked(&body, 0),
            delay,
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
    pub(super) fn completed_item_of(
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
    pub(super) async fn item_is_completed(self: &Arc<Self>, queue: &QueueName, id: &StorageId) {
        if let Some((pack, number)) = parse_item(id)
            && let Some(pack) = self.shelves.find(queue, &pack)
        {
            pack.set(number, ItemStatus::Gone);
            self.changed(&pack).await;
        }
    }

    /// Does what follows from a change of a pack's items.
    pub(super) async fn changed(self: &Arc<Self>, pack: &Arc<OpenPack>) {
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

/// Returns how long an operation hides a message from now on, and its new body, if it leaves the message in the storage.
fn change_of(op: &Op) -> Option<(Duration, &Option<Bytes>)> {
    match op {
        Op::Renew {
            visibility, body, ..
        } => Some((*visibility, body)),
        Op::PutBack { place, body, .. } => Some((place.delay(), body)),
        _ => None,
    }
}

/// Returns the outcomes of what was done, also if one of the operations failed.
fn done(applied: &mut Result<OpOutcomes, ApplyError>) -> &mut [OpOutcome] {
    match applied {
        Ok(outcomes) => outcomes,
        Err(failed) => &mut failed.completed,
    }
}

//! Deleting items.

use std::mem;
use std::sync::Arc;

use queue_core::backend::{
    Backend as _, BackendExt as _, ItemSet, Op, OpOutcome, OpOutcomes, Ops, PopReceipt, StorageId,
};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};
use tokio::sync::oneshot;

use super::backend::Packs;
use super::open::{ItemCounts, ItemOf, ItemStatus, OpenPack, parse_item};
use crate::kernel::lease::Locked;

impl Packs {
    /// Deletes an item that was seen on a page, unless its pack was received or put back since.
    pub(super) async fn delete_seen(
        &self,
        queue: QueueName,
        id: &StorageId,
        (of, receipt): (u32, PopReceipt),
    ) -> Result<OpOutcomes> {
        let (pack, number) = parse_item(id).expect("it is an item");
        if !self.is_atomic() {
            let error = Error::new(ErrorKind::Unsupported, Operation::Delete).with_queue(&queue);
            let detail = "the message is in a pack, and only who has received it can delete it on this storage";
            return Err(error.with_detail(detail).unsent());
        }
        let delete = Op::DeleteItems {
            queue,
            id: pack,
            receipt,
            items: ItemSet::from_iter([number]),
            of,
        };
        let deleted = self.storage.apply(Ops::from([delete])).await;
        deleted.map_err(|failed| failed.error)?;
        Ok(OpOutcomes::from([OpOutcome::Deleted]))
    }

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
            // `None` if the item has left the pack meanwhile, which it does once.
            if let Some(deleted) = deleted {
                self.changed(&pack).await;
                return deleted;
            }
        }
    }

    /// Deletes an item of a storage that is atomic, in one operation with the others of its pack that wait for
    /// deletion.
    async fn delete_together(&self, pack: &Arc<OpenPack>, number: u32) -> Option<Result<()>> {
        let (reply, mut answer) = oneshot::channel();
        pack.state().deleting.push((number, reply));
        // Items that are finished at the same moment are deleted by one operation, not the first of them by its own.
        tokio::task::yield_now().await;
        let locked = tokio::select! {
            biased;
            answered = &mut answer => match answered {
                Ok(answered) => return Some(answered),
                // Who asked for the deletion has gone before the answer.
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
            // Who waits for an item that has left the pack asks again.
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
                // If one item was deleted before, each has its own answer.
                for (other, reply) in others {
                    let alone = ItemSet::from_iter([other]);
                    let _ = reply.send(self.delete_set(pack, &locked, alone).await);
                }
                self.delete_set(pack, &locked, ItemSet::from_iter([number]))
                    .await
            }
            deleted => {
                for (_, reply) in others {
                    // The receiver of the answer may be gone.
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
        let deleted = self.storage.apply(Ops::from([op])).await;
        deleted.map_err(|failed| failed.error)?;
        for item in items.iter() {
            pack.set(item, ItemStatus::Gone);
        }
        Ok(())
    }

    /// Deletes an item of a storage that is not atomic: the header of the pack tells it from the next renewal on, and the
    /// last item takes the pack along. Returns `None` if the item has left the pack.
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
}

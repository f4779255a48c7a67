//! A backend whose attachments are in a payload store.
//!
//! A message is put before its payload is stored: invisible, as a *pending* message. Updating a pending message to its
//! real body submits it. At any time a payload has a message that refers to it, a mark, or a pending message that will
//! be received: whoever receives a pending message marks its payload as done and deletes the message.
//!
//! A message is done once its payload has a mark, before the message is deleted. Copies of a message that an
//! interrupted move leaves behind find its payload's mark.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Atomicity, Attachment, AttachmentPart, Attachments, Backend, BackendExt as _,
    BrowsedMessage, Capabilities, Located, NewMessage, Op, OpOutcome, OpOutcomes, Ops, Page,
    PageMark, PopReceipt, PutReceipt, ReceivedMessage, StorageId, Transactions, check_ops, steps,
};
use queue_core::encoder::{Encoder, MessageEncoding};
use queue_core::internal::{forward_backend, hex};
use queue_core::wire::{Body, StoredPayload, pending};
use queue_core::{Error, ErrorKind, MessageId, Operation, QueueName, Result};

use super::place::PayloadPlace;
use super::submit::failed;

/// A backend whose attachments are in a payload store.
#[derive(Debug)]
pub(crate) struct WithPayloads {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) place: Arc<PayloadPlace>,
    pub(super) capabilities: Capabilities,
    pub(super) encoder: Encoder,
}

impl WithPayloads {
    /// Wraps a backend, whose bodies are written in this encoding.
    pub(crate) fn new(
        inner: Arc<dyn Backend>,
        place: Arc<PayloadPlace>,
        encoding: MessageEncoding,
    ) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.attachments = Attachments::InStore;
        capabilities.atomicity = Atomicity::InOrder;
        Self {
            encoder: Encoder::new(inner.capabilities(), encoding),
            inner,
            place,
            capabilities,
        }
    }

    /// Deletes a message, and its payload with it unless that belongs to another message now.
    async fn remove(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        moved: bool,
    ) -> Result<()> {
        let PayloadReceipt { payload, receipt } = PayloadReceipt::read(receipt);
        let Some(payload) = payload else {
            return self.inner.delete(queue, id, &receipt).await;
        };
        let undone = |error: Error| failed(&error, Operation::Delete, queue);
        // A reference to another store is nothing to act upon.
        let is_ours = self.place.identity().await.map_err(undone)? == payload.store;
        if is_ours && !moved {
            self.place.mark_done(&payload).await.map_err(undone)?;
        }
        self.inner.delete(queue, id, &receipt).await?;
        let is_done = match moved {
            false => Ok(is_ours),
            // Moved to another queue, the message has left a copy here.
            true if is_ours => self.place.is_done(&payload).await,
            true => Ok(false),
        };
        match is_done {
            Ok(true) => self.place.discard(&payload).await,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%queue, name = payload.name, %error, "failed to find out whether a payload is needed; a sweep will find out")
            }
        }
        Ok(())
    }

    /// Deletes a message that was never submitted. If the deletion fails, the message stays leased, and comes again.
    async fn abandon(&self, queue: &QueueName, message: &ReceivedMessage, payload: &StoredPayload) {
        let abandoned = async {
            if self.place.identity().await? == payload.store {
                self.place.mark_done(payload).await?;
            }
            self.inner
                .delete(queue, &message.id, &message.receipt)
                .await
        };
        match abandoned.await {
            Ok(()) => {
                tracing::debug!(%queue, name = payload.name, "deleted a message that was never submitted: its payload was not stored in time")
            }
            Err(error) => {
                tracing::warn!(%queue, id = message.id.as_str(), %error, "failed to delete a message that was never submitted; the message is received again")
            }
        }
    }

    async fn put(&self, queue: &QueueName, mut message: NewMessage) -> Result<PutReceipt> {
        match message.attachment.take() {
            Some(Attachment::New(data)) => self.submit(queue, message, data).await,
            Some(Attachment::Of { queue: from, id }) => {
                // An attachment that the storage itself keeps.
                if self.inner.capabilities().attachments != Attachments::Unsupported {
                    let (queue, id) = (from.clone(), id.clone());
                    message.attachment = Some(Attachment::Of { queue, id });
                }
                self.put_moved(queue, message, (from, id)).await
            }
            None => self.put_as_it_is(queue, message, None).await,
        }
    }

    /// Puts a message and records a value with it.
    async fn put_if(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let mut outcomes = self.inner.apply(ops).await?;
        if let Some(OpOutcome::Put(put)) = outcomes.first_mut() {
            put.receipt = PayloadReceipt::write(None, &put.receipt);
        }
        Ok(outcomes)
    }

    async fn carry_out(&self, mut op: Op) -> Result<OpOutcomes, ApplyError> {
        let payload = match &mut op {
            Op::Renew { receipt, .. } | Op::PutBack { receipt, .. } => {
                let held = PayloadReceipt::read(receipt);
                *receipt = held.receipt;
                held.payload
            }
            _ => None,
        };
        let done = match op {
            Op::Put { queue, message } => self.put(&queue, message).await.map(OpOutcome::Put),
            Op::Delete {
                queue,
                id,
                receipt,
                moved,
            } => {
                let removed = self.remove(&queue, &id, &receipt, moved).await;
                removed.map(|()| OpOutcome::Deleted)
            }
            other => {
                let mut outcomes = self.inner.apply(Ops::from([other])).await?;
                if let Some(OpOutcome::Updated(lease)) = outcomes.first_mut() {
                    lease.receipt = PayloadReceipt::write(payload.as_ref(), &lease.receipt);
                }
                return Ok(outcomes);
            }
        };
        let done = done.map(|one| OpOutcomes::from([one]));
        done.map_err(|error| ApplyError::nothing_done(0, error))
    }
}

/// Refuses a conditional put of a message with a payload, which would be stored in steps.
fn check_conditions(ops: &[Op]) -> Result<(), ApplyError> {
    let is_refused = |two: &[Op]| match two {
        [Op::Put { message, .. }, Op::Swap { .. }] => message.attachment.is_some(),
        _ => false,
    };
    let Some(index) = ops.windows(2).position(is_refused) else {
        return Ok(());
    };
    let error = Error::new(ErrorKind::Unsupported, Op::operation(ops));
    let error = error.with_queue(ops[index].queue()).with_detail(
        "a message that depends on a condition cannot have a payload in a payload store",
    );
    Err(ApplyError::nothing_done(index, error.unsent()))
}

/// Has the receipt of a message tell where its payload is.
fn hold(message: &mut BrowsedMessage, queue: &QueueName) {
    let payload = StoredPayload::of(&Body::read(&message.body, usize::MAX), queue);
    message.receipt = PayloadReceipt::write(payload.as_ref(), &message.receipt);
}

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the backend's own"
)]
impl Backend for WithPayloads {
    forward_backend!(self => self.inner; queue_uri sharded notifier results payload_store introduce create_queue
        delete_queue list_queues properties metadata set_metadata peek clear);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// None: the storage's transactions know nothing of the store.
    fn transactions(&self) -> Option<Arc<dyn Transactions>> {
        None
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        loop {
            let received = self.inner.receive(queue, max, visibility).await?;
            let is_empty = received.is_empty();
            let mut messages = Vec::with_capacity(received.len());
            for mut message in received {
                let body = Body::read(&message.body, usize::MAX);
                if let Some((id, reference)) = pending(&body) {
                    let payload = reference.of_event(id);
                    self.abandon(queue, &message, &payload).await;
                    continue;
                }
                let payload = StoredPayload::of(&body, queue);
                message.receipt = PayloadReceipt::write(payload.as_ref(), &message.receipt);
                messages.push(message);
            }
            // Each round leases what it abandons, so there is an end.
            if is_empty || !messages.is_empty() {
                return Ok(messages);
            }
        }
    }

    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        stored: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        match stored {
            Some(stored) => {
                let part = self.place.part(stored, from).await;
                part.map_err(|error| error.with_queue(queue))
            }
            // Put by a service that keeps attachments in the storage of the messages.
            None => self.inner.attachment(queue, id, None, from).await,
        }
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let mut page = self.inner.browse(queue, from, max).await?;
        for message in &mut page.messages {
            hold(message, queue);
        }
        Ok(page)
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        let mut found = self.inner.find(queue, id, max).await?;
        for message in &mut found {
            hold(message, queue);
        }
        Ok(found)
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        let mut located = self.inner.locate(id, max).await?;
        for one in &mut located {
            hold(&mut one.message, &one.queue);
        }
        Ok(located)
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        check_conditions(&ops)?;
        let mut completed = OpOutcomes::with_capacity(ops.len());
        for mut step in steps(ops) {
            let done = match step.len() {
                1 => self.carry_out(step.remove(0)).await,
                _ => self.put_if(step).await,
            };
            match done {
                Ok(outcomes) => completed.extend(outcomes),
                Err(failed) => return Err(failed.after(completed)),
            }
        }
        Ok(completed)
    }
}

/// What a receipt holds, which also tells the payload of its message, so that whoever settles the message need not know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PayloadReceipt {
    pub(super) payload: Option<StoredPayload>,
    pub(super) receipt: PopReceipt,
}

const SEPARATOR: char = ' ';
const NO_PAYLOAD: &str = "-";

impl PayloadReceipt {
    /// Reads a receipt that this module has written. Of any other receipt, the storage tells what is wrong.
    pub(super) fn read(held: &PopReceipt) -> Self {
        let read = || {
            let (store, rest) = held.reveal().split_once(SEPARATOR)?;
            let (name, receipt) = rest.split_once(SEPARATOR)?;
            let payload = match hex(store) {
                Some(store) => Some(StoredPayload::new(store, name)?),
                None if store == NO_PAYLOAD => None,
                None => return None,
            };
            let receipt = PopReceipt::new(receipt);
            Some(Self { payload, receipt })
        };
        read().unwrap_or_else(|| Self {
            payload: None,
            receipt: held.clone(),
        })
    }

    /// Writes the receipt that takes the place of the storage's.
    pub(super) fn write(payload: Option<&StoredPayload>, receipt: &PopReceipt) -> PopReceipt {
        let receipt = receipt.reveal();
        PopReceipt::new(match payload {
            Some(StoredPayload { store, name, .. }) => format!("{store:032x} {name} {receipt}"),
            None => format!("{NO_PAYLOAD} {NO_PAYLOAD} {receipt}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_comes_back_with_its_payload() {
        let name = format!("orders/id.60.{:032x}", 7);
        let payload = StoredPayload::new(5, &name).expect("a name");
        for payload in [Some(payload), None] {
            for text in ["AgAAAAMAAAAAAAAA=", "with spaces in it", ""] {
                let receipt = PopReceipt::new(text);
                let held = PayloadReceipt::write(payload.as_ref(), &receipt);
                let payload = payload.clone();
                assert_eq!(
                    PayloadReceipt::read(&held),
                    PayloadReceipt { payload, receipt }
                );
            }
        }
    }

    #[test]
    fn a_receipt_of_the_storage_is_left_as_it_is() {
        for text in ["", "abc", "1 2", "12 not-a-name x"] {
            let receipt = PopReceipt::new(text);
            let payload = None;
            assert_eq!(
                PayloadReceipt::read(&receipt),
                PayloadReceipt { payload, receipt }
            );
        }
    }
}

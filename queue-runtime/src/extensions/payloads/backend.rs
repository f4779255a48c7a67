//! A backend whose attachments are in a store of payloads.
//!
//! A message is put before its payload is stored: invisible, as a *pending* message. It is submitted by the update to its
//! own body. So at any time a payload has a message that refers to it, or a mark, or a pending message that will be
//! received: whoever receives one marks its payload as done and deletes it.
//!
//! A message is done once its payload has a mark, before the message is deleted. Copies of it, which a move leaves behind
//! that is interrupted, find the mark.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Atomicity, Attachment, AttachmentPart, Attachments, Backend, BrowsedMessage,
    Capabilities, Lease, NewMessage, Op, OpOutcome, Page, PageMark, PopReceipt, PutIf, PutReceipt,
    ReceivedMessage, StorageId, Swap, TimeToLive, Transactions, check_ops,
};
use queue_core::clock::Clock;
use queue_core::encoder::Encoder;
use queue_core::internal::forward_backend;
use queue_core::wire::{Body, Payload, PayloadRef, StoredPayload, pending};
use queue_core::{Error, ErrorKind, MessageId, Operation, Outcome, QueueName, Result};

use super::pending::{Pending, failed, pending_for, unsubmitted};
use super::place::Place;
use super::receipt::Held;

/// A backend whose attachments are in a store of payloads.
#[derive(Debug)]
pub(crate) struct WithPayloads {
    inner: Arc<dyn Backend>,
    pub(super) place: Arc<Place>,
    capabilities: Capabilities,
    encoder: Encoder,
    clock: Arc<dyn Clock>,
}

impl WithPayloads {
    /// Wraps a backend. `encoder` writes bodies for it.
    pub(crate) fn new(
        inner: Arc<dyn Backend>,
        place: Arc<Place>,
        encoder: Encoder,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.attachments = Attachments::InStore;
        capabilities.atomicity = Atomicity::InOrder;
        Self {
            inner,
            place,
            capabilities,
            encoder,
            clock,
        }
    }

    /// Puts a message and stores its data.
    async fn submit(
        &self,
        queue: &QueueName,
        message: NewMessage,
        data: Bytes,
    ) -> Result<PutReceipt> {
        let Body::Event(event) = Body::read(&message.body, usize::MAX) else {
            return Err(not_attached(queue));
        };
        let store = self
            .place
            .begun()
            .await
            .map_err(|error| unsubmitted(error, queue))?;
        let lifetime = match message.time_to_live {
            TimeToLive::Never => None,
            // The storage may round up.
            TimeToLive::After(lifetime) => Some(lifetime.as_secs().saturating_add(1)),
        };
        let reference = PayloadRef::new(store, queue.clone(), lifetime, rand::random());
        let payload = reference.of_event(&event.envelope.id);
        let (body, pending) = self.encoder.stored_elsewhere(&event, &reference);
        let submitted = NewMessage {
            body,
            attachment: None,
            ..message
        };
        let limits = self.capabilities.limits(Operation::Put, queue);
        limits.check_put(&submitted)?;
        let pending = NewMessage {
            body: pending,
            delay: pending_for(submitted.time_to_live),
            ..submitted.clone()
        };
        let put = self.inner.put(queue, pending).await?;
        let mut one = Pending {
            storage: &*self.inner,
            place: &self.place,
            clock: &*self.clock,
            queue,
            payload: &payload,
            id: put.id.clone(),
            receipt: put.receipt.clone(),
        };
        one.store(data, submitted.time_to_live).await?;
        let lease = one.submit(submitted).await?;
        let mut put = put;
        put.receipt = Held::write(Some(&payload), &lease.receipt);
        put.visible_at = lease.visible_at;
        Ok(put)
    }

    /// Puts a message in the place of another one, whose payload it keeps. One of `source` itself that is put on another
    /// queue gets a copy: a payload is believed to be that of its own queue only.
    async fn put_moved(
        &self,
        queue: &QueueName,
        message: NewMessage,
        (source, id): (QueueName, StorageId),
    ) -> Result<PutReceipt> {
        let unsubmitted = |error| unsubmitted(error, queue);
        let body = Body::read(&message.body, usize::MAX);
        if let Some(payload) = StoredPayload::of(&body, queue) {
            if payload.lifetime.is_some() {
                self.place.mark_kept(&payload).await.map_err(unsubmitted)?;
            }
            return self.put_as_it_is(queue, message, Some(&payload)).await;
        }
        let Some(payload) = StoredPayload::of(&body, &source) else {
            return self.put_as_it_is(queue, message, None).await;
        };
        if self.place.is_done(&payload).await.map_err(unsubmitted)? {
            // By a move that was interrupted before it deleted the message.
            return Ok(self.was_moved(id));
        }
        let data = self.read(&payload).await.map_err(unsubmitted)?;
        let name = &payload.name;
        let Some(data) = data else {
            let limits = self.capabilities.limits(Operation::Put, queue);
            let detail = format!("its payload `{name}` is not in the store of payloads");
            return Err(limits.invalid(detail));
        };
        if let Body::Event(event) = &body
            && let Payload::Attached(attached) = &event.payload
            && let Err(problem) = attached.open(data.clone(), usize::MAX)
        {
            self.place.doubt();
            let error = Error::new(ErrorKind::Storage, Operation::Put).with_queue(queue);
            return Err(
                error.with_detail(format!("its payload `{name}` cannot be copied: {problem}"))
            );
        }
        let put = self.submit(queue, message, data).await?;
        let marked = self.place.mark_done(&payload).await;
        // Without the mark the message is moved again.
        marked.map_err(|error| unsubmitted(error).with_outcome(Outcome::Unknown))?;
        Ok(put)
    }

    /// Returns a receipt for what was put before. It allows nothing.
    fn was_moved(&self, source: StorageId) -> PutReceipt {
        let now = self.clock.now();
        PutReceipt::new(source, PopReceipt::new(""), now, now)
    }

    async fn read(&self, payload: &StoredPayload) -> Result<Option<Bytes>> {
        let mut data = Vec::new();
        loop {
            match self.place.part(payload, data.len() as u64).await? {
                AttachmentPart::Data(part) if part.is_empty() => return Ok(Some(data.into())),
                AttachmentPart::Data(part) => data.extend_from_slice(&part),
                AttachmentPart::Missing | AttachmentPart::Done => return Ok(None),
            }
        }
    }

    async fn put_as_it_is(
        &self,
        queue: &QueueName,
        message: NewMessage,
        payload: Option<&StoredPayload>,
    ) -> Result<PutReceipt> {
        let mut put = self.inner.put(queue, message).await?;
        put.receipt = Held::write(payload, &put.receipt);
        Ok(put)
    }

    /// Deletes a message, and its payload with it unless that belongs to another message now.
    async fn remove(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        moved: bool,
    ) -> Result<()> {
        let Held { payload, receipt } = Held::read(receipt);
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
            // Moved to another queue, it has left a copy here.
            true if is_ours => self.place.is_done(&payload).await,
            true => Ok(false),
        };
        match is_done {
            Ok(true) => self.place.discard(&payload).await,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%queue, name = payload.name, %error, "failed to look whether a payload is needed; a sweep will")
            }
        }
        Ok(())
    }

    /// Deletes a message that was never submitted. It stays leased if that fails, and comes again.
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
                tracing::warn!(%queue, id = message.id.as_str(), %error, "failed to delete a message that was never submitted; it comes again")
            }
        }
    }

    async fn carry_out(&self, op: Op) -> Result<OpOutcome> {
        match op {
            Op::Put { queue, message } => self.put(&queue, message).await.map(OpOutcome::Put),
            Op::Update {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => {
                let updated = self.update(&queue, &id, &receipt, visibility, body);
                updated.await.map(OpOutcome::Updated)
            }
            Op::PutBack {
                queue,
                id,
                receipt,
                body,
            } => {
                let Held { payload, receipt } = Held::read(&receipt);
                let put_back = Op::PutBack {
                    queue,
                    id,
                    receipt,
                    body,
                };
                let mut outcome = self.in_storage(put_back).await?;
                if let OpOutcome::Updated(lease) = &mut outcome {
                    lease.receipt = Held::write(payload.as_ref(), &lease.receipt);
                }
                Ok(outcome)
            }
            Op::Delete {
                queue,
                id,
                receipt,
                moved,
            } => {
                let removed = self.remove(&queue, &id, &receipt, moved).await;
                removed.map(|()| OpOutcome::Deleted)
            }
            other => self.in_storage(other).await,
        }
    }

    async fn in_storage(&self, op: Op) -> Result<OpOutcome> {
        let outcomes = self.inner.apply(vec![op]).await;
        let last = outcomes.map_err(|failed| failed.error)?.pop();
        last.ok_or_else(|| Error::new(ErrorKind::Corrupt, Operation::Apply))
    }
}

/// Has the receipt of a message tell where its payload is.
fn hold(message: &mut BrowsedMessage, queue: &QueueName) {
    let payload = StoredPayload::of(&Body::read(&message.body, usize::MAX), queue);
    message.receipt = Held::write(payload.as_ref(), &message.receipt);
}

fn not_attached(queue: &QueueName) -> Error {
    Error::new(ErrorKind::InvalidInput, Operation::Put)
        .with_queue(queue)
        .with_detail("the body of a message with an attachment is an event whose `dataref` is `urn:queue:attachment`")
        .unsent()
}

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the backend's own"
)]
impl Backend for WithPayloads {
    forward_backend!(self => self.inner; queue_uri partition notifier results payload_store create_queue delete_queue
        list_queues properties metadata set_metadata peek clear);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// None: those of the storage know nothing of the store.
    fn transactions(&self) -> Option<Arc<dyn Transactions>> {
        None
    }

    async fn put(&self, queue: &QueueName, mut message: NewMessage) -> Result<PutReceipt> {
        match message.attachment.take() {
            Some(Attachment::New(data)) => self.submit(queue, message, data).await,
            Some(Attachment::Of { queue: from, id }) => {
                // One that the storage itself keeps.
                if self.inner.capabilities().attachments != Attachments::Unsupported {
                    let (queue, id) = (from.clone(), id.clone());
                    message.attachment = Some(Attachment::Of { queue, id });
                }
                self.put_moved(queue, message, (from, id)).await
            }
            None => self.put_as_it_is(queue, message, None).await,
        }
    }

    async fn put_if(
        &self,
        queue: &QueueName,
        message: Option<NewMessage>,
        swap: &Swap,
    ) -> Result<PutIf> {
        if message
            .as_ref()
            .is_some_and(|message| message.attachment.is_some())
        {
            let refused = Error::new(ErrorKind::Unsupported, Operation::Put).with_queue(queue);
            return Err(refused.unsent().with_detail(
                "a message that depends on a condition cannot have a payload in a store of payloads",
            ));
        }
        Ok(match self.inner.put_if(queue, message, swap).await? {
            PutIf::Swapped(Some(mut put)) => {
                put.receipt = Held::write(None, &put.receipt);
                PutIf::Swapped(Some(put))
            }
            other => other,
        })
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
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
                message.receipt = Held::write(payload.as_ref(), &message.receipt);
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
            // Put by a service that keeps them in the storage of the messages.
            None => self.inner.attachment(queue, id, None, from).await,
        }
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: u32) -> Result<Page> {
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
        max: u32,
    ) -> Result<Vec<BrowsedMessage>> {
        let mut found = self.inner.find(queue, id, max).await?;
        for message in &mut found {
            hold(message, queue);
        }
        Ok(found)
    }

    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        let Held { payload, receipt } = Held::read(receipt);
        let updated = self.inner.update(queue, id, &receipt, visibility, body);
        let mut lease = updated.await?;
        lease.receipt = Held::write(payload.as_ref(), &lease.receipt);
        Ok(lease)
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        self.remove(queue, id, receipt, false).await
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        let mut completed = Vec::with_capacity(ops.len());
        for (index, op) in ops.into_iter().enumerate() {
            match self.carry_out(op).await {
                Ok(outcome) => completed.push(outcome),
                Err(error) => return Err(ApplyError::new(index, completed, error)),
            }
        }
        Ok(completed)
    }
}

//! A message on its way: put, and not submitted before its payload is stored.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{
    AttachmentPart, Backend, BackendExt as _, Lease, NewMessage, PopReceipt, PutBackPlace,
    PutReceipt, StorageId, TimeToLive,
};
use queue_core::clock::Clock;
use queue_core::wire::{Body, Payload, PayloadRef, StoredPayload};
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Result};

use super::backend::{PayloadReceipt, WithPayloads};
use super::place::PayloadPlace;
use crate::kernel::attachment::PayloadIdentity as _;

impl WithPayloads {
    /// Puts a message and stores its data.
    pub(super) async fn submit(
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
            clock: &*self.place.clock,
            queue,
            payload: &payload,
            id: put.id.clone(),
            receipt: put.receipt.clone(),
        };
        one.store(data, submitted.time_to_live).await?;
        let lease = one.submit(submitted).await?;
        let mut put = put;
        put.receipt = PayloadReceipt::write(Some(&payload), &lease.receipt);
        put.visible_at = lease.visible_at;
        Ok(put)
    }

    /// Puts a message in the place of another one, whose payload it keeps. A message of `source` itself that is put on
    /// another queue gets a copy: a payload is believed to be that of its own queue only.
    pub(super) async fn put_moved(
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
            // Put by a move that was interrupted before it deleted the message.
            return Ok(self.was_moved(id));
        }
        let data = self.read(&payload).await.map_err(unsubmitted)?;
        let name = &payload.name;
        let Some(data) = data else {
            let limits = self.capabilities.limits(Operation::Put, queue);
            let detail = format!("its payload `{name}` is not in the payload store");
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

    /// Returns a receipt for what was put before, which allows nothing.
    fn was_moved(&self, source: StorageId) -> PutReceipt {
        let now = self.place.clock.now();
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

    pub(super) async fn put_as_it_is(
        &self,
        queue: &QueueName,
        message: NewMessage,
        payload: Option<&StoredPayload>,
    ) -> Result<PutReceipt> {
        let mut put = self.inner.put(queue, message).await?;
        put.receipt = PayloadReceipt::write(payload, &put.receipt);
        Ok(put)
    }
}

/// How long a pending message is invisible, and how often that is prolonged.
const PENDING: Duration = Duration::from_secs(60);
const RENEWAL: Duration = Duration::from_secs(20);

/// A message that was put before its payload is stored.
struct Pending<'a> {
    pub(super) storage: &'a dyn Backend,
    pub(super) place: &'a PayloadPlace,
    pub(super) clock: &'a dyn Clock,
    pub(super) queue: &'a QueueName,
    pub(super) payload: &'a StoredPayload,
    pub(super) id: StorageId,
    pub(super) receipt: PopReceipt,
}

impl Pending<'_> {
    /// Stores the data, and keeps the message invisible meanwhile.
    pub(super) async fn store(&mut self, data: Bytes, time_to_live: TimeToLive) -> Result<()> {
        let storing = self.place.store(self.payload, data);
        tokio::pin!(storing);
        let stored = loop {
            let pause = RENEWAL.min(pending_for(time_to_live) / 2);
            let pause = self.clock.sleep(pause);
            tokio::select! {
                biased;
                stored = &mut storing => break stored,
                () = pause => {}
            }
            if let Err(error) = self.renew(time_to_live).await {
                break Err(error);
            }
        };
        let Err(error) = stored else {
            return Ok(());
        };
        // What may yet be stored is marked when the pending message is received.
        if error.outcome() == Outcome::NotDone {
            self.withdraw().await;
        }
        Err(unsubmitted(error, self.queue))
    }

    /// Keeps the message invisible for longer, or abandons a message that another consumer has received.
    async fn renew(&mut self, time_to_live: TimeToLive) -> Result<()> {
        let (queue, visibility) = (self.queue, pending_for(time_to_live));
        let renewed = self
            .storage
            .renew(queue, &self.id, &self.receipt, visibility, None);
        match renewed.await {
            Ok(lease) => self.receipt = lease.receipt,
            Err(error) if error.is_lease_gone() => {
                return Err(abandoned().with_outcome(Outcome::Unknown));
            }
            Err(error) => {
                tracing::debug!(%queue, %error, "failed to keep a pending message invisible");
            }
        }
        Ok(())
    }

    pub(super) async fn submit(self, submitted: NewMessage) -> Result<Lease> {
        let (queue, storage) = (self.queue, self.storage);
        let (place, body) = (PutBackPlace::After(submitted.delay), Some(submitted.body));
        let updated = storage.put_back(queue, &self.id, &self.receipt, place, body);
        let error = match updated.await {
            Ok(lease) => return Ok(lease),
            Err(error) => error,
        };
        let gone = error.is_lease_gone();
        if !gone && error.outcome() == Outcome::NotDone {
            self.withdraw().await;
            return Err(unsubmitted(error, queue));
        }
        // A request that was carried out twice has submitted the message and then found another receipt. The payload stays:
        // whoever receives the message while it is pending marks the payload.
        let error = if gone { abandoned() } else { error };
        Err(unsubmitted(error, queue).with_outcome(Outcome::Unknown))
    }

    /// Deletes what was certainly not submitted; what fails is abandoned later.
    async fn withdraw(&self) {
        let (queue, storage) = (self.queue, self.storage);
        match storage.delete(queue, &self.id, &self.receipt).await {
            Ok(()) => self.place.discard(self.payload).await,
            Err(error) => {
                tracing::debug!(%queue, %error, "failed to delete a pending message; the consumer that receives the message will delete it");
            }
        }
    }
}

/// How long a pending message is invisible: for at most half of its life.
fn pending_for(time_to_live: TimeToLive) -> Duration {
    match time_to_live {
        TimeToLive::Never => PENDING,
        TimeToLive::After(lifetime) => PENDING.min(lifetime / 2),
    }
}

/// The error of a message that is not submitted, whatever became of the rest.
fn unsubmitted(error: Error, queue: &QueueName) -> Error {
    failed(&error, Operation::Put, queue)
}

/// Returns the error of an operation on a queue that failed by that of its payload, and was not carried out.
pub(super) fn failed(error: &Error, operation: Operation, queue: &QueueName) -> Error {
    let kind = match error.kind() {
        // These kinds are said of messages and queues.
        ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch | ErrorKind::QueueNotFound => {
            ErrorKind::Storage
        }
        kind => kind,
    };
    Error::new(kind, operation)
        .with_queue(queue)
        .with_retry(error.retry())
        .with_detail("the failure is that of the payload store, to which its payload goes")
        .with_source(error.clone())
}

fn abandoned() -> Error {
    Error::new(ErrorKind::Timeout, Operation::StoreData)
        .with_detail("the receipt of the pending message is stale: a consumer has deleted the message, because its payload was not stored in time, or the submission was carried out twice")
}

fn not_attached(queue: &QueueName) -> Error {
    Error::new(ErrorKind::InvalidInput, Operation::Put)
        .with_queue(queue)
        .with_detail("the body of a message with an attachment is an event whose `dataref` is `urn:queue:attachment`")
        .unsent()
}

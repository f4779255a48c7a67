//! A message on its way: put, and not submitted before its payload is stored.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend, Lease, NewMessage, PopReceipt, StorageId, TimeToLive};
use queue_core::clock::Clock;
use queue_core::wire::StoredPayload;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Result};

use super::place::Place;

/// How long a pending message is invisible, and how often that is prolonged.
const PENDING: Duration = Duration::from_secs(60);
const RENEWAL: Duration = Duration::from_secs(20);

/// A message that was put before its payload is stored.
pub(super) struct Pending<'a> {
    pub(super) storage: &'a dyn Backend,
    pub(super) place: &'a Place,
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

    /// Keeps the message invisible for longer. One that another has received is abandoned.
    async fn renew(&mut self, time_to_live: TimeToLive) -> Result<()> {
        let (queue, visibility) = (self.queue, pending_for(time_to_live));
        let renewed = self
            .storage
            .update(queue, &self.id, &self.receipt, visibility, None);
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

    /// Submits the message.
    pub(super) async fn submit(self, submitted: NewMessage) -> Result<Lease> {
        let (queue, storage) = (self.queue, self.storage);
        let (delay, body) = (submitted.delay, Some(submitted.body));
        let updated = storage.update(queue, &self.id, &self.receipt, delay, body);
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
        // whoever receives the message while it is pending marks it.
        let error = if gone { abandoned() } else { error };
        Err(unsubmitted(error, queue).with_outcome(Outcome::Unknown))
    }

    /// Deletes what was certainly not submitted. What fails is abandoned later.
    async fn withdraw(&self) {
        let (queue, storage) = (self.queue, self.storage);
        match storage.delete(queue, &self.id, &self.receipt).await {
            Ok(()) => self.place.discard(self.payload).await,
            Err(error) => {
                tracing::debug!(%queue, %error, "failed to delete a pending message; whoever receives it will");
            }
        }
    }
}

/// How long a pending message is invisible: not for longer than it lives.
pub(super) fn pending_for(time_to_live: TimeToLive) -> Duration {
    match time_to_live {
        TimeToLive::Never => PENDING,
        TimeToLive::After(lifetime) => PENDING.min(lifetime / 2),
    }
}

/// The message is not submitted, whatever became of the rest.
pub(super) fn unsubmitted(error: Error, queue: &QueueName) -> Error {
    failed(&error, Operation::Put, queue)
}

/// Returns the error of an operation on a queue that failed by that of its payload, and was not carried out.
pub(super) fn failed(error: &Error, operation: Operation, queue: &QueueName) -> Error {
    let kind = match error.kind() {
        // Those are said of messages and queues.
        ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch | ErrorKind::QueueNotFound => {
            ErrorKind::Storage
        }
        kind => kind,
    };
    Error::new(kind, operation)
        .with_queue(queue)
        .with_retry(error.retry())
        .with_detail("its payload is in a store of payloads")
        .with_source(error.clone())
}

fn abandoned() -> Error {
    Error::new(ErrorKind::Timeout, Operation::StoreData)
        .with_detail("its receipt is stale: another took the message for one that is not submitted, because its payload was not stored in time, or the submission was carried out twice")
}

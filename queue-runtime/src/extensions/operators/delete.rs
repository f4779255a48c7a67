//! Deletions of messages by what was seen of them, and what goes along in their step.

use std::time::Duration;

use queue_core::backend::{BackendExt as _, NewMessage, Op, PopReceipt, StorageId, Swap};
use queue_core::wire::Body;
use queue_core::{ErrorKind, QueueName, Result};

use super::browse::Browsed;
use crate::kernel::notify::Announced;
use crate::kernel::send::release;
use crate::service::AnyQueue;

/// What goes along with a deletion.
#[derive(Debug, Clone, Default)]
pub(super) struct Along {
    /// What is put, unless its reply queue is gone.
    pub(super) notice: Option<(QueueName, NewMessage)>,
    /// What is recorded, unless something else is.
    pub(super) record: Option<Swap>,
}

impl AnyQueue {
    /// Deletes a message that was browsed, in any state, unless it has changed since: it was received, put back, or its
    /// consumer has renewed its lease. If the message has changed, browse again. A key that the message
    /// [holds](crate::send::Submit::unique_until_settled) is released.
    ///
    /// A consumer that holds the message is told to stop when it renews its lease; until then, it can complete the
    /// message, but neither put it back nor complete it with follow-ups.
    ///
    /// # Errors
    /// The backend's error: [`ErrorKind::ReceiptMismatch`](crate::ErrorKind::ReceiptMismatch) if the message has
    /// changed since it was browsed, [`ErrorKind::MessageNotFound`](crate::ErrorKind::MessageNotFound) if it is gone.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not have been deleted.
    pub async fn delete_message(&self, message: &Browsed) -> Result<()> {
        self.delete_browsed(message, &Along::default()).await
    }

    /// Deletes a message that was browsed, with what goes along.
    pub(super) async fn delete_browsed(&self, message: &Browsed, along: &Along) -> Result<()> {
        let delete =
            || self.delete_held(&message.id, &message.receipt, &message.body, along.clone());
        self.context.ask(delete).await
    }

    /// Deletes a message by a receipt, with what goes along, releases the key that it holds, and announces the next one of its
    /// group.
    pub(super) async fn delete_held(
        &self,
        id: &StorageId,
        receipt: &PopReceipt,
        body: &Body,
        along: Along,
    ) -> Result<()> {
        self.delete_along(id, receipt, body, along).await?;
        let envelope = body.envelope();
        if envelope.is_some_and(|envelope| envelope.group.is_some()) {
            let next = Announced::put_back(&self.name, Duration::ZERO);
            self.context.notifiers.publish([next]);
        }
        Ok(())
    }

    async fn delete_along(
        &self,
        id: &StorageId,
        receipt: &PopReceipt,
        body: &Body,
        Along {
            mut notice,
            mut record,
        }: Along,
    ) -> Result<()> {
        let backend = &self.context.backend;
        let envelope = body.envelope();
        let mut release = envelope.and_then(|envelope| release(&self.context, envelope));
        loop {
            let put = notice
                .clone()
                .map(|(queue, message)| Op::Put { queue, message });
            let delete = Op::Delete {
                queue: self.name.clone(),
                id: id.clone(),
                receipt: receipt.clone(),
                moved: false,
            };
            let deletes_at = usize::from(put.is_some());
            let swaps = release.iter().chain(&record).map(|swap| Op::Swap {
                queue: self.name.clone(),
                swap: swap.clone(),
            });
            let ops: Vec<Op> = put.into_iter().chain([delete]).chain(swaps).collect();
            if ops.len() == 1 {
                return backend.delete(&self.name, id, receipt).await;
            }
            let failed = match backend.apply(ops.into()).await {
                Ok(_) => {
                    let notifiers = &self.context.notifiers;
                    notifiers.publish(Announced::of_puts(notice.as_slice()));
                    return Ok(());
                }
                Err(failed) => failed,
            };
            let is_of_record = matches!(
                failed.error.kind(),
                ErrorKind::Conflict | ErrorKind::Corrupt
            );
            if failed.index < deletes_at && failed.error.is_queue_gone() {
                notice = None;
            } else if failed.index > deletes_at && is_of_record {
                // The key is another message's by now, or nobody's, or what is recorded cannot be read.
                if failed.completed.len() > deletes_at {
                    return Ok(());
                }
                if failed.index > deletes_at + 1 || release.take().is_none() {
                    record = None;
                }
            } else {
                return Err(failed.error);
            }
        }
    }
}

//! Deletions of messages by what was seen of them, and what goes along in their step.

use std::time::Duration;

use queue_core::backend::{BackendExt as _, NewMessage, Op, PopReceipt, StorageId, Swap};
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, Outcome, QueueName, Result, RetryAdvice};

use super::browse::Browsed;
use crate::kernel::notify::Announced;
use crate::kernel::send::release;
use crate::service::AnyQueue;

/// What goes along with a deletion.
#[derive(Debug, Clone, Default)]
pub(super) struct Along {
    /// What is put, unless the storage refuses it.
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

    /// The deletion comes first: where operations are carried out in order, nobody is told of a removal that is then refused.
    async fn delete_along(
        &self,
        id: &StorageId,
        receipt: &PopReceipt,
        body: &Body,
        along: Along,
    ) -> Result<()> {
        let backend = &self.context.backend;
        let release = body
            .envelope()
            .and_then(|envelope| release(&self.context, envelope));
        let delete = Op::Delete {
            queue: self.name.clone(),
            id: id.clone(),
            receipt: receipt.clone(),
            moved: false,
        };
        let swaps = release.into_iter().chain(along.record);
        let swaps = swaps.map(|swap| Op::Swap {
            queue: self.name.clone(),
            swap,
        });
        let notice = along
            .notice
            .map(|(queue, message)| Op::Put { queue, message });
        let mut ops: Vec<Op> = [delete].into_iter().chain(swaps).chain(notice).collect();
        if ops.len() == 1 {
            return backend.delete(&self.name, id, receipt).await;
        }
        let mut is_deleted = false;
        while !ops.is_empty() {
            let Err(failed) = backend.apply(ops.clone().into()).await else {
                break;
            };
            let at = failed.index;
            let goes_along = is_deleted || at > 0;
            if !goes_along || !can_do_without(&ops[at], &failed.error) {
                return Err(failed.error);
            }
            ops.remove(at);
            if !failed.completed.is_empty() {
                is_deleted = true;
                ops.drain(..at);
            }
        }
        self.context.notifiers.publish(Announced::puts_of(&ops));
        Ok(())
    }
}

/// Whether a deletion goes on without an operation that has failed beside it.
fn can_do_without(op: &Op, error: &Error) -> bool {
    if let Op::Swap { .. } = op {
        // The key is another message's by now, or nobody's, or what is recorded cannot be read.
        return matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Corrupt);
    }
    let is_refused = error.retry() == RetryAdvice::Permanent && error.outcome() == Outcome::NotDone;
    if is_refused && !error.is_queue_gone() {
        tracing::warn!(%error, "failed to tell the sender of a request that the message was cancelled");
    }
    is_refused || error.is_queue_gone()
}

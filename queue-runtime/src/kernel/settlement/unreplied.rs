//! Deleting a message that has ended, and telling the sender of a request in the same step that it gets no reply.

use queue_core::backend::NewMessage;
use queue_core::{Error, QueueName};

use super::LOG;
use super::carry_out::Settling;
use super::write::{Change, Unsettled, write};
use crate::kernel::lease::Purpose;
use crate::kernel::send::Unreplied;

impl Settling<'_> {
    /// Puts messages and deletes this one. Its sender is told how it ended, unless that is among the puts.
    ///
    /// What the sender is told never prevents the deletion: if the storage refuses it for good, it is left out.
    pub(super) async fn delete_and_tell(
        self,
        purpose: Purpose,
        mut puts: Vec<(QueueName, NewMessage)>,
        unreplied: &Unreplied,
    ) -> Result<(), Unsettled> {
        let (context, incoming) = (self.context, self.incoming);
        let told = unreplied.tell(context, &incoming.envelope, &mut puts);
        let delete = Change::Delete {
            moved: matches!(purpose, Purpose::Poison { .. }),
        };
        let settled = write(context, incoming, purpose, puts, delete.clone()).await;
        let Some(queue) = told else {
            return settled;
        };
        let Err(mut unsettled) = settled else {
            return Ok(());
        };
        let is_told = |error: &&Error| error.queue().is_none_or(|refused| *refused == queue);
        let refused = unsettled.refused_put().filter(is_told).cloned();
        // The caller has not asked for it.
        unsettled.puts.retain(|(to, _)| *to != queue);
        let Some(error) = refused else {
            return Err(unsettled);
        };
        let id = &incoming.envelope.id;
        tracing::warn!(target: LOG, queue = %incoming.lease.queue(), %id, reply_queue = %queue, %error, "failed to tell the sender of a request that it gets no reply");
        let untold = write(context, incoming, purpose, unsettled.puts, delete);
        Box::pin(untold).await
    }
}

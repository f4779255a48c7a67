//! Staging the attachments of messages before these are put.

use queue_core::backend::{Attachment, NewMessage};
use queue_core::{Operation, Outcome, QueueName, Result};

use super::SqliteBackend;
use crate::command::{Answer, Command, Request, mismatched};
use crate::rows::attachments::{Attaching, Staging, parts};
use crate::rows::tables::Step;

impl SqliteBackend {
    /// Returns the put of a message. Its attachment is staged if it has more bytes than `room`, which those that are put
    /// with the message share.
    pub(super) async fn step(
        &self,
        operation: Operation,
        queue: &QueueName,
        mut message: NewMessage,
        room: &mut usize,
    ) -> Result<Step> {
        let data = match message.attachment {
            Some(Attachment::New(data)) if data.len() > *room => data,
            attachment => {
                if let Some(Attachment::New(data)) = &attachment {
                    *room -= data.len();
                }
                message.attachment = attachment;
                return Ok(Step::put(queue.clone(), message));
            }
        };
        message.attachment = None;
        // Whatever has become of it, the message was not put.
        let stage = async |staging| {
            let staged = self.ask_about(operation, queue, Request::Stage(staging));
            match staged
                .await
                .map_err(|error| error.with_outcome(Outcome::NotDone))?
            {
                Answer::Staged(id) => Ok(id),
                other => mismatched(&other),
            }
        };
        let (queue, size) = (queue.clone(), data.len());
        let begin = Staging::Begin {
            queue: queue.clone(),
            size,
        };
        let id = stage(begin).await?;
        for (number, data) in parts(&data) {
            if let Err(error) = stage(Staging::Part { id, number, data }).await {
                self.discard([id]);
                return Err(error);
            }
        }
        let mut step = Step::put(queue, message);
        if let Step::Put { parcel, .. } = &mut step {
            parcel.attachment = Some(Attaching::Staged(id));
        }
        Ok(step)
    }

    /// Gives up what was staged for messages that were not put, so that it does not stay for an hour. What is a message's
    /// stays.
    pub(super) fn discard(&self, staged: impl IntoIterator<Item = i64>) {
        for id in staged {
            let (command, _) = Command::new(Request::Stage(Staging::Discard { id }));
            // A writer that has ended leaves it to the next one.
            drop(self.commands.send(command));
        }
    }
}

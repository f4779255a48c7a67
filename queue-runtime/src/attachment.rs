//! Data that is stored with a message and is not in its body: reading it, and keeping it when the message is moved.

use bytes::Bytes;
use queue_core::backend::{Attachment, Attachments, NewMessage, StorageId};
use queue_core::internal::error_chain;
use queue_core::wire::Attached;
use queue_core::{Error, ErrorKind, QueueName};

use crate::context::Context;

/// Why an attachment was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It will not be read: the message has none, or a larger one than is allowed.
    Unusable(String),
    Damaged(String),
    /// The message is not there any more.
    Gone,
    Failed(Error),
}

/// Reads what is attached to a message whose event says so.
///
/// # Cancel safety
/// Cancel safe.
pub(crate) async fn read_attachment(
    context: &Context,
    queue: &QueueName,
    id: &StorageId,
    attached: &Attached,
) -> Result<Bytes, Unread> {
    let (size, most) = (attached.size() as usize, context.encoder.max_payload());
    if size > most {
        let error = format!("its data has {size} bytes, and {most} are allowed");
        return Err(Unread::Unusable(error));
    }
    let missing = || {
        let error = "its data is said to be attached to it, and nothing is";
        Unread::Unusable(error.to_owned())
    };
    let capabilities = context.backend.capabilities();
    let has_attachments = capabilities.attachments == Attachments::Supported;
    let mut data = Vec::new();
    loop {
        let part = context.backend.attachment(queue, id, data.len() as u64);
        let part = part.await.map_err(|error| match error.kind() {
            ErrorKind::MessageNotFound | ErrorKind::QueueNotFound => Unread::Gone,
            ErrorKind::Unsupported if !has_attachments => missing(),
            ErrorKind::Corrupt => Unread::Damaged(error_chain(&error)),
            _ => Unread::Failed(error),
        });
        let part = part?.ok_or_else(missing)?;
        if part.is_empty() {
            return Ok(data.into());
        }
        if part.len() > size - data.len() {
            let error = format!("more than the {size} bytes that it declares are attached to it");
            return Err(Unread::Damaged(error));
        }
        data.extend_from_slice(&part);
    }
}

/// Returns a message of this body that takes the place of another one, with its attachment.
pub(crate) fn moved(
    context: &Context,
    queue: &QueueName,
    id: &StorageId,
    body: Bytes,
) -> NewMessage {
    let mut new = NewMessage::moved(body);
    if context.backend.capabilities().attachments == Attachments::Supported {
        new.attachment = Some(Attachment::Of {
            queue: queue.clone(),
            id: id.clone(),
        });
    }
    new
}

//! Data that is stored with a message and is not in its body: reading it, and keeping it when the message is moved.

use bytes::Bytes;
use queue_core::backend::{Attachment, AttachmentPart, Attachments, NewMessage, StorageId};
use queue_core::internal::error_chain;
use queue_core::wire::{Attached, Body, StoredPayload};
use queue_core::{Error, ErrorKind, Operation, QueueName};

use crate::context::Context;

/// Why an attachment was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It will not be read: the message has none, or a larger one than is allowed.
    Unusable(String),
    Damaged(String),
    /// The message is not there any more.
    Gone,
    /// It is a copy of a message that is done.
    Done,
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
    body: &Body,
    attached: &Attached,
) -> Result<Bytes, Unread> {
    let stored = stored(context, queue, body, attached)?;
    let (size, most) = (attached.size() as usize, context.encoder.max_payload());
    if size > most {
        let error = format!("its data has {size} bytes, and {most} are allowed");
        return Err(Unread::Unusable(error));
    }
    let missing = || {
        Unread::Unusable(match attached.stored() {
            None => "its data is said to be attached to it, and nothing is".to_owned(),
            Some(reference) => format!("its payload `{reference}` is not in the store of payloads"),
        })
    };
    let has_attachments = context.backend.capabilities().attachments != Attachments::Unsupported;
    // One that grew would take up to twice as much. What is attached is no longer than what it expands to.
    let mut data = Vec::with_capacity(size);
    loop {
        let from = data.len() as u64;
        let part = context.backend.attachment(queue, id, stored.as_ref(), from);
        let part = part.await.map_err(|error| match error.kind() {
            ErrorKind::MessageNotFound | ErrorKind::QueueNotFound => Unread::Gone,
            ErrorKind::Unsupported if !has_attachments => missing(),
            ErrorKind::Corrupt => Unread::Damaged(error_chain(&error)),
            _ => Unread::Failed(error),
        });
        let part = match part? {
            AttachmentPart::Data(part) => part,
            AttachmentPart::Missing => return Err(missing()),
            AttachmentPart::Done => return Err(Unread::Done),
        };
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

/// Returns where the data is, if it is in a store of payloads.
fn stored(
    context: &Context,
    queue: &QueueName,
    body: &Body,
    attached: &Attached,
) -> Result<Option<StoredPayload>, Unread> {
    let Some(reference) = attached.stored() else {
        return Ok(None);
    };
    let Some(stored) = StoredPayload::of(body, queue) else {
        let error = format!("its payload `{reference}` is that of another queue's message");
        return Err(Unread::Unusable(error));
    };
    if context.backend.capabilities().attachments != Attachments::InStore {
        let error = Error::new(ErrorKind::Unsupported, Operation::FetchData).with_queue(queue);
        let detail = "its payload is in a store of payloads, which this service does not have";
        return Err(Unread::Failed(error.with_detail(detail)));
    }
    Ok(Some(stored))
}

/// Returns a message of this body that takes the place of another one, with its attachment.
pub(crate) fn moved(
    context: &Context,
    queue: &QueueName,
    id: &StorageId,
    body: Bytes,
) -> NewMessage {
    let key = Body::partition_key(&body);
    let mut new = NewMessage::moved(body).with_partition_key(key.as_deref());
    if context.backend.capabilities().attachments != Attachments::Unsupported {
        new.attachment = Some(Attachment::Of {
            queue: queue.clone(),
            id: id.clone(),
        });
    }
    new
}

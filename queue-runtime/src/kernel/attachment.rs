//! Data that is stored with a message, outside its body: reading it, and keeping it when the message is moved.

use std::fmt;

use bytes::Bytes;
use queue_core::backend::{self, AttachmentPart, Attachments, NewMessage, StorageId, Tracking};
use queue_core::internal::error_chain;
use queue_core::wire::{Attached, Body, ExpandErrorKind, StoredPayload};
use queue_core::{Error, ErrorKind, Operation, QueueName, RetryAdvice};

use crate::kernel::context::Context;

/// Why an attachment was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The attachment will not be read: the message has none, or a larger one than is allowed.
    Unusable(String),
    Damaged(String),
    /// The message is not there any more.
    Gone,
    /// The message is a copy of one that is done.
    Done,
    Failed(Error),
}

/// What identifies a payload store.
pub(crate) trait PayloadIdentity: fmt::Debug + Send + Sync {
    /// Has the identity read again before it is believed.
    fn doubt(&self);
}

/// What is attached to a message.
pub(crate) struct Attachment {
    /// The data as it is attached.
    pub(crate) stored: Bytes,
    /// The data of the message.
    pub(crate) data: Bytes,
}

/// Reads what is attached to a message whose event says so, and checks that it is what the event declares.
///
/// An attachment that is not as declared is read again if it is in a payload store, whose identity is read anew: one
/// that was cut or replaced on its way differs then, and only one that is wrong twice is damaged.
///
/// # Cancel safety
/// Cancel safe.
pub(crate) async fn read_attachment(
    context: &Context,
    queue: &QueueName,
    id: &StorageId,
    body: &Body,
    attached: &Attached,
) -> Result<Attachment, Unread> {
    let stored = stored(context, queue, body, attached)?;
    let (size, most) = (attached.size() as usize, context.encoder.max_payload());
    if size > most {
        let error = format!("its data has {size} bytes, and {most} are allowed");
        return Err(Unread::Unusable(error));
    }
    let read = || read(context, queue, id, attached, stored.as_ref());
    let bytes = read().await?;
    let problem = match opened(attached, &bytes, most) {
        Err(problem @ Unread::Damaged(_)) => problem,
        read => return read,
    };
    let Some(identity) = context.payloads.as_ref().filter(|_| stored.is_some()) else {
        return Err(problem);
    };
    identity.doubt();
    let again = read().await?;
    if again == bytes {
        return Err(problem);
    }
    opened(attached, &again, most).map_err(|_| {
        let error = Error::new(ErrorKind::Corrupt, Operation::FetchData).with_queue(queue);
        let detail = "its payload was read twice, and differs from what was written in another way each time";
        Unread::Failed(error.with_detail(detail).with_retry(RetryAdvice::Temporary))
    })
}

fn opened(attached: &Attached, stored: &Bytes, most: usize) -> Result<Attachment, Unread> {
    let stored = stored.clone();
    match attached.open(stored.clone(), most) {
        Ok(data) => Ok(Attachment { stored, data }),
        Err(error) => Err(match error.kind {
            ExpandErrorKind::Damaged(_) if stored.len() > error.size as usize => {
                let size = error.size;
                Unread::Damaged(format!(
                    "more than the {size} bytes that it declares are attached to it"
                ))
            }
            ExpandErrorKind::Damaged(_) => Unread::Damaged(error.to_string()),
            _ => Unread::Unusable(error.to_string()),
        }),
    }
}

/// Reads what is attached, and no more than a part behind the end that it should have.
async fn read(
    context: &Context,
    queue: &QueueName,
    id: &StorageId,
    attached: &Attached,
    stored: Option<&StoredPayload>,
) -> Result<Bytes, Unread> {
    let size = attached.size() as usize;
    let missing = || {
        Unread::Unusable(match attached.stored() {
            None => "its data is said to be attached to it, and nothing is".to_owned(),
            Some(reference) => format!("its payload `{reference}` is not in the payload store"),
        })
    };
    let has_attachments = context.backend.capabilities().attachments != Attachments::Unsupported;
    // A vector that grew would take up to twice as much. What is attached is no longer than what it expands to.
    let mut data = Vec::with_capacity(size);
    loop {
        let from = data.len() as u64;
        let part = context.backend.attachment(queue, id, stored, from);
        let part = part.await.map_err(|error| match error.kind() {
            ErrorKind::MessageNotFound | ErrorKind::QueueNotFound => Unread::Gone,
            ErrorKind::Unsupported if !has_attachments => missing(),
            _ if error.is_damage() => Unread::Damaged(error_chain(&error)),
            _ => Unread::Failed(error),
        });
        let part = match part? {
            AttachmentPart::Data(part) => part,
            AttachmentPart::Missing => return Err(missing()),
            AttachmentPart::Done => return Err(Unread::Done),
        };
        data.extend_from_slice(&part);
        if part.is_empty() || data.len() > size {
            return Ok(data.into());
        }
    }
}

/// Returns where the data is, if it is in a payload store.
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
        let detail = "its payload is in a payload store, which this service does not have";
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
    let key = Body::shard_key(&body);
    let tracked = match context.backend.capabilities().tracking {
        Tracking::Supported => Body::tracked(&body),
        _ => None,
    };
    let mut new = NewMessage::moved(body)
        .with_shard_key(key.as_deref())
        .with_tracked(tracked);
    if context.backend.capabilities().attachments != Attachments::Unsupported {
        new.attachment = Some(backend::Attachment::Of {
            queue: queue.clone(),
            id: id.clone(),
        });
    }
    new
}

//! Payloads beside their messages: the protocol has no request for them, so they are answered within the text.

use bytes::{Bytes, BytesMut};
use queue_azure_wire::MAX_TEXT;
use queue_azure_wire::code::Code;
use queue_core::backend::{AttachmentPart, StorageId};
use queue_core::wire::{Attached, Body, Event, Payload, encode_payload};
use queue_core::{Error, QueueName};

use crate::account::Account;

/// Why a message cannot be handed out.
#[derive(Debug)]
pub(crate) struct Obstacle {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

/// Returns what a client of the protocol gets as the text of a message.
///
/// # Errors
/// Why no text has all of the message.
pub(crate) async fn whole(
    account: &Account,
    queue: &QueueName,
    id: &StorageId,
    body: &Bytes,
    damage: Option<&str>,
) -> Result<Bytes, Obstacle> {
    if let Some(damage) = damage {
        // What is left of its text would be taken for the message.
        return Err(obstacle(Code::InternalError, damage));
    }
    if memchr::memmem::find(body, b"\"dataref\"").is_none() {
        return Ok(body.clone());
    }
    let Body::Event(mut event) = Body::read(body, usize::MAX) else {
        return Ok(body.clone());
    };
    let Payload::Attached(attached) = event.payload.clone() else {
        return Ok(body.clone());
    };
    let size = attached.size();
    if attached.stored().is_some() {
        return Err(too_large(size, "in a payload store"));
    }
    if size as usize > MAX_TEXT {
        return Err(too_large(size, "beside it"));
    }
    let read = read(account, queue, id, &attached).await;
    let read = read.map_err(|error| obstacle(Code::InternalError, error.to_string()))?;
    let data = read.ok_or_else(|| obstacle(Code::InternalError, "its payload is gone"))?;
    inline(&mut event, data)
        .map_err(|problem| obstacle(Code::InternalError, problem))?
        .ok_or_else(|| too_large(size, "beside it"))
}

/// Reads what is attached to a message, and no more than a part behind the end that it should have.
async fn read(
    account: &Account,
    queue: &QueueName,
    id: &StorageId,
    attached: &Attached,
) -> Result<Option<Bytes>, Error> {
    let mut data = BytesMut::new();
    loop {
        let from = data.len() as u64;
        let part = account.queues.attachment(queue, id, None, from).await?;
        let AttachmentPart::Data(part) = part else {
            return Ok(None);
        };
        data.extend_from_slice(&part);
        if part.is_empty() || data.len() > attached.size() as usize {
            return Ok(Some(data.freeze()));
        }
    }
}

/// Returns the event with its data, if a text has room for it.
fn inline(event: &mut Event, data: Bytes) -> Result<Option<Bytes>, String> {
    event
        .attach(data, MAX_TEXT)
        .map_err(|error| error.to_string())?;
    let body = encode_payload(&event.envelope, &event.payload);
    Ok((body.len() <= MAX_TEXT).then(|| body.into()))
}

fn too_large(size: u32, place: &str) -> Obstacle {
    let reason = format!(
        "its payload of {size} bytes is {place}, and a text has at most {MAX_TEXT} bytes; the program that submitted it can read it"
    );
    obstacle(Code::MessageTooLarge, reason)
}

fn obstacle(code: Code, reason: impl Into<String>) -> Obstacle {
    let reason = reason.into();
    Obstacle { code, reason }
}

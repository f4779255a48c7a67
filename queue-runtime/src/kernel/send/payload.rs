//! Payloads without a Rust type: checks, and how they come to fit their messages.

use bytes::Bytes;
use queue_core::backend::Attachments;
use queue_core::encoder::Encoder;
use queue_core::internal::check_json;
use queue_core::wire::{Attached, Body, Compressed, Payload};
use queue_core::{Error, ErrorKind, MessageId, Operation};

/// Checks that a payload is what it says, and not too large.
pub(crate) fn check(
    payload: &Payload,
    encoder: Encoder,
    operation: Operation,
) -> Result<(), Error> {
    if let Payload::Json(json) = payload {
        check_json(json).map_err(|error| {
            let problem = format!("the payload is not JSON that every reader accepts: {error}");
            refused(ErrorKind::InvalidInput, operation, problem)
        })?;
    }
    let (size, most) = (payload.size(), encoder.max_payload());
    if size > most {
        let problem = format!("it has a payload of {size} bytes, and {most} are allowed");
        return Err(refused(ErrorKind::TooLarge, operation, problem));
    }
    Ok(())
}

/// Returns the event that `encode` makes of a payload, and what is to be attached to its message: with more bytes than
/// `limit` otherwise, the payload is compressed, and attached where `attachments` allow it if that does not suffice.
pub(crate) fn within(
    limit: usize,
    attachments: Attachments,
    payload: &Payload,
    mut encode: impl FnMut(&Payload) -> Vec<u8>,
) -> (Vec<u8>, Option<Bytes>) {
    let body = encode(payload);
    let data = match payload {
        Payload::Json(data) | Payload::Binary(data) if body.len() > limit => data,
        _ => return (body, None),
    };
    let Some(compressed) = Compressed::new(data) else {
        return (body, None);
    };
    let body = encode(&Payload::Compressed(compressed.clone()));
    if body.len() <= limit || attachments == Attachments::Unsupported {
        return (body, None);
    }
    let (attached, data) = Attached::new(data, compressed);
    (encode(&Payload::Attached(attached)), Some(data))
}

/// Checks that a consumer would read this body as the event of that id.
pub(crate) fn check_readable(
    body: &[u8],
    id: &MessageId,
    operation: Operation,
) -> Result<(), Error> {
    let problem = match Body::read(&Bytes::copy_from_slice(body), usize::MAX) {
        Body::Event(event) if event.envelope.id == *id => return Ok(()),
        Body::Malformed(problem) => format!("the event is malformed: {problem}"),
        _ => "the event is not valid JSON in UTF-8".to_owned(),
    };
    Err(refused(ErrorKind::InvalidInput, operation, problem))
}

/// Checks the size of a body.
pub(crate) fn check_size(size: usize, limit: usize, operation: Operation) -> Result<(), Error> {
    if size > limit {
        let problem = format!("it has {size} bytes, and {limit} are allowed");
        return Err(refused(ErrorKind::TooLarge, operation, problem));
    }
    Ok(())
}

fn refused(kind: ErrorKind, operation: Operation, problem: String) -> Error {
    Error::new(kind, operation).unsent().with_detail(problem)
}

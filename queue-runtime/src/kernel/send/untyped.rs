//! Submitting what has no Rust type: checks of its payload, and how that comes to fit its message.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Attachment, Attachments, NewMessage, TimeToLive};
use queue_core::encoder::Encoder;
use queue_core::envelope::AttemptRecord;
use queue_core::internal::check_json;
use queue_core::wire::{self, ACCOUNTING_RESERVE, Attached, Body, Compressed, Payload};
use queue_core::{Envelope, Error, ErrorKind, MessageId, Operation, QueueName, RequestId};
use tracing::Instrument as _;

use super::dispatch::{Dispatch, Outgoing};
use super::error::{SubmitError, SubmitErrorKind};
use super::submit::Submitted;
use crate::kernel::context::Context;
use crate::kernel::observe::{self, current_trace, record_id};

/// A message without a Rust type, for [`AnyQueue::submit`](crate::AnyQueue::submit).
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is submitted"]
pub struct UntypedMessage {
    content: Content,
    delay: Duration,
    time_to_live: Option<Duration>,
}

#[derive(Debug, Clone)]
enum Content {
    Event(Box<Envelope>, Payload),
    Bare(Bytes),
}

impl UntypedMessage {
    /// Creates an event. Attempts, a poison record and a unique key of another message's envelope are left out; a time,
    /// the queue's URI and the trace context of its submission are filled in if they are missing.
    pub fn event(envelope: Envelope, payload: Payload) -> Self {
        Self::new(Content::Event(Box::new(envelope), payload))
    }

    /// Creates a bare body, such as a consumer outside this framework expects. A bare body has no envelope.
    pub fn bare(body: impl Into<Bytes>) -> Self {
        Self::new(Content::Bare(body.into()))
    }

    fn new(content: Content) -> Self {
        Self {
            content,
            delay: Duration::ZERO,
            time_to_live: None,
        }
    }

    /// Makes the message visible only after this delay.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets how long the message is kept. By default the message never expires.
    pub fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// Puts the message on a queue, which is created if it does not exist.
    pub(crate) async fn submit(
        self,
        context: &Arc<Context>,
        queue: &QueueName,
    ) -> Result<Submitted, SubmitError<Self>> {
        let (span, sending) = (observe::send(queue, 1), Dispatch::new(context));
        let outgoing = match span.in_scope(|| self.encode(context, queue)) {
            Ok(outgoing) => outgoing,
            Err(error) => {
                let problem = SubmitErrorKind::Storage(error.with_queue(queue));
                return Err(SubmitError::unsent(self, problem));
            }
        };
        span.in_scope(|| record_id(&outgoing.id));
        let put = sending.put(&outgoing).instrument(span).await;
        outgoing.ended(self, put)
    }

    fn encode(&self, context: &Context, queue: &QueueName) -> Result<Outgoing, Error> {
        let invalid = |kind| Error::new(kind, Operation::Put).unsent();
        let limit = context.encoder.raw_limit();
        let (id, request_id, keys, (body, attached), limit) = match &self.content {
            Content::Event(envelope, payload) => {
                let mut envelope = envelope.clone();
                envelope.trace = envelope.trace.or_else(current_trace);
                envelope.time = envelope.time.or_else(|| Some(context.clock.now()));
                if envelope.queue_uri.is_none() {
                    envelope.queue_uri = Some(context.backend.queue_uri(queue));
                }
                envelope.attempts = AttemptRecord::default();
                (envelope.poison, envelope.unique_key) = (None, None);
                if let Payload::Attached(_) = payload {
                    let problem = "the data is attached to another message; accept that message, and submit its data";
                    return Err(invalid(ErrorKind::InvalidInput).with_detail(problem));
                }
                if let Payload::Elsewhere(reference) = payload
                    && (reference.is_empty() || reference.contains(char::is_control))
                {
                    let problem =
                        "`dataref` is empty, or has control characters; it is a URI reference";
                    return Err(invalid(ErrorKind::InvalidInput).with_detail(problem));
                }
                check_payload(payload, context.encoder, Operation::Put)?;
                let limit = limit.saturating_sub(ACCOUNTING_RESERVE);
                let attachments = context.backend.capabilities().attachments;
                let encoded = fit_payload(limit, attachments, payload, |stored| {
                    if let (Payload::Compressed(_) | Payload::Attached(_), Payload::Json(_)) =
                        (stored, payload)
                        && envelope.content_type.is_none()
                    {
                        envelope.content_type = Some(wire::JSON.into());
                    }
                    wire::encode_payload(&envelope, stored)
                });
                check_readable(&encoded.0, &envelope.id, Operation::Put)?;
                let (id, request_id) = (envelope.id.clone(), envelope.request_id.clone());
                (id, request_id, Some(envelope), encoded, limit)
            }
            Content::Bare(body) => (
                MessageId::random(),
                RequestId::random(),
                None,
                (body.to_vec(), None),
                limit,
            ),
        };
        check_size(body.len(), limit, Operation::Put)?;
        let time_to_live = self
            .time_to_live
            .map_or_else(TimeToLive::default, TimeToLive::After);
        let mut new = NewMessage::new(context.encoder.stored(body))
            .with_delay(self.delay)
            .with_time_to_live(time_to_live)
            .with_keys_of(keys.as_deref());
        new.attachment = attached.map(Attachment::New);
        Ok(Outgoing {
            queue: queue.clone(),
            id,
            request_id,
            new,
        })
    }
}

/// Checks that a payload is what it says, and not too large.
pub(crate) fn check_payload(
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

/// Returns the event that `encode` makes of a payload, and what is to be attached to its message: a payload of more
/// bytes than `limit` is compressed, and attached where `attachments` allow it if that does not suffice.
pub(crate) fn fit_payload(
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

//! What is set aside, and why: the body that goes to the poison queue.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use queue_core::envelope::{AttemptRecord, Envelope, PoisonRecord};
use queue_core::wire::{self, Body, Event};
use queue_core::{ClientId, FollowUp, Message};

use crate::intake::Incoming;

/// The kind of an event that wraps what was not one.
pub const RAW_KIND: &str = "queue.raw";

/// A message that is being set aside, as `on_poison` sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Poisoned<M> {
    /// The message, unless its body could not be decoded.
    pub message: Option<M>,
    /// Its envelope; if the body is not an event (`record.raw`), it is made up from what the storage
    /// service says.
    pub envelope: Arc<Envelope>,
    /// Why it is set aside.
    pub record: PoisonRecord,
}

/// An `on_poison` with its message type erased.
#[derive(Clone)]
pub(crate) struct OnPoison(Arc<React>);

type React = dyn Fn(&Body, Arc<Envelope>, PoisonRecord) -> Vec<FollowUp> + Send + Sync;

impl OnPoison {
    pub(crate) fn new<M: Message>(
        react: impl Fn(Poisoned<M>) -> Option<FollowUp> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |body, envelope, record| {
            let message = body.decode::<M>().ok();
            react(Poisoned {
                message,
                envelope,
                record,
            })
            .into_iter()
            .collect()
        }))
    }

    pub(crate) fn follow_ups(
        &self,
        body: &Body,
        envelope: Arc<Envelope>,
        record: PoisonRecord,
    ) -> Vec<FollowUp> {
        (self.0)(body, envelope, record)
    }
}

impl fmt::Debug for OnPoison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnPoison(…)")
    }
}

/// The body for the poison queue, within `limit` bytes, with as much of the record as fits; `None` if
/// nothing of it does, so that the body has to go as it is.
pub(crate) fn set_aside(
    incoming: &Incoming,
    reader: &ClientId,
    record: &PoisonRecord,
    limit: usize,
) -> Option<Vec<u8>> {
    let with_error = |longest: usize| {
        let mut record = record.clone();
        record.error = record
            .error
            .map(|error| clip(&error, longest).to_owned())
            .filter(|error| !error.is_empty());
        record
    };
    [usize::MAX, 256, 0]
        .into_iter()
        .filter_map(|longest| with_record(incoming, reader, with_error(longest)))
        .find(|body| body.len() <= limit)
}

fn with_record(incoming: &Incoming, reader: &ClientId, record: PoisonRecord) -> Option<Vec<u8>> {
    let envelope = &incoming.envelope;
    if let Body::Event(event) = &incoming.body {
        let mut attempts = AttemptRecord::default();
        attempts.failures = envelope.attempts.failures;
        attempts.forgiven = envelope.attempts.forgiven;
        return wire::rewrite(&event.body, &attempts, Some(&record));
    }
    let mut wrapper = Envelope::new(
        envelope.id.clone(),
        reader.clone(),
        envelope.request.clone(),
        RAW_KIND,
    );
    wrapper.queue_uri = envelope.queue_uri.clone();
    wrapper.time = Some(record.first);
    wrapper.content_type = Some("application/octet-stream".to_owned());
    wrapper.poison = Some(record);
    Some(wire::encode_binary(&wrapper, &incoming.original))
}

/// The longest prefix of at most `max` bytes.
pub(crate) fn clip(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// A message as it was before it was set aside.
pub(crate) struct Restored {
    pub(crate) record: PoisonRecord,
    pub(crate) body: Original,
}

/// What redrive puts back.
pub(crate) enum Original {
    /// The event without its record.
    Event(Vec<u8>),
    /// The body of what was no event, as it was stored.
    Raw(Bytes),
}

/// The message inside a poison event; `None` if it has no record.
pub(crate) fn restored(event: &Event) -> Option<Restored> {
    let record = event.envelope.poison.clone()?;
    let body = if record.raw {
        Original::Raw(Bytes::copy_from_slice(event.payload.as_bytes()))
    } else {
        Original::Event(wire::rewrite(&event.body, &AttemptRecord::default(), None)?)
    };
    Some(Restored { record, body })
}

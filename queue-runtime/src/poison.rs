//! What is set aside, and why: the body that goes to the poison queue.

use std::fmt;
use std::sync::Arc;

use queue_core::envelope::{AttemptRecord, Envelope, PoisonRecord};
use queue_core::wire::{self, Body};
use queue_core::{ClientId, FollowUp, Message};

/// The kind of an event that wraps what was not one.
pub const RAW_KIND: &str = "queue.raw";

/// A message that is being set aside, as `on_poison` sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Poisoned<M> {
    /// The message, unless its body could not be decoded.
    pub message: Option<M>,
    /// Its envelope; made up from what the storage service says, if the body is not an event.
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

/// The body for the poison queue, within `limit` bytes. The record is shortened, and at last left out,
/// before the message itself would not fit.
pub(crate) fn set_aside(
    body: &Body,
    envelope: &Envelope,
    reader: &ClientId,
    record: &PoisonRecord,
    limit: usize,
    original: &[u8],
) -> Vec<u8> {
    let mut shorter = record.clone();
    shorter.error = shorter
        .error
        .as_deref()
        .map(|error| clip(error, 256).to_owned());
    let mut bare = record.clone();
    bare.error = None;
    [record, &shorter, &bare]
        .into_iter()
        .filter_map(|record| with_record(body, envelope, reader, record, original))
        .find(|body| body.len() <= limit)
        .unwrap_or_else(|| original.to_vec())
}

fn with_record(
    body: &Body,
    envelope: &Envelope,
    reader: &ClientId,
    record: &PoisonRecord,
    original: &[u8],
) -> Option<Vec<u8>> {
    if let Body::Event(event) = body {
        let mut attempts = AttemptRecord::default();
        attempts.failures = envelope.attempts.failures;
        attempts.forgiven = envelope.attempts.forgiven;
        return wire::rewrite(&event.body, &attempts, Some(record));
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
    let mut record = record.clone();
    record.raw = true;
    wrapper.poison = Some(record);
    Some(wire::encode_binary(&wrapper, original))
}

/// The longest prefix of at most `max` bytes.
pub(crate) fn clip(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// The body that redrive puts back: the event without its record, or the raw bytes of what was none.
pub(crate) fn restored(body: &Body) -> Option<(PoisonRecord, Vec<u8>)> {
    let Body::Event(event) = body else {
        return None;
    };
    let record = event.envelope.poison.clone()?;
    let restored = if record.raw {
        event.payload.as_bytes().to_vec()
    } else {
        wire::rewrite(&event.body, &AttemptRecord::default(), None)?
    };
    Some((record, restored))
}

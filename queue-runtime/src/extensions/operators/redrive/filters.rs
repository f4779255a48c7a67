use std::time::Duration;

use queue_core::Timestamp;
use queue_core::envelope::{Envelope, PoisonReason, PoisonRecord};
use queue_core::internal::between;
use queue_core::wire::RAW_KIND;
use queue_core::wire::{Body, Event};

/// Which messages are redriven. All conditions must hold.
#[derive(Default)]
pub(super) struct Filters {
    pub(super) ids: Vec<String>,
    pub(super) kinds: Vec<String>,
    pub(super) reasons: Vec<PoisonReason>,
    pub(super) errors: Vec<String>,
    pub(super) older_than: Option<Duration>,
    pub(super) younger_than: Option<Duration>,
    pub(super) custom: Vec<Custom>,
}

type Custom = Box<dyn Fn(&Envelope, &PoisonRecord) -> bool + Send + Sync>;

impl Filters {
    /// Whether all messages are redriven.
    pub(super) fn admit_all(&self) -> bool {
        let texts = [&self.ids, &self.kinds, &self.errors];
        texts.iter().all(|texts| texts.is_empty())
            && self.reasons.is_empty()
            && self.custom.is_empty()
            && !self.need_time()
    }

    /// Whether the storage's time is needed.
    pub(super) fn need_time(&self) -> bool {
        self.older_than.is_some() || self.younger_than.is_some()
    }

    /// Returns whether a message is redriven. `now` is the storage's time, in which it was moved too.
    pub(super) fn admit(&self, event: &Event, record: &PoisonRecord, now: Timestamp) -> bool {
        let id = event.envelope.id.as_str();
        let is_kind = |kinds: &[String]| kinds.iter().any(|kind| *kind == kind_of(event, record));
        let error = record.error.as_deref().unwrap_or_default();
        let age = between(record.last, now);
        (self.ids.is_empty() || self.ids.iter().any(|wanted| wanted == id))
            && (self.kinds.is_empty() || is_kind(&self.kinds))
            && (self.reasons.is_empty() || self.reasons.contains(&record.reason))
            && self.errors.iter().all(|text| error.contains(text))
            && self.older_than.is_none_or(|least| age >= least)
            && self.younger_than.is_none_or(|most| age < most)
            && self
                .custom
                .iter()
                .all(|admits| admits(&event.envelope, record))
    }
}

/// Returns the kind of a message, also of one inside an event of whoever moved it.
fn kind_of(event: &Event, record: &PoisonRecord) -> String {
    if !record.raw {
        return event.envelope.kind.clone();
    }
    let inner = bytes::Bytes::copy_from_slice(event.payload.as_bytes());
    let inner = Body::read(&inner, inner.len());
    inner
        .envelope()
        .map_or(RAW_KIND, |inner| &inner.kind)
        .to_owned()
}

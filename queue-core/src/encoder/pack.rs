use bytes::Bytes;

use super::storage::Encoder;
use crate::backend::{ItemSet, MAX_ITEMS};
use crate::envelope::{AttemptRecord, Envelope};
use crate::wire::encoding::unwrap_base64;
use crate::wire::pack::BATCH;
use crate::wire::writer::with_deleted;
use crate::wire::{self, ACCOUNTING_RESERVE, Body, Event, Pack, Payload};

/// How often a batch is compressed at most to find how many events fit a message.
const TRIES: usize = 4;

/// What a pack may leave free before more events are tried: one part in this many.
const SPARE: usize = 8;

/// Fills packs with events.
#[derive(Debug, Clone)]
pub struct Packer {
    encoder: Encoder,
    /// How many bytes of events a byte of a message holds, as far as is known: in quarters.
    ratio: usize,
}

impl Packer {
    /// Creates a packer for one backend.
    #[must_use]
    pub fn new(encoder: Encoder) -> Self {
        Self { encoder, ratio: 16 }
    }

    /// Packs the first of these encoded messages: as many as fit. Returns their number and the body of the pack, or `None` if
    /// fewer than two fit. `envelope` is that of the pack, with the kind of its items.
    #[must_use]
    pub fn pack(&mut self, envelope: &Envelope, bodies: &[Bytes]) -> Option<(usize, Bytes)> {
        let limit = self.encoder.raw_limit().saturating_sub(ACCOUNTING_RESERVE);
        let most = self.first_guess(limit, bodies);
        let all = bodies.len().min(MAX_ITEMS as usize);
        let events: Vec<Bytes> = bodies[..all]
            .iter()
            .map(|body| self.event_of(body))
            .collect();
        let mut envelope = envelope.clone();
        envelope.version = Pack::VERSION;
        envelope.content_type = Some(BATCH.into());
        let (mut count, mut best) = (most.min(all), None);
        for _ in 0..TRIES {
            if count < 2 {
                break;
            }
            let Some(pack) = Pack::new(&events[..count]) else {
                count = count * 3 / 4;
                continue;
            };
            let expanded = pack.size();
            let body = wire::encode_payload(&envelope, &Payload::Pack(pack));
            self.ratio = (expanded * 4 / body.len()).max(4);
            let fits = body.len() <= limit;
            let next = (count * limit / body.len()).saturating_sub(count / 32 + 1);
            if !fits {
                count = next.min(count - 1);
                continue;
            }
            let is_full = count == all || body.len() > limit - limit / SPARE;
            best = Some((count, body));
            if is_full || next <= count {
                break;
            }
            count = next.min(all);
        }
        best.map(|(count, body)| (count, self.encoder.stored(body)))
    }

    /// Returns how many events fit if they can be compressed like those before.
    fn first_guess(&self, limit: usize, bodies: &[Bytes]) -> usize {
        let room = (limit * self.ratio / 4).min(Pack::MAX_SIZE);
        let mut bytes = 0;
        let fits = |body: &&Bytes| {
            bytes += body.len() + 1;
            bytes <= room
        };
        bodies.iter().take_while(fits).count().max(2)
    }

    /// Returns the event of a message that was encoded for the backend.
    fn event_of(&self, body: &Bytes) -> Bytes {
        if body.first() == Some(&b'{') {
            return body.clone();
        }
        unwrap_base64(body).map_or_else(|| body.clone(), Bytes::from)
    }
}

impl Encoder {
    /// Returns the event of a pack with this attempt record and these deleted items, which take at most the space that is
    /// reserved for attempt records. Returns `None` if there is no room for it.
    #[must_use]
    pub fn pack_with(
        self,
        pack: &Event,
        attempts: &AttemptRecord,
        deleted: &ItemSet,
    ) -> Option<Bytes> {
        let body = with_deleted(pack, attempts, deleted);
        (body.len() <= self.raw_limit()).then(|| self.stored(body))
    }

    /// Returns the body of an item that becomes a message of its own. What its attempt record counts are
    /// [earlier](AttemptRecord::earlier) attempts then, because the new message's dequeue count does not know them, and
    /// `more` are added. A body that is not an event, or has no room for a record, stays as it is.
    #[must_use]
    pub fn unpacked(self, item: &Bytes, more: u32) -> Bytes {
        let Body::Event(event) = Body::read(item, usize::MAX) else {
            return self.stored(item.to_vec());
        };
        let mut attempts = event.envelope.attempts.clone();
        let counted = attempts.failures.saturating_add(more);
        attempts.earlier = attempts.earlier.saturating_add(counted);
        (attempts.failures, attempts.forgiven) = (0, 0);
        attempts.last_chance = false;
        let body = self.put_back(&event, &attempts);
        body.unwrap_or_else(|| self.stored(event.body.to_vec()))
    }
}

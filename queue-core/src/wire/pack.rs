//! Packs: several events in one message, as a CloudEvents batch.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::encoding::unwrap_base64;
use super::payloads::{Compressed, ExpandError, ExpandErrorKind};
use crate::backend::{ItemSet, MAX_ITEMS};
use crate::message::{JsonError, MessageType};

/// The events of one message: a CloudEvents batch, compressed (Zstandard), which stays as it was written, and the items of
/// it that were deleted.
///
/// A consumer handles and settles each item as a message of its own. The event around a pack is of its items' kind, and
/// has the version [`Pack::VERSION`], so a program that does not know packs leaves the message to one that does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    pub(super) data: Compressed,
    pub(super) items: u32,
    pub(super) deleted: ItemSet,
}

/// The media type of the data of a pack.
pub(crate) const BATCH: &str = "application/cloudevents-batch+json";

impl Pack {
    /// The version of the event around a pack: the highest one, which no type gets to.
    pub const VERSION: u32 = MessageType::MAX_VERSION;

    /// The largest batch, in bytes, once it is expanded.
    pub const MAX_SIZE: usize = 4 * 1024 * 1024;

    /// Packs events. Returns `None` if the events are more than [`MAX_ITEMS`], or larger than
    /// [`MAX_SIZE`](Self::MAX_SIZE) together, and without the feature `payloads`.
    #[must_use]
    pub fn new(events: &[Bytes]) -> Option<Self> {
        let items = u32::try_from(events.len()).ok()?;
        let size = events.iter().map(|event| event.len() + 1).sum::<usize>() + 1;
        if !(1..=MAX_ITEMS).contains(&items) || size > Self::MAX_SIZE {
            return None;
        }
        let mut batch = Vec::with_capacity(size);
        for event in events {
            batch.push(if batch.is_empty() { b'[' } else { b',' });
            batch.extend_from_slice(event);
        }
        batch.push(b']');
        Some(Self {
            data: Compressed::fast(&batch)?,
            items,
            deleted: ItemSet::default(),
        })
    }

    /// Returns the pack that an event says it has.
    pub(super) fn read(
        data: Compressed,
        items: u32,
        deleted: Option<&str>,
    ) -> Result<Self, String> {
        if !(1..=MAX_ITEMS).contains(&items) {
            return Err(format!(
                "it is a pack of {items} events; one has 1 to {MAX_ITEMS}"
            ));
        }
        let deleted = match deleted {
            None => ItemSet::default(),
            Some(text) => {
                let bytes = unwrap_base64(text.as_bytes());
                let bytes = bytes.ok_or("`packdeleted` is not Base64")?;
                ItemSet::from_bytes(&bytes)
            }
        };
        Ok(Self {
            data,
            items,
            deleted,
        })
    }

    /// The number of items, deleted ones included.
    #[must_use]
    pub fn items(&self) -> u32 {
        self.items
    }

    /// The size of the batch in bytes, once it is expanded, as the event declares it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.data.size() as usize
    }

    /// The items that the event says were deleted; a storage may know of further ones.
    #[must_use]
    pub fn deleted(&self) -> &ItemSet {
        &self.deleted
    }

    /// Returns the event of each item, deleted ones included, in time and memory in proportion to the declared size,
    /// and at most [`MAX_SIZE`](Self::MAX_SIZE).
    ///
    /// # Errors
    /// [`ExpandError`] if the data is not what the event declares.
    pub fn open(&self) -> Result<Vec<Bytes>, ExpandError> {
        let batch = self.data.expand(Self::MAX_SIZE)?;
        let (items, size) = (self.items, self.data.size());
        let damaged = |problem| {
            let kind = ExpandErrorKind::NoBatch { items, problem };
            ExpandError { size, kind }
        };
        let events: Vec<&RawValue> = serde_json::from_slice(&batch)
            .map_err(|error| damaged(JsonError::new(&error).to_string()))?;
        if events.len() != items as usize {
            return Err(damaged(format!("it has {} events", events.len())));
        }
        let event = |event: &RawValue| batch.slice_ref(event.get().as_bytes());
        Ok(events.into_iter().map(event).collect())
    }
}

#[cfg(all(test, feature = "payloads"))]
mod tests {
    use super::*;
    use crate::wire::{Body, Payload, encode_payload};
    use crate::{ClientId, Envelope, MessageId, RequestId};

    fn event(id: &str) -> Envelope {
        let id = MessageId::new(id).expect("valid");
        let client = ClientId::new("tests").expect("valid");
        let mut envelope = Envelope::new(id, client, RequestId::random(), "order");
        envelope.version = Pack::VERSION;
        envelope
    }

    fn pack_in(body: Vec<u8>) -> Result<Pack, String> {
        match Body::read(&body.into(), usize::MAX) {
            Body::Event(event) => match event.payload {
                Payload::Pack(pack) => Ok(pack),
                other => panic!("not a pack: {other:?}"),
            },
            Body::Malformed(problem) => Err(problem),
            Body::Bare(_) => panic!("not an event"),
        }
    }

    fn items(count: usize) -> Vec<Bytes> {
        (0..count)
            .map(|n| format!("{{\"n\":{n}}}").into())
            .collect()
    }

    #[test]
    fn a_pack_comes_back_from_its_event() {
        for count in [1, 2, MAX_ITEMS as usize] {
            let mut pack = Pack::new(&items(count)).expect("it fits");
            pack.deleted.insert(count as u32 - 1);
            let body = encode_payload(&event("pack"), &Payload::Pack(pack.clone()));
            let read = pack_in(body).expect("it is valid");
            assert_eq!(read, pack);
            assert_eq!(read.open().expect("it is whole"), items(count));
        }
        assert!(Pack::new(&[]).is_none());
        assert!(Pack::new(&items(MAX_ITEMS as usize + 1)).is_none());
        let large = Bytes::from(vec![b'1'; Pack::MAX_SIZE]);
        assert!(Pack::new(&[large]).is_none());
    }

    #[test]
    fn what_is_no_pack_is_refused_with_the_reason() {
        let pack = Pack::new(&items(3)).expect("it fits");
        let with = |items: u32, data: &[u8]| {
            let data = Compressed::fast(data).expect("small");
            let deleted = ItemSet::default();
            Pack {
                data,
                items,
                deleted,
            }
            .open()
        };
        for (items, batch, found) in [
            (3, &b"[1,2]"[..], "it has 2 events"),
            (
                1,
                b"{}",
                "invalid type, expected a sequence at line 1 column 0",
            ),
        ] {
            let error = with(items, batch).expect_err("no batch");
            let problem = found.to_owned();
            assert_eq!(error.kind, ExpandErrorKind::NoBatch { items, problem });
        }
        let bomb = vec![b' '; Pack::MAX_SIZE + 1];
        let error = with(1, &bomb).expect_err("too large");
        assert!(
            matches!(error.kind, ExpandErrorKind::TooLarge(_)),
            "{error}"
        );
        for (items, deleted, why) in [
            (0, None, "a pack of 0 events"),
            (1_001, None, "a pack of 1001 events"),
            (3, Some("?"), "`packdeleted` is not Base64"),
        ] {
            let refused = Pack::read(pack.data.clone(), items, deleted);
            let problem = refused.expect_err("it is refused");
            assert!(problem.contains(why), "{problem}");
        }
    }
}

//! How what queues hold is serialized, without keys and receipts, for command lines and dashboards; not the wire
//! format, which is in [`wire`](crate::wire).

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap as _, SerializeStruct as _, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::backend::{PageMark, StorageId};
use crate::envelope::{ClientId, MessageId, PoisonReason, RequestId};
use crate::error::Error;
use crate::name::QueueName;
use crate::text::error_chain;
use crate::wire::encoding::to_base64;
use crate::wire::{Body, Event, Payload};

macro_rules! as_text {
    ($($type:ty),+) => {
        $(
            /// Serializes as its text.
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str(self.as_str())
                }
            }
        )+
    };
}

as_text!(
    ClientId,
    MessageId,
    RequestId,
    QueueName,
    StorageId,
    PageMark,
    PoisonReason
);

/// Serializes as its text and its causes.
impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&error_chain(self))
    }
}

/// Serializes as a map of one entry: `event`, `text` or `base64` (a bare body), or `malformed` (what is wrong with it).
impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Event(event) => entry(serializer, "event", &**event),
            Self::Bare(body) => bytes(serializer, body),
            Self::Malformed(problem) => entry(serializer, "malformed", problem),
        }
    }
}

/// Serializes as its envelope and its payload.
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut event = serializer.serialize_struct("Event", 2)?;
        event.serialize_field("envelope", &*self.envelope)?;
        event.serialize_field("payload", &self.payload)?;
        event.end()
    }
}

/// Serializes as the JSON value, or a map with the entry `base64`, `zstd` (compressed, as Base64), `pack` (its number
/// of items), `attached` (its size in bytes) or `dataref`, or null. `serde_json` writes the value as it is in the
/// message: numbers of any length, and the order of members. A value nested too deeply to be parsed is shown as text.
impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Json(json) => {
                // Whoever reads the JSON may have to parse it.
                let parsed = serde_json::from_slice::<Value>(json);
                match parsed.and_then(|_| serde_json::from_slice::<&RawValue>(json)) {
                    Ok(value) => value.serialize(serializer),
                    Err(_) => bytes(serializer, json),
                }
            }
            Self::Binary(binary) => entry(serializer, "base64", &to_base64(binary)),
            Self::Compressed(compressed) => entry(serializer, "zstd", &to_base64(&compressed.data)),
            Self::Pack(pack) => entry(serializer, "pack", &pack.items()),
            Self::Attached(attached) => entry(serializer, "attached", &attached.size()),
            Self::Elsewhere(reference) => entry(serializer, "dataref", reference),
            Self::Absent => serializer.serialize_none(),
        }
    }
}

fn bytes<S: Serializer>(serializer: S, bytes: &Bytes) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => entry(serializer, "text", text),
        Err(_) => entry(serializer, "base64", &to_base64(bytes)),
    }
}

fn entry<S: Serializer>(
    serializer: S,
    name: &str,
    value: &(impl Serialize + ?Sized),
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(name, value)?;
    map.end()
}

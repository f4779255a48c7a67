//! The wire format against everything that may stand in a queue.
//!
//! | module | asks |
//! |---|---|
//! | `round_trip` | does what we write come back, and does a rewrite leave alone what is not ours? |
//! | `schema` | is every event that we write a CloudEvents event? |
//! | `foreign` | are other producers' events read as they are meant? |
//! | `hostile` | is everything else refused in bounded time, without a panic? |
//! | `compressed` | is what is large compressed, and nothing else expanded? |
//! | `arbitrary` | the generators |

mod arbitrary;
#[cfg(feature = "payloads")]
mod compressed;
mod foreign;
mod hostile;
mod round_trip;
mod schema;

use bytes::Bytes;
use queue_core::wire::{Body, Event};
use queue_core::{DecodeError, EncodeError, Message, MessageType, Wire};
use serde_json::Value;

const LIMIT: usize = 64 * 1024;

/// A message of any JSON.
#[derive(Debug, PartialEq)]
struct AnyJson(Value);

/// The same, from producers outside this framework.
#[derive(Debug, PartialEq)]
struct BareJson(Value);

macro_rules! json_message {
    ($name:ident, $wire:ident) => {
        impl Message for $name {
            const TYPE: MessageType = MessageType::new("json", "json")
                .with_aliases(&["com.example.json"])
                .with_wire(Wire::$wire);

            fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
                Ok(Some(vec![self.0.clone()]))
            }

            fn encode(&self) -> Result<Vec<u8>, EncodeError> {
                Ok(self.0.to_string().into_bytes())
            }

            fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
                let decoded = serde_json::from_slice(payload);
                decoded
                    .map(Self)
                    .map_err(|source| DecodeError::payload("json", version, source))
            }
        }
    };
}

json_message!(AnyJson, Event);
json_message!(BareJson, Bare);

fn read(body: impl Into<Vec<u8>>) -> Body {
    Body::read(&Bytes::from(body.into()), LIMIT)
}

fn read_event(body: impl Into<Vec<u8>>) -> Event {
    match read(body) {
        Body::Event(event) => *event,
        other => panic!("no event: {other:?}"),
    }
}

fn malformed(body: impl Into<Vec<u8>>) -> String {
    match read(body) {
        Body::Malformed(problem) => problem,
        other => panic!("not malformed: {other:?}"),
    }
}

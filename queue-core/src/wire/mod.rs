//! The bytes of a message: CloudEvents 1.0 in JSON format, bare bodies and bodies in lines, and Base64 around each.
//!
//! | step | in | out |
//! |---|---|---|
//! | [`encode`] | envelope, payload | event |
//! | [`Body::read`] | bytes from a queue, whatever wrote them | [`Body`]: event, bare, or malformed |
//! | [`Body::decode`] | body | message |
//! | [`Lines::read`] | a body that is not an event, of a type with `wire = "lines"` | its ids, payload |
//!
//! `docs/design.md` specifies the wire format byte by byte.

mod attributes;
mod body;
pub(crate) mod encoding;
mod event;
mod layout;
pub(crate) mod lines;
pub(crate) mod pack;
mod payloads;
pub(crate) mod writer;

pub(crate) use attributes::Members;
pub use body::{Body, MAX_WRAPPINGS, pending};
pub use event::{Event, Payload};
pub use lines::{Lines, LinesError};
pub use pack::Pack;
pub use payloads::{
    Attached, Compressed, DEFAULT_MAX_PAYLOAD, ExpandError, ExpandErrorKind, PayloadRef,
    StoredPayload,
};
pub use writer::{encode, encode_binary, encode_payload};

/// The bytes of a backend's body limit that a new event leaves free, for the attempt record that a
/// put-back adds.
pub const ACCOUNTING_RESERVE: usize = 2048;

/// The kind of the event that wraps a body on a poison queue that was not an event itself.
pub const RAW_KIND: &str = "queue.raw";

/// The media type of a JSON payload.
pub const JSON: &str = "application/json";

//! The bytes of a message: CloudEvents 1.0 in JSON format, bare bodies, and Base64 around either.
//!
//! | step | in | out |
//! |---|---|---|
//! | [`encode`] | envelope, payload | body of an event |
//! | [`Body::read`] | bytes from a queue, whoever wrote them | [`Body`]: event, bare, or malformed |
//! | [`Body::decode`] | body | message |
//!
//! The format is written down byte by byte in `docs/design.md`.

pub(crate) mod base64;
mod body;
mod event;
mod members;
pub(crate) mod writer;
pub(crate) mod xml;

pub use body::Body;
pub use event::{Event, Payload};
pub(crate) use members::Members;
pub use writer::{encode, encode_binary};

/// What `submit` keeps free of a backend's body limit, for the attempt accounting that a put-back
/// adds.
pub const ACCOUNTING_RESERVE: usize = 2048;

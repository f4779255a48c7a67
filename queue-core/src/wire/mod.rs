//! The bytes of a message: CloudEvents 1.0 in JSON format, bare bodies, and Base64 around either.
//!
//! | step | in | out |
//! |---|---|---|
//! | [`encode`] | envelope, payload | body of an event |
//! | [`Body::read`] | bytes from a queue, whoever wrote them | [`Body`]: event, bare, or malformed |
//! | [`Body::decode`] | body | message |
//! | [`rewrite`] | body of an event | the same event with other attempt accounting |
//!
//! The format is written down byte by byte in `docs/design.md`.

mod base64;
mod body;
mod event;
mod members;
mod text;
mod writer;

pub use self::base64::{to_base64, unwrap_base64};
pub use body::Body;
pub use event::{Event, Payload};
pub(crate) use members::Members;
pub use text::{NotXmlText, xml_text};
pub use writer::{encode, encode_binary, escape_text, rewrite};

/// What `submit` keeps free of a backend's body limit, for the attempt accounting that a put-back
/// adds.
pub const ACCOUNTING_RESERVE: usize = 2048;

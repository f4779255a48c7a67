//! Shared with the runtime and the derive. Not public API: anything here may change in any release.

mod debug;
mod derive;
mod lock;

pub use derive::{
    Duration, Payload, Serialize, UpgradeFrom, Value, decode, decode_lines, encode, encode_lines,
    key_field, key_name, upgrade, wrong_version,
};

pub use lock::LockExt;

pub use bytes::Bytes;

/// Returns the error without what it quotes.
#[must_use]
pub fn json_error(error: &serde_json::Error) -> crate::JsonError {
    crate::JsonError::new(error)
}

pub use crate::file_access::{file_access, owner_and_user};
pub use crate::idempotency::recorded::{record_mark, record_start};
pub use crate::message::json::{check_json, to_json_and_back, to_json_perhaps_back};
pub use crate::text::{
    MAX_ERROR, MAX_LOGGED, canonical, error_chain, escape_short, escape_text, has_stray_ends,
    is_forbidden, shorten, str_eq,
};
pub use crate::timestamp::{between, later};
pub use crate::wire::base64::{to_base64, unwrap_base64};
pub use crate::wire::stored::hex;
pub use crate::wire::writer::{rewrite, with_payload};
pub use crate::wire::xml::{NotXmlText, xml_text};
pub use crate::{debug_fields, forward_backend};

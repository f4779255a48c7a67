//! Items shared with the runtime and the derive, not public API: all may change in any release.

use std::fs::Metadata;
use std::path::Path;
use std::{fs, io};

use serde::de::DeserializeOwned;

use crate::JsonError;
use crate::message::json::to_json;
use crate::message::{DecodeError, DecodeErrorKind, EncodeError, Message};
use crate::wire::{LinesError, lines};

pub use crate::ext::{LockExt, between, later};
pub use crate::idempotency::recorded::{record_mark, record_start};
pub use crate::message::json::{check_json, to_json_and_back, to_json_perhaps_back};
pub use crate::text::{
    MAX_ERROR, MAX_LOGGED, canonical, error_chain, escape_json, escape_short, escape_text,
    has_stray_ends, is_forbidden, parse_duration, shorten, str_eq,
};
pub use crate::wire::encoding::{NotXmlText, hex, to_base64, to_hex, unwrap_base64, xml_text};
pub use crate::wire::writer::{rewrite, with_payload};
pub use crate::{debug_fields, forward_backend};
pub use bytes::Bytes;
pub use serde::Serialize;
pub use serde_json::Value;
pub use std::time::Duration;

/// What the derive requires of a type: a separate trait, so that a missing serde derive is one error that says what to
/// add.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be serialized as JSON and back, so it cannot be a message",
    label = "does not implement serde's `Serialize`, `Deserialize`, or both",
    note = "add `#[derive(serde::Serialize, serde::Deserialize)]` to `{Self}`"
)]
pub trait SerdePayload: Sized {
    /// Serializes the value as JSON.
    ///
    /// # Errors
    /// The errors of the type's `Serialize`, and an error if the JSON could not be read as the same value.
    fn to_json(&self) -> serde_json::Result<Vec<u8>>;

    /// Deserializes a value from JSON.
    ///
    /// # Errors
    /// The errors of the type's `Deserialize`.
    fn from_json(json: &[u8]) -> serde_json::Result<Self>;

    /// Serializes the fields, one a line.
    ///
    /// # Errors
    /// If a field does not fit on a line.
    fn to_lines(&self) -> Result<Vec<u8>, LinesError>;

    /// Deserializes a value from its fields, one a line.
    ///
    /// # Errors
    /// If the lines are not the fields of the type.
    fn from_lines(lines: &[u8]) -> Result<Self, LinesError>;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> SerdePayload for T {
    fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        to_json(self)
    }

    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        // UTF-8 is checked as a whole, which is cheaper than string by string.
        match std::str::from_utf8(json) {
            Ok(text) => serde_json::from_str(text),
            Err(_) => serde_json::from_slice(json),
        }
    }

    fn to_lines(&self) -> Result<Vec<u8>, LinesError> {
        lines::to_lines(self)
    }

    fn from_lines(lines: &[u8]) -> Result<Self, LinesError> {
        lines::from_lines(lines)
    }
}

/// Encodes a payload as JSON.
///
/// # Errors
/// [`EncodeErrorKind::Payload`](crate::EncodeErrorKind::Payload).
pub fn encode<M: Message + SerdePayload>(message: &M) -> Result<Vec<u8>, EncodeError> {
    message
        .to_json()
        .map_err(|source| EncodeError::payload(M::TYPE.kind(), source))
}

/// Decodes a JSON payload of the type's own version.
///
/// # Errors
/// [`DecodeErrorKind::Payload`].
pub fn decode<M: Message + SerdePayload>(payload: &[u8]) -> Result<M, DecodeError> {
    M::from_json(payload)
        .map_err(|source| DecodeError::payload(M::TYPE.kind(), M::TYPE.version(), source))
}

/// Encodes a payload as lines.
///
/// # Errors
/// [`EncodeErrorKind::Payload`](crate::EncodeErrorKind::Payload).
pub fn encode_lines<M: Message + SerdePayload>(message: &M) -> Result<Vec<u8>, EncodeError> {
    message
        .to_lines()
        .map_err(|source| EncodeError::payload(M::TYPE.kind(), source))
}

/// Decodes a payload in lines.
///
/// # Errors
/// [`DecodeErrorKind::Payload`].
pub fn decode_lines<M: Message + SerdePayload>(payload: &[u8]) -> Result<M, DecodeError> {
    M::from_lines(payload)
        .map_err(|source| DecodeError::payload(M::TYPE.kind(), M::TYPE.version(), source))
}

/// What the derive requires of a type with `upgrade_from`: a separate trait, so that a missing `From` is an error that
/// says what to add.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot upgrade from `{Old}`",
    label = "`{Self}` has no conversion from this type",
    note = "add `impl From<{Old}> for {Self}`"
)]
pub trait UpgradeFrom<Old>: Sized {
    /// Converts a payload of the version before `Self`'s.
    fn upgrade_from(old: Old) -> Self;
}

#[diagnostic::do_not_recommend]
impl<Old, T: From<Old>> UpgradeFrom<Old> for T {
    fn upgrade_from(old: Old) -> Self {
        Self::from(old)
    }
}

/// Converts a payload of the version before `T`'s.
pub fn upgrade<T: UpgradeFrom<Old>, Old>(old: Old) -> T {
    T::upgrade_from(old)
}

/// Returns the error for a version that the type can neither decode nor upgrade.
#[must_use]
pub fn wrong_version<M: Message>(found: u32) -> DecodeError {
    let (kind, supported) = (M::TYPE.kind(), M::TYPE.version());
    if found > supported {
        DecodeError::new(kind, DecodeErrorKind::NewerVersion { found, supported })
    } else {
        DecodeError::new(kind, DecodeErrorKind::NoUpgrade { found, supported })
    }
}

/// Returns the name of an enum's variant, for the message's key.
#[must_use]
pub fn key_name(name: &str) -> Value {
    Value::from(name)
}

/// Converts the value of a key field to JSON.
///
/// # Errors
/// [`EncodeErrorKind::Key`](crate::EncodeErrorKind::Key) if the field cannot be encoded, or holds a float.
pub fn key_field<M: Message, F: Serialize + ?Sized>(
    field: &'static str,
    value: &F,
) -> Result<Value, EncodeError> {
    let kind = M::TYPE.kind();
    let value = serde_json::to_value(value)
        .map_err(|error| EncodeError::key(kind, field, error.to_string()))?;
    if holds_float(&value) {
        let problem = "it holds a float, which has no canonical form";
        return Err(EncodeError::key(kind, field, problem));
    }
    Ok(value)
}

/// Returns the text of a group: that of one string, else JSON.
#[must_use]
pub fn group(mut fields: Vec<Value>) -> String {
    match (fields.pop(), fields.is_empty()) {
        (Some(Value::String(text)), true) => text,
        (Some(value), true) => value.to_string(),
        (last, _) => {
            fields.extend(last);
            Value::Array(fields).to_string()
        }
    }
}

fn holds_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(holds_float),
        Value::Object(members) => members.values().any(holds_float),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Returns the error without the text that it quotes.
#[must_use]
pub fn json_error(error: &serde_json::Error) -> JsonError {
    JsonError::new(error)
}

/// Returns a stored number of a fixed width as a count: the largest count if the number does not fit or is negative.
#[must_use]
pub fn as_count(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// Returns a count as 64 bits: the largest number if it is larger.
#[must_use]
pub fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns a count as 32 bits: the largest number if it is larger.
#[must_use]
pub fn as_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns who may use a file, to follow its name in the error of a process that may not use it, or an empty text for
/// any other error.
#[must_use]
pub fn file_access(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => owner_and_user(path),
        _ => String::new(),
    }
}

/// Returns the owner and the mode of a file (of one that is missing or cannot be seen: of the folder that is the
/// reason), the user of this process, and what helps; an empty text where files have no owner.
#[must_use]
pub fn owner_and_user(path: &Path) -> String {
    // The last folder of a relative path is the current one.
    let here = Some(Path::new(".")).filter(|_| path.is_relative());
    let mut folders = path.ancestors().chain(here);
    let found = folders.find_map(|folder| Some((folder, fs::metadata(folder).ok()?)));
    found.map_or_else(String::new, |(path, metadata)| describe(path, &metadata))
}

#[cfg(unix)]
fn describe(path: &Path, metadata: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt as _;

    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let (what, needed) = if metadata.is_dir() {
        ("folder", "u+rwx")
    } else {
        ("file", "u+rw")
    };
    let path = path.display();
    let named = name(owner);
    // A directory of the kernel's that belongs to the user of this process.
    let user = fs::metadata("/proc/self").map(|own| own.uid());
    let remedy = match user {
        Ok(user) if user == owner => {
            format!("and this process runs as its owner: allow it by `chmod {needed} {path}`")
        }
        Ok(user) => format!(
            "and this process runs as {}: run it as {named}, or give it the {what} by `chown {user} {path}`",
            name(user)
        ),
        Err(_) => format!("and this process runs as another user: run it as {named}"),
    };
    format!(": the {what} `{path}` belongs to {named} and has mode {mode:04o}, {remedy}")
}

#[cfg(not(unix))]
fn describe(_: &Path, _: &Metadata) -> String {
    String::new()
}

/// Returns a user's name and number, or the number alone if this machine has no name for it.
#[cfg(unix)]
fn name(user: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = user.to_string();
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then_some(name)
    });
    named.map_or_else(
        || format!("user {number}"),
        |name| format!("user {number} ({name})"),
    )
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_owner_the_mode_the_user_and_a_remedy_are_named() {
        let root = owner_and_user(Path::new("/missing/queue.db"));
        assert!(
            root.contains("the folder `/` belongs to user 0 (root) and has mode 0"),
            "{root}"
        );
        assert!(root.contains("this process runs as"), "{root}");
        assert!(owner_and_user(Path::new("queue.db")).contains("folder `.`"));
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(
            file_access(Path::new("/missing"), &denied),
            owner_and_user(Path::new("/missing"))
        );
        let other = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(file_access(Path::new("/missing"), &other), "");
    }
}

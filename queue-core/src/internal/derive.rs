//! What the code that `#[derive(Message)]` generates calls.

pub use std::time::Duration;

pub use serde::Serialize;
pub use serde_json::Value;

use serde::de::DeserializeOwned;

use crate::message::json::to_json;
use crate::message::{DecodeError, EncodeError, Message};
use crate::wire::{LinesError, lines};

/// What the derive requires of a type. A separate trait, so that a missing serde derive is one error
/// that says what to add.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be serialized as JSON and back, so it cannot be a message",
    label = "does not implement serde's `Serialize`, `Deserialize`, or both",
    note = "add `#[derive(serde::Serialize, serde::Deserialize)]` to `{Self}`"
)]
pub trait Payload: Sized {
    /// Serializes the value as JSON.
    ///
    /// # Errors
    /// Those of the type's `Serialize`, and if the JSON could not be read as the same value.
    fn to_json(&self) -> serde_json::Result<Vec<u8>>;

    /// Deserializes a value from JSON.
    ///
    /// # Errors
    /// Those of the type's `Deserialize`.
    fn from_json(json: &[u8]) -> serde_json::Result<Self>;

    /// Serializes the fields, one a line.
    ///
    /// # Errors
    /// If one of them does not fit on a line.
    fn to_lines(&self) -> Result<Vec<u8>, LinesError>;

    /// Deserializes a value from its fields, one a line.
    ///
    /// # Errors
    /// If they are not those of the type.
    fn from_lines(lines: &[u8]) -> Result<Self, LinesError>;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Payload for T {
    fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        to_json(self)
    }

    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        // Checked as a whole, which is much cheaper than string by string.
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
/// [`EncodeError::Payload`].
pub fn encode<M: Message + Payload>(message: &M) -> Result<Vec<u8>, EncodeError> {
    message
        .to_json()
        .map_err(|source| EncodeError::payload(M::TYPE.kind(), source))
}

/// Decodes a JSON payload of the type's own version.
///
/// # Errors
/// [`DecodeError::Payload`].
pub fn decode<M: Message + Payload>(payload: &[u8]) -> Result<M, DecodeError> {
    M::from_json(payload)
        .map_err(|source| DecodeError::payload(M::TYPE.kind(), M::TYPE.version(), source))
}

/// Encodes a payload as lines.
///
/// # Errors
/// [`EncodeError::Payload`].
pub fn encode_lines<M: Message + Payload>(message: &M) -> Result<Vec<u8>, EncodeError> {
    message
        .to_lines()
        .map_err(|source| EncodeError::payload(M::TYPE.kind(), source))
}

/// Decodes a payload in lines.
///
/// # Errors
/// [`DecodeError::Payload`].
pub fn decode_lines<M: Message + Payload>(payload: &[u8]) -> Result<M, DecodeError> {
    M::from_lines(payload)
        .map_err(|source| DecodeError::payload(M::TYPE.kind(), M::TYPE.version(), source))
}

/// What the derive requires of a type with `upgrade_from`. A separate trait, so that a missing `From` is an
/// error that says what to add.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot upgrade from `{Old}`",
    label = "`{Self}` has no conversion from this type",
    note = "add `impl From<{Old}> for {Self}`"
)]
pub trait UpgradeFrom<Old>: Sized {
    /// Converts a payload of the version before.
    fn upgrade_from(old: Old) -> Self;
}

#[diagnostic::do_not_recommend]
impl<Old, T: From<Old>> UpgradeFrom<Old> for T {
    fn upgrade_from(old: Old) -> Self {
        Self::from(old)
    }
}

/// Converts a payload of the version before.
pub fn upgrade<T: UpgradeFrom<Old>, Old>(old: Old) -> T {
    T::upgrade_from(old)
}

/// Returns the error for a version that the type can neither decode nor upgrade.
#[must_use]
pub fn wrong_version<M: Message>(found: u32) -> DecodeError {
    let (kind, supported) = (M::TYPE.kind(), M::TYPE.version());
    if found > supported {
        DecodeError::NewerVersion {
            kind,
            found,
            supported,
        }
    } else {
        DecodeError::NoUpgrade {
            kind,
            found,
            supported,
        }
    }
}

/// Returns the name of an enum's variant, for its key.
#[must_use]
pub fn key_name(name: &str) -> Value {
    Value::from(name)
}

/// Converts the value of a key field to JSON.
///
/// # Errors
/// [`EncodeError::Key`] if the field cannot be encoded, or holds a float.
pub fn key_field<M: Message, F: Serialize + ?Sized>(
    field: &'static str,
    value: &F,
) -> Result<Value, EncodeError> {
    let refuse = |problem| EncodeError::Key {
        kind: M::TYPE.kind(),
        field,
        problem,
    };
    let value = serde_json::to_value(value).map_err(|error| refuse(error.to_string().into()))?;
    if holds_float(&value) {
        return Err(refuse(
            "it holds a float, which has no canonical form".into(),
        ));
    }
    Ok(value)
}

fn holds_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(holds_float),
        Value::Object(members) => members.values().any(holds_float),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

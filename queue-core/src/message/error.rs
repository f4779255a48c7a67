use std::borrow::Cow;
use std::error::Error as StdError;
use std::sync::Arc;

use super::JsonError;

/// An error of encoding a message.
///
/// ```
/// use queue_core::EncodeError;
///
/// fn explain(error: &EncodeError) -> String {
///     match error {
///         EncodeError::Key { field, .. } => format!("the key field {field} has an unsupported value"),
///         other => other.to_string(),
///     }
/// }
/// # let error = EncodeError::Key { kind: "order", field: "number", problem: "".into() };
/// # assert!(explain(&error).contains("number"));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The payload could not be serialized.
    #[error("the payload of `{kind}` cannot be encoded")]
    Payload {
        /// The message's kind.
        kind: &'static str,
        /// The serializer's error.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// A key field has a value that cannot be part of a key.
    #[error("field `{field}` of `{kind}` cannot be part of a key: {problem}")]
    Key {
        /// The message's kind.
        kind: &'static str,
        /// The field.
        field: &'static str,
        /// The reason.
        problem: Cow<'static, str>,
    },
}

crate::debug_as_text!(EncodeError);

/// An error of decoding a body as the expected message.
///
/// ```
/// use queue_core::DecodeError;
///
/// fn is_rolling_deployment(error: &DecodeError) -> bool {
///     matches!(error, DecodeError::NewerVersion { .. })
/// }
/// # let error = DecodeError::NewerVersion { kind: "order", found: 2, supported: 1 };
/// # assert!(is_rolling_deployment(&error));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The body is neither an event nor a payload that the type accepts.
    #[error("the body is not a `{kind}` event: {problem}")]
    NotAnEvent {
        /// The kind that was expected.
        kind: &'static str,
        /// What the body is instead.
        problem: String,
    },
    /// The event is of another kind.
    #[error("the event is of kind {found:?}, and {expected:?} was expected")]
    UnexpectedKind {
        /// The event's kind.
        found: String,
        /// The kind that was expected.
        expected: &'static str,
    },
    /// The event's version is newer than the type's.
    #[error(
        "the event is a `{kind}` of version {found}, but this program supports versions up to {supported}"
    )]
    NewerVersion {
        /// The message's kind.
        kind: &'static str,
        /// The version found.
        found: u32,
        /// The newest version that this program supports.
        supported: u32,
    },
    /// The event's version is older than the type's, with no upgrade from it.
    #[error("`{kind}` is of version {found}, and there is no upgrade from it to {supported}")]
    NoUpgrade {
        /// The message's kind.
        kind: &'static str,
        /// The version found.
        found: u32,
        /// The version that an upgrade must result in.
        supported: u32,
    },
    /// The event has no data, and refers to where that is.
    #[error(
        "the data of the `{kind}` event is elsewhere, and nothing here fetches it: its `dataref` has {length} bytes"
    )]
    DataElsewhere {
        /// The message's kind.
        kind: &'static str,
        /// The length of the reference, in bytes. The reference itself may contain a secret.
        length: usize,
    },
    /// The payload is invalid.
    #[error("the payload is not a valid `{kind}` of version {version}")]
    Payload {
        /// The message's kind.
        kind: &'static str,
        /// The payload's version.
        version: u32,
        /// The deserializer's error; a [`JsonError`] if the payload is JSON, a [`LinesError`](crate::LinesError) if it is
        /// [lines](crate::Wire::Lines).
        source: Arc<dyn StdError + Send + Sync>,
    },
}

crate::debug_as_text!(DecodeError);

impl EncodeError {
    /// Returns the error for a payload that could not be serialized because of `source`.
    #[must_use]
    pub fn payload(kind: &'static str, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Payload {
            kind,
            source: source.into().into(),
        }
    }
}

impl DecodeError {
    /// Returns the error for a payload of `version` that could not be deserialized because of `source`. An error of
    /// `serde_json` becomes a [`JsonError`], which quotes nothing of the payload: errors of decoding are logged. So
    /// `source` should not quote it either.
    #[must_use]
    pub fn payload(
        kind: &'static str,
        version: u32,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let source: Box<dyn StdError + Send + Sync> = source.into();
        let source: Arc<dyn StdError + Send + Sync> =
            match source.downcast_ref::<serde_json::Error>() {
                Some(json) => Arc::new(JsonError::new(json)),
                None => source.into(),
            };
        Self::Payload {
            kind,
            version,
            source,
        }
    }
}

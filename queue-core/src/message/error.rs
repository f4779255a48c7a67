use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde_json::error::Category;

/// An error of encoding a message.
///
/// ```
/// use queue_core::{EncodeError, EncodeErrorKind};
///
/// fn explain(error: &EncodeError) -> String {
///     match &error.kind {
///         EncodeErrorKind::Key { field, .. } => format!("the key field {field} has an unsupported value"),
///         _ => error.to_string(),
///     }
/// }
/// # let error = EncodeError::key("order", "number", "it holds a float");
/// # assert!(explain(&error).contains("number"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct EncodeError {
    /// The kind of the message.
    pub message_kind: &'static str,
    /// What is wrong with the message or its body.
    pub kind: EncodeErrorKind,
    /// The serializer's error.
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What is wrong with a message that cannot be encoded: the kind of an [`EncodeError`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeErrorKind {
    /// The payload could not be serialized. The source is the serializer's error.
    Payload,
    /// A key field has a value that cannot be part of a key.
    Key {
        /// The key field.
        field: &'static str,
        /// What is wrong with the key field's value.
        problem: Cow<'static, str>,
    },
}

/// An error of decoding a body as the expected message.
///
/// ```
/// use queue_core::{DecodeError, DecodeErrorKind};
///
/// fn is_rolling_deployment(error: &DecodeError) -> bool {
///     matches!(error.kind, DecodeErrorKind::NewerVersion { .. })
/// }
/// # assert!(!is_rolling_deployment(&DecodeError::payload("order", 1, "not a number")));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct DecodeError {
    /// The kind of message that was expected.
    pub message_kind: &'static str,
    /// What is wrong with the message or its body.
    pub kind: DecodeErrorKind,
    /// The deserializer's error.
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What is wrong with a body that is not the expected message: the kind of a [`DecodeError`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The body is neither an event nor a payload that the type accepts. The text says what the body is instead.
    NotAnEvent(String),
    /// The event is of this kind, which the type does not accept.
    UnexpectedKind(String),
    /// The event's version is newer than the type's.
    NewerVersion {
        /// The event's version.
        found: u32,
        /// The newest version that this program supports.
        supported: u32,
    },
    /// The event's version is older than the type's, and the type has no upgrade from that version.
    NoUpgrade {
        /// The event's version.
        found: u32,
        /// The version that an upgrade must result in.
        supported: u32,
    },
    /// The event has no data, but a reference to where the data is.
    DataElsewhere {
        /// The length in bytes of the reference to the data; the reference, which may contain a secret, is not part of
        /// the error.
        length: usize,
    },
    /// The payload is invalid. The source is the deserializer's error: a [`JsonError`] if the payload is JSON, a
    /// [`LinesError`](crate::LinesError) if it is [lines](crate::Wire::Lines).
    Payload {
        /// The payload's version.
        version: u32,
    },
}

macro_rules! error_about_a_message {
    ($error:ty) => {
        crate::debug_as_text!($error);

        impl fmt::Display for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.kind.text(self.message_kind))
            }
        }

        impl StdError for $error {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                // The error itself, not the pointer, so that it can be downcast.
                self.source.as_deref().map(|source| source as _)
            }
        }
    };
}

error_about_a_message!(EncodeError);
error_about_a_message!(DecodeError);

impl EncodeError {
    /// Returns the error for a payload that could not be serialized because of `source`.
    #[must_use]
    pub fn payload(
        message_kind: &'static str,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self {
            message_kind,
            kind: EncodeErrorKind::Payload,
            source: Some(source.into().into()),
        }
    }

    /// Returns the error for a field whose value cannot be part of a key.
    #[must_use]
    pub fn key(
        message_kind: &'static str,
        field: &'static str,
        problem: impl Into<Cow<'static, str>>,
    ) -> Self {
        let problem = problem.into();
        Self {
            message_kind,
            kind: EncodeErrorKind::Key { field, problem },
            source: None,
        }
    }
}

impl EncodeErrorKind {
    fn text(&self, of: &str) -> String {
        match self {
            Self::Payload => format!("the payload of `{of}` cannot be encoded"),
            Self::Key { field, problem } => {
                format!("field `{field}` of `{of}` cannot be part of a key: {problem}")
            }
        }
    }
}

impl DecodeErrorKind {
    fn text(&self, of: &str) -> String {
        match self {
            Self::NotAnEvent(problem) => format!("the body is not a `{of}` event: {problem}"),
            Self::UnexpectedKind(found) => {
                format!("the event is of kind {found:?}, and {of:?} was expected")
            }
            Self::NewerVersion { found, supported } => {
                format!(
                    "the event is a `{of}` of version {found}, but this program supports versions up to {supported}"
                )
            }
            Self::NoUpgrade { found, supported } => {
                format!(
                    "`{of}` is of version {found}, and there is no upgrade from it to {supported}"
                )
            }
            Self::DataElsewhere { length } => {
                format!(
                    "the data of the `{of}` event is elsewhere, and nothing here fetches it: its `dataref` has {length} bytes"
                )
            }
            Self::Payload { version } => {
                format!("the payload is not a valid `{of}` of version {version}")
            }
        }
    }
}

impl DecodeError {
    pub(crate) fn new(message_kind: &'static str, kind: DecodeErrorKind) -> Self {
        let source = None;
        Self {
            message_kind,
            kind,
            source,
        }
    }

    /// Returns the error for a payload of `version` that could not be deserialized because of `source`. An error of
    /// `serde_json` becomes a [`JsonError`], which quotes nothing of the payload: errors of decoding are logged. The
    /// `source` of a `DecodeError` should not quote the payload.
    #[must_use]
    pub fn payload(
        message_kind: &'static str,
        version: u32,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let source: Box<dyn StdError + Send + Sync> = source.into();
        let source: Arc<dyn StdError + Send + Sync> =
            match source.downcast_ref::<serde_json::Error>() {
                Some(json) => Arc::new(JsonError::new(json)),
                None => source.into(),
            };
        let error = Self::new(message_kind, DecodeErrorKind::Payload { version });
        Self {
            source: Some(source),
            ..error
        }
    }
}

/// An error of decoding JSON. The text tells what was expected and where, and quotes nothing of the payload, so it may
/// be logged.
///
/// ```
/// use queue_core::{DecodeError, Message};
/// # use queue_core::{EncodeError, KeyScope, MessageType, Wire};
/// #
/// # struct Order { number: u32 }
/// # impl Message for Order {
/// #     const TYPE: MessageType = MessageType::new("order", "orders");
/// #     fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> { Ok(None) }
/// #     fn encode(&self) -> Result<Vec<u8>, EncodeError> { Ok(self.number.to_string().into()) }
/// #     fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
/// #         let number = serde_json::from_slice(payload).map_err(|e| DecodeError::payload("order", version, e))?;
/// #         Ok(Self { number })
/// #     }
/// # }
/// use std::error::Error as _;
///
/// let error = Order::decode(1, br#""4111 1111""#).err().expect("a string is not a number");
/// let cause = error.source().expect("a cause");
/// assert_eq!(cause.to_string(), "invalid type, expected u32 at line 1 column 11");
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct JsonError {
    text: String,
}

crate::debug_as_text!(JsonError);

impl JsonError {
    pub(crate) fn new(error: &serde_json::Error) -> Self {
        let whole = error.to_string();
        // The texts of the other categories are constants.
        if error.classify() != Category::Data {
            return Self { text: whole };
        }
        let place = format!(" at line {} column {}", error.line(), error.column());
        let text = match whole.strip_suffix(&place) {
            Some(text) => without_values(text) + &place,
            None => without_values(&whole),
        };
        Self { text }
    }
}

/// Returns what an error text of serde tells of the type, without what it tells of the value.
pub(crate) fn without_values(text: &str) -> String {
    const OF_THE_TYPE: &[&str] = &[
        "missing field `",
        "duplicate field `",
        "data did not match any variant of untagged enum ",
    ];
    const OF_THE_VALUE: &[(&str, &str)] = &[
        ("invalid type: ", "invalid type"),
        ("invalid value: ", "invalid value"),
        ("invalid length ", "invalid length"),
        ("unknown variant `", "unknown variant"),
        ("unknown field `", "unknown field"),
    ];
    if OF_THE_TYPE.iter().any(|start| text.starts_with(start)) {
        return text.to_owned();
    }
    let known = OF_THE_VALUE
        .iter()
        .find(|(start, _)| text.starts_with(start));
    let Some((_, problem)) = known else {
        // The type's own error, which may quote anything.
        return "invalid data".to_owned();
    };
    // No field or variant was expected, so the text may be part of the value.
    if text.ends_with("`, there are no fields") || text.ends_with("`, there are no variants") {
        return (*problem).to_owned();
    }
    // What was expected comes last, and a value may contain this text too.
    let expected = text.rfind(", expected ").map_or("", |at| &text[at..]);
    format!("{problem}{expected}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::Error as _;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Card {
        #[expect(dead_code, reason = "only decoded")]
        number: u64,
        #[expect(dead_code, reason = "only decoded")]
        brand: Brand,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Brand {
        Blue,
        Red,
    }

    fn text(json: &str) -> String {
        let error = serde_json::from_str::<Card>(json).expect_err(json);
        JsonError::new(&error).to_string()
    }

    #[test]
    fn what_was_expected_is_told_and_nothing_of_the_value() {
        for (json, expected) in [
            (
                r#"{"number":"secret, expected secret","brand":"red"}"#,
                "invalid type, expected u64 at line 1 column 35",
            ),
            (
                r#"{"number":-5,"brand":"red"}"#,
                "invalid value, expected u64 at line 1 column 12",
            ),
            (
                r#"{"number":1,"brand":"secret"}"#,
                "unknown variant, expected `blue` or `red` at line 1 column 28",
            ),
            (
                r#"{"number":1,"secret":2}"#,
                "unknown field, expected `number` or `brand` at line 1 column 20",
            ),
            (
                r#"{"number":1}"#,
                "missing field `brand` at line 1 column 12",
            ),
            (
                r#"{"number":1,"#,
                "EOF while parsing a value at line 1 column 12",
            ),
        ] {
            assert_eq!(text(json), expected);
        }
    }

    #[test]
    fn where_nothing_is_expected_nothing_of_the_value_is_told() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Empty {}

        #[derive(Debug, Deserialize)]
        enum Never {}

        let field = serde_json::from_str::<Empty>(r#"{"card, expected 4111":1}"#);
        let variant = serde_json::from_str::<Never>(r#""card, expected 4111""#);
        for (error, problem) in [
            (field.expect_err("no fields"), "unknown field at line 1"),
            (
                variant.expect_err("no variants"),
                "unknown variant at line 1",
            ),
        ] {
            let text = JsonError::new(&error).to_string();
            assert!(text.starts_with(problem), "{text}");
        }
    }

    #[test]
    fn an_error_of_the_types_own_is_not_quoted() {
        let error = serde_json::Error::custom("the card 4111 is blocked");
        assert_eq!(JsonError::new(&error).to_string(), "invalid data");
    }
}

//! The key under which repeated deliveries of the same work are recognised.

use std::fmt::{self, Write as _};

use serde_json::Value;

use crate::envelope::{MessageId, RequestId, is_forbidden};
use crate::message::{EncodeError, KeyScope, Message, MessageType};

/// What makes two deliveries the same work: the canonical JSON array of kind, request id and key
/// fields, or the message id where the type declares no key fields.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The key that `message` declares through its key fields, or `None` if it declares none.
    ///
    /// # Errors
    /// [`EncodeError::Key`] if a key field holds what cannot be part of a key.
    pub fn declared<M: Message>(
        message: &M,
        request: &RequestId,
    ) -> Result<Option<Self>, EncodeError> {
        Ok(message
            .key()?
            .map(|fields| Self::of_fields(&M::TYPE, request, &fields)))
    }

    /// The key that a type's key fields make.
    #[must_use]
    pub fn of_fields(message_type: &MessageType, request: &RequestId, fields: &[Value]) -> Self {
        let mut parts = vec![Value::from(message_type.kind())];
        if message_type.key_scope() == KeyScope::Request {
            parts.push(Value::from(request.as_str()));
        }
        parts.extend_from_slice(fields);
        Self(canonical(&Value::Array(parts)))
    }

    /// The key of a message that declares none.
    #[must_use]
    pub fn from_id(id: &MessageId) -> Self {
        Self(id.as_str().to_owned())
    }

    /// A key that was written by a sender.
    #[must_use]
    pub fn from_subject(subject: &str) -> Self {
        Self(subject.to_owned())
    }

    /// Whether a `subject` is a key that a message of this kind declares. Events from elsewhere use the
    /// attribute for something else.
    #[must_use]
    pub fn is_of_kind(subject: &str, kind: &str) -> bool {
        let kind = canonical(&Value::from(kind));
        subject
            .strip_prefix('[')
            .and_then(|rest| rest.strip_prefix(&*kind))
            .is_some_and(|rest| rest.starts_with([',', ']']))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// JSON without white space, members sorted by name, and every character escaped that CloudEvents
/// forbids, so that equal values have equal texts and the text may stand in a CloudEvents attribute.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (at, (name, member)) in members.into_iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write_canonical(&Value::from(name.as_str()), text);
                text.push(':');
                write_canonical(member, text);
            }
            text.push('}');
        }
        Value::String(string) => {
            for c in Value::from(string.as_str()).to_string().chars() {
                if !is_forbidden(c) {
                    text.push(c);
                    continue;
                }
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(text, "\\u{unit:04x}").expect("a String takes any text");
                }
            }
        }
        plain => write!(text, "{plain}").expect("a String takes any text"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_values_have_equal_texts() {
        let one = json!(["k", {"b": 1, "a": [true, null]}]);
        let other = json!(["k", {"a": [true, null], "b": 1}]);
        assert_eq!(canonical(&one), canonical(&other));
        assert_eq!(canonical(&one), r#"["k",{"a":[true,null],"b":1}]"#);
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(
            canonical(&json!(["a", "b,c"])),
            canonical(&json!(["a,b", "c"]))
        );
        assert_ne!(canonical(&json!(["1"])), canonical(&json!([1])));
    }

    #[test]
    fn forbidden_characters_are_escaped_as_json_escapes_them() {
        let value = json!(["\u{1}\u{85}\u{ffff}\u{1fffe}"]);
        let text = canonical(&value);
        assert_eq!(text, r#"["\u0001\u0085\uffff\ud83f\udffe"]"#);
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read, value);
    }
}

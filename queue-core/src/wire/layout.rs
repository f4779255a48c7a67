//! The layout of a new event, as this crate writes it: members in a fixed order, without white space.
//!
//! Nearly all events of a queue are in the layout of new events, so `read` compares names rather than looking them up.
//! Events in another layout, such as another producer's or those put back, are left to [`Attributes::of`], which reads
//! any event. Tests check that [`Attributes::of`] and `read` read a new event alike.

use serde::de::IgnoredAny;

use super::attributes::{Attributes, Value};

/// The text of a name in an object, between the value before it and its own value.
macro_rules! member {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}
pub(super) use member;

pub(super) const START: &str = r#"{"specversion":"1.0""#;
pub(super) const ID: &str = member!("id");
pub(super) const SOURCE: &str = member!("source");
pub(super) const TYPE: &str = member!("type");
pub(super) const TIME: &str = member!("time");
pub(super) const SUBJECT: &str = member!("subject");
pub(super) const GROUP: &str = member!("messagegroup");
pub(super) const TRACKED: &str = member!("messagetracked");
pub(super) const CONTENT_TYPE: &str = member!("datacontenttype");
pub(super) const VERSION: &str = member!("dataversion");
pub(super) const QUEUE_URI: &str = member!("queueuri");
pub(super) const REQUEST: &str = member!("requestid");
pub(super) const REPLY_TO: &str = member!("replyto");
pub(super) const CORRELATION: &str = member!("correlationid");
pub(super) const TRACE_PARENT: &str = member!("traceparent");
pub(super) const TRACE_STATE: &str = member!("tracestate");
pub(super) const UNIQUE_KEY: &str = member!("uniquekey");
pub(super) const DATA: &str = member!("data");
pub(super) const END: &str = "}";

/// Reads an event in this layout; returns `None` for anything else.
pub(super) fn read(event: &str) -> Option<Attributes<'_>> {
    let mut attributes = Attributes::absent();
    let mut rest = Rest(event.strip_prefix(START)?);
    attributes
        .spec_version
        .set(Value::of_plain_string(r#""1.0""#));
    attributes.id.set(rest.string(ID)?);
    attributes.source.set(rest.string(SOURCE)?);
    attributes.kind.set(rest.string(TYPE)?);
    attributes.time.set_any(rest.string(TIME));
    attributes.subject.set_any(rest.string(SUBJECT));
    attributes.group.set_any(rest.string(GROUP));
    attributes.tracked.set_any(rest.yes(TRACKED));
    attributes.content_type.set_any(rest.string(CONTENT_TYPE));
    attributes.version.set(rest.number(VERSION)?);
    attributes.queue_uri.set_any(rest.string(QUEUE_URI));
    attributes.request.set(rest.string(REQUEST)?);
    attributes.reply_to.set_any(rest.string(REPLY_TO));
    attributes.correlation.set_any(rest.string(CORRELATION));
    attributes.trace_parent.set_any(rest.string(TRACE_PARENT));
    attributes.trace_state.set_any(rest.string(TRACE_STATE));
    attributes.unique_key.set_any(rest.string(UNIQUE_KEY));
    attributes.data.set(rest.data()?);
    Some(attributes)
}

/// The text that has not been read yet. A method of `Rest` that does not find its member returns `None` and takes
/// nothing.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Takes a member whose value is a string with no escapes besides `\"` and `\\`.
    fn string(&mut self, name: &str) -> Option<Value<'a>> {
        let text = self.0.strip_prefix(name)?;
        let bytes = text.as_bytes();
        if bytes.first() != Some(&b'"') {
            return None;
        }
        let mut at = 1 + plain(&bytes[1..]);
        let is_plain = bytes.get(at) == Some(&b'"');
        while let [b'\\', b'"' | b'\\', rest @ ..] = bytes.get(at..)? {
            at += 2 + plain(rest);
        }
        if bytes.get(at) != Some(&b'"') {
            return None;
        }
        let (value, rest) = text.split_at(at + 1);
        self.0 = rest;
        Some(if is_plain {
            Value::of_plain_string(value)
        } else {
            Value::of(value)
        })
    }

    /// Takes a member whose value is `true`.
    fn yes(&mut self, name: &str) -> Option<Value<'a>> {
        let text = self.0.strip_prefix(name)?;
        self.0 = text.strip_prefix("true")?;
        Some(Value::of("true"))
    }

    /// Takes a member whose value is a whole number, not negative.
    fn number(&mut self, name: &str) -> Option<Value<'a>> {
        let text = self.0.strip_prefix(name)?;
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (value, rest) = text.split_at(digits);
        match value.as_bytes() {
            // JSON forbids leading zeros.
            [] | [b'0', _, ..] => None,
            _ => {
                self.0 = rest;
                Some(Value::of(value))
            }
        }
    }

    /// Takes the payload, if nothing follows it.
    fn data(self) -> Option<Value<'a>> {
        let data = self.0.strip_prefix(DATA)?.strip_suffix(END)?;
        let has_space = data.trim_ascii().len() != data.len();
        let is_json = !has_space && serde_json::from_str::<IgnoredAny>(data).is_ok();
        is_json.then(|| Value::of(data))
    }
}

/// Returns how many bytes at the start of a string are part of its text as they are.
fn plain(bytes: &[u8]) -> usize {
    let is_plain = |byte: &u8| (*byte >= b' ') & (*byte != b'"') & (*byte != b'\\');
    // Eight bytes at a time as far as possible.
    let all_plain = |eight: &&[u8]| eight.iter().fold(true, |all, byte| all & is_plain(byte));
    let whole = 8 * bytes.chunks_exact(8).take_while(all_plain).count();
    whole
        + bytes[whole..]
            .iter()
            .take_while(|byte| is_plain(byte))
            .count()
}

#[cfg(test)]
mod tests;

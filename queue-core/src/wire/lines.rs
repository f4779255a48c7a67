//! Bodies in lines: the queue URI, the client id and the request id, then the fields of the message, each on a line of
//! its own; the format of programs that know no events.
//!
//! | step | in | out |
//! |---|---|---|
//! | [`to_lines`] | message | the message's fields, which are the payload |
//! | [`encode`] | envelope, payload | body |
//! | [`Lines::read`] | body | ids, payload |
//! | [`from_lines`] | payload | message |

mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt::Display;

use serde::{de, ser};

use super::encoding::unwrap_base64;
use crate::envelope::{ClientId, Envelope, MAX_ID_BYTES, RequestId};
use crate::message::without_values;
use crate::text::escape_text;

pub(crate) use reader::from_lines;
pub(crate) use writer::to_lines;

/// The lines before those of the fields, in order.
const HEAD: [&str; 3] = ["queue URI", "client id", "request id"];

/// The values that have a line.
const ALLOWED: &str = "strings, characters, numbers, booleans, enum variants without data, newtypes around one of these, and \
                       an `Option` of one";

/// A body in lines, split into the ids of its sender and the payload.
///
/// ```
/// use queue_core::wire::Lines;
///
/// let lines = Lines::read(b"http://old.example/slices\nclient-7\norder-7\nsunset.png\n3")?;
/// assert_eq!(lines.request_id.expect("given").as_str(), "order-7");
/// assert_eq!(lines.payload, "sunset.png\n3");
/// # Ok::<(), queue_core::LinesError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lines {
    /// The URI of the queue, as the sender knew it, for information only.
    pub queue_uri: Option<String>,
    /// The client that submitted the message.
    pub client_id: Option<ClientId>,
    /// The request that the message belongs to.
    pub request_id: Option<RequestId>,
    /// The message's fields, one a line.
    pub payload: String,
}

impl Lines {
    /// Splits a body, which may have Base64 around it. An empty line stands for an id that the sender did not give.
    ///
    /// # Errors
    /// [`LinesError`] if there are fewer than four lines, or the first three are not a URI and two ids.
    pub fn read(body: &[u8]) -> Result<Self, LinesError> {
        let has_head = |inner: &String| inner.split('\n').count() > HEAD.len();
        let unwrapped = unwrap_base64(body).and_then(|inner| String::from_utf8(inner).ok());
        let text = match unwrapped.as_ref().filter(|inner| has_head(inner)) {
            Some(inner) => inner,
            None => text(body)?,
        };
        let parts: Vec<&str> = text.splitn(HEAD.len() + 1, '\n').collect();
        let [queue_uri, client, request, payload] = parts[..] else {
            return Err(too_short(parts.len()));
        };
        let id = "1 to 1024 bytes without control characters";
        const { assert!(MAX_ID_BYTES == 1024) };
        Ok(Self {
            queue_uri: head(0, queue_uri, "a URI", |uri| Some(uri.to_owned()))?,
            client_id: head(1, client, id, |client| ClientId::new(client).ok())?,
            request_id: head(2, request, id, |request| RequestId::new(request).ok())?,
            payload: payload.to_owned(),
        })
    }

    /// Writes the ids that the body has into the envelope.
    pub fn identify(self, envelope: &mut Envelope) {
        if let Some(client_id) = self.client_id {
            envelope.client_id = client_id;
        }
        if let Some(request_id) = self.request_id {
            envelope.request_id = request_id;
        }
        if self.queue_uri.is_some() {
            envelope.queue_uri = self.queue_uri;
        }
    }
}

/// Returns the body of a message with this payload. Control characters of the URI are escaped, as in an event; the ids
/// cannot contain any.
pub(crate) fn encode(envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
    let uri = envelope.queue_uri.as_deref().map(escape_text);
    [
        uri.as_deref().unwrap_or_default().as_bytes(),
        envelope.client_id.as_str().as_bytes(),
        envelope.request_id.as_str().as_bytes(),
        payload,
    ]
    .join(&b'\n')
}

fn text(bytes: &[u8]) -> Result<&str, LinesError> {
    std::str::from_utf8(bytes)
        .map_err(|error| LinesError::of_body(format!("it is not text in UTF-8: {error}")))
}

fn too_short(found: usize) -> LinesError {
    let missing = HEAD.get(found).unwrap_or(&"first field");
    LinesError::of_body(format!(
        "the {missing} is missing: at least 4 lines are wanted, which are the queue URI, the client id, the request id and \
         the fields, and the body has {found}"
    ))
}

fn head<T>(
    at: usize,
    value: &str,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, LinesError> {
    if value.is_empty() {
        return Ok(None);
    }
    let parsed = check(value).and_then(|()| parse(value).ok_or(LinesError::expected(expected)));
    let place = || format!("the {} on line {}", HEAD[at], at + 1);
    parsed
        .map(Some)
        .map_err(|error| error.on_line(place(), value))
}

/// Checks that a value does not contain what separates lines, here or in other programs.
fn check(value: &str) -> Result<(), LinesError> {
    match memchr::memchr2(b'\n', b'\r', value.as_bytes()) {
        None => Ok(()),
        Some(at) => {
            let separator = match value.as_bytes()[at] {
                b'\n' => "line feed",
                _ => "carriage return",
            };
            let length = value.len();
            Err(LinesError::new(format!(
                "a value cannot contain what separates lines, and this one of {length} bytes has a {separator} at byte {at}"
            )))
        }
    }
}

/// An error of a message in [lines](crate::Wire::Lines). The error tells which field is wrong and what was expected,
/// and only the shape of the value, so it may be logged.
///
/// ```
/// use queue_core::wire::Lines;
///
/// let error = Lines::read(b"http://old.example/slices\nclient-7").unwrap_err();
/// assert!(error.to_string().starts_with("the request id is missing"));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LinesError {
    text: String,
    /// Whether the text says where the error is.
    is_placed: bool,
}

crate::debug_as_text!(LinesError);

impl LinesError {
    /// An error whose place is added by whoever knows it.
    fn new(problem: impl Into<String>) -> Self {
        Self {
            text: problem.into(),
            is_placed: false,
        }
    }

    /// An error of the body as a whole.
    fn of_body(problem: impl Into<String>) -> Self {
        Self {
            text: problem.into(),
            is_placed: true,
        }
    }

    fn expected(what: &str) -> Self {
        Self::new(format!("expected {what}"))
    }

    /// The error of a value that has no line.
    fn no_line(what: &str) -> Self {
        Self::new(format!(
            "{what} does not fit on a line; allowed are {ALLOWED}"
        ))
    }

    /// The error of a message that is not a struct of fields.
    fn no_fields(what: &str) -> Self {
        Self::of_body(format!(
            "the message is {what}; it has to be a struct whose fields are {ALLOWED}"
        ))
    }

    fn of_field(self, place: impl Display) -> Self {
        if self.is_placed {
            return self;
        }
        Self::of_body(format!("{place}: {}", self.text))
    }

    fn on_line(self, place: impl Display, value: &str) -> Self {
        if self.is_placed {
            return self;
        }
        Self::of_body(format!("{place}: {}, found {}", self.text, shape(value)))
    }
}

impl de::Error for LinesError {
    fn custom<T: Display>(problem: T) -> Self {
        Self::new(without_values(&problem.to_string()))
    }
}

impl ser::Error for LinesError {
    fn custom<T: Display>(problem: T) -> Self {
        Self::new(problem.to_string())
    }
}

/// Describes a value without quoting it.
fn shape(value: &str) -> String {
    let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
    if value.is_empty() {
        "an empty line".to_owned()
    } else if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("an integer of length {}", value.len())
    } else if value.parse::<f64>().is_ok_and(f64::is_finite) {
        "a decimal number".to_owned()
    } else {
        format!("text of length {}", value.chars().count())
    }
}

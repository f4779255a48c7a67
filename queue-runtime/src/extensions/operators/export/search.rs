//! The messages that contain a text, wherever it is in them.

use bytes::Bytes;
use queue_core::backend::PageMark;
use queue_core::internal::unwrap_base64;
use queue_core::wire::{Body, MAX_WRAPPINGS, Payload};
use queue_core::{Error, ErrorKind, Operation, Result};
use serde_json::Value;

use super::{ExportedMessage, ExportedPage, Left};
use crate::service::AnyQueue;

/// The fewest characters of a text: a shorter one is in messages that are not meant.
const FEWEST: usize = 4;

/// The attributes of an event that must be the whole text: a part of an id or of a time is in messages that are not meant.
const WHOLE: [&str; 19] = [
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "datacontenttype",
    "queueuri",
    "requestid",
    "replyto",
    "correlationid",
    "traceparent",
    "tracestate",
    "poisonreason",
    "poisonfirst",
    "poisonlast",
    "poisonqueue",
    "poisonid",
    "dataencoding",
    "datadigest",
];

impl AnyQueue {
    /// Copies those of up to `max` messages, as [`export`](Self::export) does, that contain a text: to find, and then
    /// [delete](Self::delete_exported), what is known of a person. A page may be empty and not the last.
    ///
    /// The text is looked for in payloads, errors, checkpoints, keys and client ids, and in each string of JSON, whatever its
    /// escapes; upper and lower case differ. A number of JSON, and a message or request id, must be the whole text. Payloads that
    /// are compressed, in packs, or kept beside the message are opened. A message that cannot be opened, or whose data is
    /// elsewhere, is [left](ExportedPage::left), with the reason.
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Greeting {
    /// #     to: String,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// for to in ["ada@example.org", "bob@example.org"] {
    ///     service.submit(Greeting { to: to.into() }).await?;
    /// }
    ///
    /// let greetings = service.queue::<Greeting>().any();
    /// let page = greetings.search("ada@example.org", None, 100).await?;
    /// assert_eq!(page.messages.len(), 1);
    /// for greeting in &page.messages {
    ///     greetings.delete_exported(greeting).await?;
    /// }
    /// assert_eq!(greetings.properties().await?.approximate_count, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`export`](Self::export); [`ErrorKind::InvalidInput`] for a text of less than 4 characters.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn search(
        &self,
        text: &str,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<ExportedPage> {
        let length = text.chars().count();
        if length < FEWEST {
            let short = Error::new(ErrorKind::InvalidInput, Operation::Browse);
            let detail = format!(
                "the text to look for has {length} characters; at least {FEWEST} are needed"
            );
            return Err(short.with_queue(&self.name).with_detail(detail).unsent());
        }
        let most = self.context.encoder.max_payload();
        let mut page = self.export(from, max).await?;
        for message in std::mem::take(&mut page.messages) {
            match message.contains(text, most) {
                Ok(true) => page.messages.push(message),
                Ok(false) => {}
                Err(problem) => page.left.extend(message.into_left(problem)),
            }
        }
        Ok(page)
    }
}

impl ExportedMessage {
    /// Whether the message contains a text. Fails if its payload cannot be opened, or has more than `most` bytes.
    fn contains(&self, text: &str, most: usize) -> Result<bool, String> {
        let body: Bytes = match (&self.event, &self.text, &self.base64) {
            (Some(event), ..) => Bytes::copy_from_slice(event.get().as_bytes()),
            (_, Some(text), _) => Bytes::copy_from_slice(text.as_bytes()),
            (.., Some(data)) => of_base64(data)?,
            _ => Bytes::new(),
        };
        let attachment = self.attachment.as_deref().map(of_base64).transpose()?;
        is_in_body(&body, attachment, text, most)
    }

    fn into_left(self, problem: String) -> Option<Left> {
        let seen = self.seen?;
        Some(Left::new(seen.id, problem))
    }
}

fn of_base64(data: &str) -> Result<Bytes, String> {
    let bytes = unwrap_base64(data.as_bytes());
    bytes
        .map(Bytes::from)
        .ok_or_else(|| "it is not Base64".to_owned())
}

/// Whether a text is in a body, or in one that was moved to a poison queue inside of it.
fn is_in_body(
    body: &Bytes,
    mut attachment: Option<Bytes>,
    text: &str,
    most: usize,
) -> Result<bool, String> {
    let mut body = body.clone();
    // Of the event itself, and of each that it is around.
    for _ in 0..=MAX_WRAPPINGS {
        let mut event = match Body::read(&body, most) {
            Body::Event(event) => event,
            Body::Bare(bytes) => {
                let inner = unwrap_base64(&bytes);
                return Ok(is_in(&bytes, text) || inner.is_some_and(|inner| is_in(&inner, text)));
            }
            Body::Malformed(_) if is_in(&body, text) => return Ok(true),
            Body::Malformed(problem) => return Err(problem),
        };
        // On the wire, characters of the client id are percent-encoded.
        if event.envelope.client_id.as_str().contains(text) || is_in_attributes(&event.body, text) {
            return Ok(true);
        }
        let opened = match attachment.take() {
            Some(data) => event.attach(data, most),
            None => event.expand(most),
        };
        opened.map_err(|error| error.to_string())?;
        let data = match &event.payload {
            Payload::Json(data) | Payload::Binary(data) => data,
            Payload::Absent => return Ok(false),
            _ => return Err("its data is elsewhere, or cannot be opened".to_owned()),
        };
        let poison = event.envelope.poison.as_ref();
        if !poison.is_some_and(|record| record.raw) {
            return Ok(is_in(data, text));
        }
        body = data.clone();
    }
    Err(format!(
        "it is inside more than {MAX_WRAPPINGS} events of a poison queue"
    ))
}

/// Whether a text is in the attributes of an event, without its data.
fn is_in_attributes(event: &[u8], text: &str) -> bool {
    let Ok(Value::Object(members)) = serde_json::from_slice(event) else {
        return false;
    };
    members.iter().any(|(name, value)| match name.as_str() {
        "data" | "data_base64" => false,
        name if WHOLE.contains(&name) => value.as_str() == Some(text),
        _ => is_in_value(value, text),
    })
}

/// Whether a text is in bytes that may be JSON.
fn is_in(bytes: &[u8], text: &str) -> bool {
    let is_as_it_is = || {
        let mut parts = bytes.windows(text.len());
        parts.any(|part| part == text.as_bytes())
    };
    match serde_json::from_slice(bytes) {
        Ok(value) if is_in_value(&value, text) => true,
        // A part of a number is none; another text may be in a member that is there twice.
        Ok(_) => !text.bytes().all(|byte| byte.is_ascii_digit()) && is_as_it_is(),
        Err(_) => is_as_it_is(),
    }
}

fn is_in_value(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string.contains(text),
        Value::Number(number) => number.to_string() == text,
        Value::Array(values) => values.iter().any(|value| is_in_value(value, text)),
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| name.contains(text) || is_in_value(value, text)),
        Value::Null | Value::Bool(_) => false,
    }
}

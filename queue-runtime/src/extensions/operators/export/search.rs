//! The messages that contain a text, wherever it is in them.

use bytes::Bytes;
use queue_core::backend::PageMark;
use queue_core::internal::unwrap_base64;
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, Operation, Result};
use serde_json::Value;

use super::{ExportedMessage, ExportedPage, Left};
use crate::service::AnyQueue;

/// The fewest characters of a text: a shorter one is in messages that are not meant.
const FEWEST: usize = 3;

impl AnyQueue {
    /// Copies those of up to `max` messages, as [`export`](Self::export) does, that contain a text: to find, and then
    /// [delete](Self::delete_exported), what is known of a person. A page may be empty and not the last.
    ///
    /// The text is looked for in ids, attributes, errors, checkpoints and payloads, and in each string of JSON, whatever its
    /// escapes; upper and lower case differ. A number of JSON must be the whole text. Payloads that are compressed, in packs, or
    /// kept beside the message are opened. A message that cannot be opened is [left](ExportedPage::left), with the reason.
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
    /// The errors of [`export`](Self::export); [`ErrorKind::InvalidInput`] for a text of less than 3 characters.
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
        let not_base64 = || "it is not Base64".to_owned();
        let of_base64 = |data: &String| unwrap_base64(data.as_bytes()).ok_or_else(not_base64);
        let body: Bytes = match (&self.event, &self.text, &self.base64) {
            (Some(event), ..) => Bytes::copy_from_slice(event.get().as_bytes()),
            (_, Some(text), _) => Bytes::copy_from_slice(text.as_bytes()),
            (.., Some(data)) => of_base64(data)?.into(),
            _ => Bytes::new(),
        };
        if is_in(&body, text) {
            return Ok(true);
        }
        let Body::Event(mut event) = Body::read(&body, most) else {
            return Ok(false);
        };
        let opened = match &self.attachment {
            Some(data) => event.attach(of_base64(data)?.into(), most),
            None => event.expand(most),
        };
        opened.map_err(|error| error.to_string())?;
        // On the wire, characters of the client id are percent-encoded.
        let client_id = event.envelope.client_id.as_str();
        Ok(client_id.contains(text) || is_in(event.payload.as_bytes(), text))
    }

    fn into_left(self, problem: String) -> Option<Left> {
        let seen = self.seen?;
        Some(Left::new(seen.id, problem))
    }
}

/// Whether a text is in bytes that may be JSON.
fn is_in(bytes: &[u8], text: &str) -> bool {
    match serde_json::from_slice(bytes) {
        Ok(value) => is_in_value(&value, text),
        Err(_) => bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes()),
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

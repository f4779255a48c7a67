//! Messages: as rows of a table, in full, and without their payloads.

use std::time::Duration;

use comfy_table::Cell;
use queue_runtime::Timestamp;
use queue_runtime::backend::MessageState;
use queue_runtime::envelope::Envelope;
use queue_runtime::service::Browsed;
use queue_runtime::wire::{Body, Payload};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::table::{Table, number, text};
use super::text::{NOT_KNOWN, age, clip, escape, indented};

/// The columns of a payload that a table shows.
const PREVIEW: usize = 60;

/// What is shown of a payload that is hidden.
pub(crate) const HIDDEN: &str = "hidden";

/// A message in a list.
pub(crate) struct Listed<'a> {
    pub(crate) body: &'a Body,
    pub(crate) dequeue_count: usize,
    pub(crate) state: Option<MessageState>,
    /// The time since the put, where the storage tells its own.
    pub(crate) age: Option<Duration>,
}

impl<'a> Listed<'a> {
    pub(crate) fn browsed(message: &'a Browsed, now: Timestamp) -> Self {
        Self {
            body: &message.body,
            dequeue_count: message.dequeue_count,
            state: Some(message.state),
            age: Duration::try_from(now.duration_since(message.inserted_at)).ok(),
        }
    }

    fn row(&self, hides_payloads: bool) -> [Cell; 6] {
        let envelope = self.body.envelope();
        let (id, kind) = match envelope {
            Some(envelope) => (escape(envelope.id.as_str()), escape(&envelope.kind)),
            None => (String::new(), form(self.body).to_owned()),
        };
        let state = self.state.map_or(NOT_KNOWN, state);
        let age = self.age.map_or_else(|| NOT_KNOWN.to_owned(), age);
        [
            text(id),
            text(kind),
            text(state),
            number(self.dequeue_count),
            number(age),
            text(clip(&self.summary(hides_payloads), PREVIEW)),
        ]
    }

    /// The reason and error of a poison message, or else the payload.
    fn summary(&self, hides_payloads: bool) -> String {
        match self.body.poison() {
            Some(record) if hides_payloads => record.reason.to_string(),
            Some(record) => {
                let error = record.error.as_deref().unwrap_or_default();
                escape(&format!("{}: {error}", record.reason))
            }
            None if hides_payloads => HIDDEN.to_owned(),
            None => escape(&payload(self.body)),
        }
    }
}

/// Returns a table of messages. A program reads their times and bodies from the JSON.
pub(crate) fn listing<'a>(
    messages: impl IntoIterator<Item = Listed<'a>>,
    hides_payloads: bool,
) -> Table {
    let mut table = Table::new(["ID", "KIND", "STATE", "RECEIVED", "AGE", "CONTENT"]);
    for message in messages {
        table.row(message.row(hides_payloads));
    }
    table
}

pub(crate) fn state(state: MessageState) -> &'static str {
    match state {
        MessageState::Visible => "visible",
        MessageState::Delayed => "delayed",
        MessageState::Hidden => "held",
        MessageState::Behind => "behind",
        _ => NOT_KNOWN,
    }
}

fn form(body: &Body) -> &'static str {
    match body {
        Body::Event(_) => "event",
        Body::Bare(_) => "(bare)",
        Body::Malformed(_) => "(malformed)",
    }
}

/// Returns what a body holds as one text: JSON, text, or what is there instead.
fn payload(body: &Body) -> String {
    let bytes = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("{} bytes", bytes.len()),
    };
    match body {
        Body::Event(event) => match &event.payload {
            Payload::Json(json) => bytes(json),
            Payload::Binary(binary) => format!("{} bytes", binary.len()),
            Payload::Compressed(compressed) => {
                format!("{} bytes, compressed", compressed.size())
            }
            Payload::Pack(pack) => format!("a pack of {} messages", pack.items()),
            Payload::Attached(attached) => format!("{} bytes, attached", attached.size()),
            Payload::Elsewhere(reference) => format!("at {reference}"),
            _ => "no payload".to_owned(),
        },
        Body::Bare(body) => bytes(body),
        Body::Malformed(problem) => problem.clone(),
    }
}

/// Returns the lines that tell everything about a message.
pub(crate) fn details(message: &Browsed, now: Timestamp, hides_payloads: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<12} {value}"));
    if let Some(envelope) = message.body.envelope() {
        of_envelope(envelope, hides_payloads, &mut line);
    }
    line("state", state(message.state).to_owned());
    line("received", format!("{} times", message.dequeue_count));
    let time = |at: Timestamp| match Duration::try_from(now.duration_since(at)) {
        Ok(past) => format!("{at} ({} ago)", age(past)),
        Err(_) => {
            let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            format!("{at} (in {})", age(left))
        }
    };
    line("put", time(message.inserted_at));
    line("visible", time(message.visible_at));
    line(
        "expires",
        message.expires_at.map_or_else(|| "never".to_owned(), time),
    );
    line("storage id", escape(message.id.as_str()));
    let content = match (hides_payloads, &message.body) {
        (true, _) => HIDDEN.to_owned(),
        (false, body) => pretty(&payload(body)),
    };
    lines.push(String::new());
    lines.extend(content.lines().map(escape));
    lines
}

fn of_envelope(envelope: &Envelope, hides_payloads: bool, line: &mut impl FnMut(&str, String)) {
    line("id", escape(envelope.id.as_str()));
    line(
        "kind",
        format!("{}, version {}", escape(&envelope.kind), envelope.version),
    );
    line("request id", escape(envelope.request_id.as_str()));
    line("client id", escape(envelope.client_id.as_str()));
    if let Some(time) = envelope.time {
        line("submitted", time.to_string());
    }
    match &envelope.group {
        Some(_) if hides_payloads => line("group", HIDDEN.to_owned()),
        Some(group) => line("group", escape(group)),
        None => {}
    }
    let shown = |error: &Option<String>| match error {
        Some(_) if hides_payloads => HIDDEN.to_owned(),
        Some(error) => escape(error),
        None => "none".to_owned(),
    };
    let attempts = &envelope.attempts;
    if attempts.failures > 0 {
        let error = shown(&attempts.last_error);
        line(
            "failures",
            format!("{}, the last: {error}", attempts.failures),
        );
    }
    if let Some(record) = &envelope.poison {
        line("poison", record.reason.to_string());
        line("error", shown(&record.error));
        line("attempts", record.attempts.to_string());
        line("from queue", escape(&record.queue));
        line("moved", record.last.to_string());
    }
}

/// Returns JSON with line breaks, and other text as it is.
fn pretty(text: &str) -> String {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => indented(text),
        Err(_) => text.to_owned(),
    }
}

/// Replaces the payloads in a message's JSON, and the error texts, which may quote them.
pub(crate) fn without_payload(value: &mut Value) {
    let Value::Object(members) = value else {
        if let Value::Array(items) = value {
            items.iter_mut().for_each(without_payload);
        }
        return;
    };
    for (name, value) in members {
        match name.as_str() {
            "payload" | "text" | "base64" | "malformed" | "error" | "last_error" | "progress" => {
                if !value.is_null() {
                    *value = HIDDEN.into();
                }
            }
            _ => without_payload(value),
        }
    }
}

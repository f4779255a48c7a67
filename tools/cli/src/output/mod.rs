//! What people and programs read.

mod bar;
mod confirm;
mod message;
pub(crate) mod table;
mod text;

use std::io::{self, Write};

use queue_runtime::MessageId;
use serde::Serialize;
use serde_json::Value;
use tracing_subscriber::EnvFilter;

use crate::arguments::General;
use crate::failure::{Exit, Failure, Result};

pub(crate) use bar::Bar;
pub(crate) use confirm::ask;
pub(crate) use message::{Listed, details, listing, without_payload};
pub(crate) use table::Table;
pub(crate) use text::{NOT_KNOWN, age, count, escape, escape_json, indented};

/// Standard output: tables and sentences for people, or a JSON value a line for programs.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) hides_payloads: bool,
}

impl Output {
    pub(crate) fn new(general: &General) -> Self {
        Self {
            json: general.json,
            hides_payloads: general.hide_payloads,
        }
    }

    /// Writes a value as a line of JSON.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<()> {
        let value = to_json(value)?;
        self.raw(&value.to_string())
    }

    /// Writes a message, or a report that holds some, as a line of JSON: without payloads if they are to be hidden.
    pub(crate) fn message(&self, value: &impl Serialize) -> Result<()> {
        let mut value = to_json(value)?;
        if self.hides_payloads {
            without_payload(&mut value);
        }
        self.raw(&value.to_string())
    }

    /// Writes a received message, with the JSON of its payload as it is: numbers of any length stay.
    pub(crate) fn message_with(&self, value: &Value, payload: Option<&str>) -> Result<()> {
        let (Some(payload), false) = (payload, self.hides_payloads) else {
            return self.message(value);
        };
        let mut value = value.clone();
        let Some(place) = value.pointer_mut("/body/event/payload") else {
            return self.message(&value);
        };
        // Nothing else in the message can be equal to it.
        let mark = MessageId::random().to_string();
        *place = Value::from(mark.as_str());
        // Between the tokens of JSON, a line feed is as good as a space.
        let payload = payload.replace(['\n', '\r'], " ");
        self.raw(&value.to_string().replace(&format!("\"{mark}\""), &payload))
    }

    /// Writes a line of JSON so that no terminal takes anything in it for a command.
    fn raw(&self, json: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(escape_json(json).as_bytes())?;
        Ok(out.write_all(b"\n")?)
    }

    /// Writes a line for people. What comes from a queue must have been [escaped](escape).
    pub(crate) fn line(&self, line: impl AsRef<str>) -> Result<()> {
        Ok(writeln!(anstream::stdout().lock(), "{}", line.as_ref())?)
    }

    pub(crate) fn table(&self, table: &Table) -> Result<()> {
        Ok(write!(anstream::stdout().lock(), "{table}")?)
    }

    /// Writes what a command has done: the sentence for people, or the value for programs.
    pub(crate) fn done(&self, sentence: &str, value: &impl Serialize) -> Result<()> {
        if self.json {
            self.json(value)
        } else {
            self.line(escape(sentence))
        }
    }

    pub(crate) fn flush(&self) -> Result<()> {
        Ok(io::stdout().lock().flush()?)
    }
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| {
        let text = format!("failed to write JSON: {error}");
        Failure::new(Exit::Failed, text)
    })
}

/// Tells people something that is no result, on standard error.
pub(crate) fn note(text: impl AsRef<str>) {
    anstream::eprintln!("\u{1b}[1mnote\u{1b}[0m: {}", escape(text.as_ref()));
}

/// Logs warnings of the library to standard error; `RUST_LOG` sets more.
pub(crate) fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .without_time()
        .with_writer(io::stderr)
        .init();
}

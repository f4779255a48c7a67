//! What people and programs read.

mod bar;
mod confirm;
mod kept;
mod message;
pub(crate) mod table;
mod text;

use std::io::{self, Write as _};

use serde::Serialize;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::arguments::General;
use crate::failure::{Exit, Failure, Result};

pub(crate) use bar::Bar;
pub(crate) use confirm::ask;
pub(crate) use kept::KeptOutput;
pub(crate) use message::{HIDDEN, Listed, details, listing, state, without_payload};
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

    /// Writes a value as a line of JSON, with numbers of any length as they are.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(value).map_err(|error| unwritten(&error))?;
        // A space is as good as a line break between tokens of JSON, and strings have no line breaks.
        let json = escape_json(&json.replace(['\n', '\r'], " "));
        Ok(writeln!(io::stdout().lock(), "{json}")?)
    }

    /// Writes a message, or a report that holds some, as a line of JSON: without payloads if they are to be hidden.
    pub(crate) fn message(&self, value: &impl Serialize) -> Result<()> {
        if !self.hides_payloads {
            return self.json(value);
        }
        let mut value = serde_json::to_value(value).map_err(|error| unwritten(&error))?;
        without_payload(&mut value);
        self.json(&value)
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

fn unwritten(error: &serde_json::Error) -> Failure {
    Failure::new(Exit::Failed, format!("failed to write JSON: {error}"))
}

/// Tells people something that is no result, on standard error.
pub(crate) fn note(text: impl AsRef<str>) {
    anstream::eprintln!("\u{1b}[1mnote\u{1b}[0m: {}", escape(text.as_ref()));
}

/// Logs warnings of the library to standard error, and the requests of a server if asked to; `RUST_LOG` sets more.
pub(crate) fn log(requests: bool) {
    let usual = if requests {
        "warn,queue_server::access=info"
    } else {
        "warn"
    };
    let usual = || usual.parse::<Targets>().expect("a filter");
    let filter = match std::env::var("RUST_LOG").as_deref() {
        Ok("") | Err(_) => usual(),
        Ok(asked) => asked.parse().unwrap_or_else(|error| {
            note(format!("ignored `RUST_LOG`, which is {asked:?}: {error}"));
            usual()
        }),
    };
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(io::stderr);
    let log = if requests {
        log.boxed()
    } else {
        log.without_time().boxed()
    };
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .init();
}

use std::time::Duration;

use clap::Args;
use queue_runtime::backend::{Browsing, MessageState, Metadata, QueueTotals};
use queue_runtime::error::Operation;
use queue_runtime::settings::{Paused, paused};
use queue_runtime::{Error, ErrorKind, QueueName, Timestamp};
use serde::Serialize;

use crate::failure::{Exit, Result};
use crate::output::{NOT_KNOWN, age, escape};
use crate::session::Session;

/// Show the properties of a queue: its figures and its metadata.
#[derive(Debug, Args)]
pub(crate) struct Properties {
    queue: String,
}

/// What is known about a queue. `None` is what the storage does not tell.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) queue: QueueName,
    pub(crate) uri: String,
    /// The approximate number of messages, including invisible ones; never below the actual number.
    pub(crate) messages: usize,
    /// The number of messages on the queue's poison queue. `None` if the queue is a poison queue itself, or has too
    /// long a name.
    pub(crate) poison: Option<usize>,
    /// The first visible message.
    pub(crate) oldest: Option<Oldest>,
    /// Messages that were ever put, and those that are gone, where the storage counts them.
    pub(crate) totals: Option<QueueTotals>,
    pub(crate) paused: Option<Paused>,
    pub(crate) metadata: Metadata,
}

/// The first visible message of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Oldest {
    pub(crate) inserted_at: Timestamp,
    /// The age of the message in milliseconds, where the storage tells its own time.
    pub(crate) age_ms: Option<u64>,
}

impl Figures {
    /// Returns the age of the first visible message, or the time of its insertion.
    pub(crate) fn oldest_shown(&self) -> String {
        match self.oldest {
            None => String::new(),
            Some(Oldest {
                age_ms: Some(age_ms),
                ..
            }) => age(Duration::from_millis(age_ms)),
            Some(Oldest { inserted_at, .. }) => format!("since {inserted_at}"),
        }
    }
}

/// Reads the figures of a queue; `None` if it does not exist.
pub(crate) async fn figures(session: &Session, name: QueueName) -> Result<Option<Figures>> {
    let properties = match session.queue(name.as_str())?.properties().await {
        Ok(properties) => properties,
        Err(error) if error.kind() == ErrorKind::QueueNotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let poison = match name.poison() {
        Ok(poison) => match session.queue(poison.as_str())?.properties().await {
            Ok(properties) => Some(properties.approximate_count),
            Err(error) if error.kind() == ErrorKind::QueueNotFound => Some(0),
            Err(error) => return Err(error.into()),
        },
        Err(_) => None,
    };
    let oldest = match oldest(session, &name).await {
        Ok(oldest) => oldest,
        // The queue was deleted meanwhile.
        Err(failure) if failure.is(Exit::NotFound) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    Ok(Some(Figures {
        uri: session.service.backend().queue_uri(&name),
        messages: properties.approximate_count,
        poison,
        oldest,
        totals: properties.totals,
        paused: paused(&properties.metadata),
        metadata: properties.metadata,
        queue: name,
    }))
}

async fn oldest(session: &Session, name: &QueueName) -> Result<Option<Oldest>> {
    let queue = session.queue(name.as_str())?;
    let browsing = session.service.backend().capabilities().browsing;
    if browsing == Browsing::Supported {
        let page = queue.browse(None, 1).await?;
        let first = page.messages.first();
        let visible = first.filter(|message| message.state == MessageState::Visible);
        return Ok(visible.map(|message| Oldest {
            inserted_at: message.inserted_at,
            age_ms: u64::try_from(page.now.duration_since(message.inserted_at).as_millis()).ok(),
        }));
    }
    let first = queue.peek(1).await?;
    Ok(first.first().map(|message| Oldest {
        inserted_at: message.inserted_at,
        age_ms: None,
    }))
}

pub(crate) async fn run(of: &Properties, session: &Session) -> Result<()> {
    let queue = session.queue(&of.queue)?;
    let figures = figures(session, queue.name().clone()).await?;
    let missing = Error::new(ErrorKind::QueueNotFound, Operation::Properties);
    let figures = figures.ok_or_else(|| missing.with_queue(queue.name()))?;
    let output = &session.output;
    if output.json {
        return output.json(&figures);
    }
    let line = |name: &str, value: &str| output.line(format!("{name:<10} {value}"));
    line("queue", &escape(&figures.uri))?;
    line("messages", &figures.messages.to_string())?;
    if let Some(poison) = figures.poison {
        line("poison", &poison.to_string())?;
    }
    match figures.oldest {
        Some(_) => line("oldest", &figures.oldest_shown())?,
        None => line("oldest", "no message is visible")?,
    }
    match figures.totals {
        Some(totals) => {
            line("put", &totals.put.to_string())?;
            line("deleted", &totals.deleted.to_string())?;
        }
        None => line("put", NOT_KNOWN)?,
    }
    if let Some(paused) = &figures.paused {
        line("state", &escape(&paused.to_string()))?;
    }
    for (name, value) in figures.metadata.iter() {
        line("metadata", &format!("{}={}", escape(name), escape(value)))?;
    }
    Ok(())
}

use std::str::FromStr;

use clap::Args;
use queue_runtime::backend;
use queue_runtime::settings::check_metadata;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::output::escape;
use crate::session::Session;

/// Show or change the metadata of a queue.
///
/// `poisonthreshold` (attempts) and `defaulttimeout` (a duration, or seconds) are settings for all consumers of the queue
/// that have no such setting of their own. `maxinflight` bounds how many messages each listener has in flight, `maxbatch`
/// how many it receives at once, and `maxidle` (a duration, or seconds) how long it pauses while the queue is empty. A
/// change reaches consumers within 5 seconds, on Azure within a minute.
#[derive(Debug, Args)]
pub(crate) struct Metadata {
    queue: String,

    /// The entries of the metadata to set.
    #[arg(value_name = "NAME=VALUE")]
    set: Vec<Entry>,

    /// The name of an entry to remove; repeat the option for several entries.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
}

/// A `NAME=VALUE` of the command line.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    name: String,
    value: String,
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

pub(crate) fn insert(
    metadata: &mut backend::Metadata,
    entry: &Entry,
    session: &Session,
) -> Result<()> {
    let capabilities = session.service.backend().capabilities();
    let checked = check_metadata(&entry.name, &entry.value, capabilities);
    checked.map_err(|error| Failure::usage(error.to_string()))?;
    let inserted = metadata.insert(&entry.name, &entry.value);
    inserted.map_err(|error| Failure::usage(error.to_string()))
}

pub(crate) async fn run(arguments: Metadata, session: &Session) -> Result<()> {
    let queue = session.queue(&arguments.queue)?;
    let mut metadata = queue.properties().await?.metadata;
    if !arguments.set.is_empty() || !arguments.unset.is_empty() {
        for entry in &arguments.set {
            insert(&mut metadata, entry, session)?;
        }
        for name in &arguments.unset {
            metadata.remove(name);
        }
        queue.set_metadata(&metadata).await?;
    }
    if session.output.json {
        let value = json!({ "queue": queue.name(), "metadata": metadata });
        return session.output.json(&value);
    }
    if metadata.is_empty() {
        return session.output.line("there is no metadata");
    }
    for (name, value) in metadata.iter() {
        session
            .output
            .line(format!("{}={}", escape(name), escape(value)))?;
    }
    Ok(())
}

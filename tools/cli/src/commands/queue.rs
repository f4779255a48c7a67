//! Creating, deleting and clearing a queue.

use clap::Args;
use queue_runtime::backend::{Created, Metadata};
use serde_json::json;

use crate::commands::metadata::{Entry, insert};
use crate::failure::Result;
use crate::output::count;
use crate::session::Session;

/// Create a queue. Does nothing if the queue exists.
#[derive(Debug, Args)]
pub(crate) struct Create {
    queue: String,

    /// An entry of the metadata of the new queue; repeat the option for several entries.
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<Entry>,
}

/// Delete a queue with all its messages.
///
/// The keys of unique submissions are kept or freed as by `clear`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    queue: String,
}

/// Delete all messages of a queue, in any state. The queue stays.
///
/// `export` keeps a copy. Payloads that are not in the messages stay until `payloads sweep --cleared`. Clearing frees
/// keys that are unique until their message is settled. A key that is unique for a time (`unique_for`) stays for that
/// time, so that a submission of the key puts nothing.
#[derive(Debug, Args)]
pub(crate) struct Clear {
    queue: String,
}

pub(crate) async fn create(create: &Create, session: &Session) -> Result<()> {
    let queue = session.queue(&create.queue)?;
    let name = queue.name();
    let created = if create.metadata.is_empty() {
        queue.create().await?
    } else {
        let mut metadata = Metadata::new();
        for entry in &create.metadata {
            insert(&mut metadata, entry, session)?;
        }
        queue.create_with(&metadata).await?
    };
    let sentence = match created {
        Created::New => format!("created queue `{name}`"),
        Created::Existed => format!("queue `{name}` exists already"),
    };
    let value = json!({ "queue": name, "created": created });
    session.output.done(&sentence, &value)
}

pub(crate) async fn delete(delete: &Delete, session: &Session) -> Result<()> {
    let queue = session.queue(&delete.queue)?;
    let (name, messages) = (queue.name(), queue.properties().await?.approximate_count);
    let about = count(messages, "message");
    session.confirm(&format!("Delete queue `{name}` with about {about}?"))?;
    queue.delete().await?;
    let value = json!({ "queue": name, "approximate_messages": messages });
    session.output.done(
        &format!("deleted queue `{name}` with about {about}"),
        &value,
    )
}

pub(crate) async fn clear(clear: &Clear, session: &Session) -> Result<()> {
    let queue = session.queue(&clear.queue)?;
    let (name, messages) = (queue.name(), queue.properties().await?.approximate_count);
    let about = count(messages, "message");
    session.confirm(&format!("Delete about {about} of queue `{name}`?"))?;
    queue.clear().await?;
    let value = json!({ "queue": name, "approximate_messages": messages });
    session
        .output
        .done(&format!("deleted about {about} of queue `{name}`"), &value)
}

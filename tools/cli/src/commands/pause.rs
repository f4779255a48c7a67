//! Pausing a queue for everybody, and resuming it.

use clap::Args;
use serde_json::json;

use crate::failure::Result;
use crate::session::Session;

/// Pause a queue: no listener of this library, in any process, receives its messages until `resume`.
///
/// The pause is recorded in the queue's metadata. Listeners obey within 5 seconds on SQLite, and within a minute on
/// Azure. Messages that were received before are still handled. Messages can be submitted. `receive` and programs
/// without this library still receive messages.
#[derive(Debug, Args)]
pub(crate) struct Pause {
    queue: String,

    /// The reason, which `properties`, `list` and health checks show.
    #[arg(long)]
    reason: Option<String>,
}

/// Resume a paused queue: listeners receive its messages again, within 5 seconds on SQLite and a minute on Azure.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    queue: String,
}

pub(crate) async fn pause(pause: &Pause, session: &Session) -> Result<()> {
    let queue = session.queue(&pause.queue)?;
    let paused = queue.pause(pause.reason.as_deref()).await?;
    let value = json!({ "queue": queue.name(), "paused": paused });
    session
        .output
        .done(&format!("queue `{}` is {paused}", queue.name()), &value)
}

pub(crate) async fn resume(resume: &Resume, session: &Session) -> Result<()> {
    let queue = session.queue(&resume.queue)?;
    let was = queue.resume().await?;
    let sentence = match &was {
        Some(was) => format!("resumed queue `{}`, which was {was}", queue.name()),
        None => format!("queue `{}` was not paused", queue.name()),
    };
    let value = json!({ "queue": queue.name(), "was_paused": was });
    session.output.done(&sentence, &value)
}

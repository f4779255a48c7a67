//! Pausing a queue for everybody, and resuming it.

use clap::Args;
use serde_json::json;

use crate::failure::Result;
use crate::session::Session;

/// Pause a queue: no listener of this library, in any process, receives its messages until `resume`.
///
/// The mark is in the queue's metadata. Listeners obey it within 5 seconds on SQLite, and within a minute on Azure. What
/// they have received is still handled. Messages can be submitted, and `receive` and other programs still get them.
#[derive(Debug, Args)]
pub(crate) struct Pause {
    queue: String,

    /// Why, for whoever finds the queue paused.
    #[arg(long)]
    reason: Option<String>,
}

/// Let listeners receive again, as soon as they notice.
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

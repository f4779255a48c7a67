use std::time::Duration;

use clap::Args;
use queue_runtime::internal::parse_duration;
use queue_runtime::wire::Body;
use queue_runtime::{Delivery, Timestamp};
use serde::Serialize;

use crate::failure::{Exit, Failure, Result};
use crate::output::KeptOutput;
use crate::session::Session;

/// Receive messages: write each message as a line of JSON, then hand the message back, or complete the message.
///
/// A message that is handed back is visible again at once, on SQLite in its place and on Azure behind the others, and
/// this attempt does not count. With `--complete`, a message is deleted once its line is written, and synced to the
/// disk if the output is a file. The queue's consumers do not get completed messages. One process at a time writes a
/// file; `>>` adds to the file, while `>` empties the file even if another process writes it.
#[derive(Debug, Args)]
pub(crate) struct Receive {
    queue: String,

    /// The maximum number of messages.
    #[arg(long, short = 'n', default_value_t = 1)]
    count: usize,

    /// Delete each message once the line of the message is written.
    #[arg(long)]
    complete: bool,

    /// How long to wait for a message.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    wait: Duration,
}

/// A received message, as it is written.
#[derive(Serialize)]
struct Written<'a> {
    body: &'a Body,
    dequeue_count: usize,
    attempt: usize,
    inserted_at: Timestamp,
    expires_at: Option<Timestamp>,
}

pub(crate) async fn run(receive: &Receive, session: &Session) -> Result<()> {
    let queue = session.queue(&receive.queue)?;
    if receive.complete && session.output.hides_payloads {
        let text =
            "--complete deletes what is written, and --hide-payloads writes only a part of it";
        return Err(Failure::usage(text));
    }
    let kept = if receive.complete {
        let most = receive.count;
        session.confirm(&format!(
            "Delete up to {most} messages of queue `{}` as they are written?",
            queue.name()
        ))?;
        Some(KeptOutput::lock()?)
    } else {
        None
    };
    // Messages are held until all are written, so that none is received twice.
    let mut held = Vec::new();
    let (mut written, mut completed) = (Ok(()), 0);
    for _ in 0..receive.count {
        let delivery = match queue.accept().wait(receive.wait).await {
            Ok(Some(delivery)) => delivery,
            Ok(None) => break,
            Err(error) => {
                written = Err(error.into());
                break;
            }
        };
        written = write(&delivery, session, kept.as_ref());
        if written.is_err() || !receive.complete {
            held.push(delivery);
        } else {
            match delivery.complete().await {
                Ok(_) => completed += 1,
                Err(error) => written = Err(Failure::new(Exit::Failed, format!("{error:?}"))),
            }
        }
        if written.is_err() {
            break;
        }
    }
    for delivery in held {
        let released = delivery.release().await;
        let released = released.map_err(|error| Failure::new(Exit::Partial, format!("{error:?}")));
        written = written.and(released);
    }
    written.map_err(|failure| failure.after_part(completed, "message", "completed"))
}

fn write(delivery: &Delivery<Body>, session: &Session, kept: Option<&KeptOutput>) -> Result<()> {
    kept.map_or(Ok(()), KeptOutput::check)?;
    session.output.message(&Written {
        body: delivery.message(),
        dequeue_count: delivery.dequeue_count(),
        attempt: delivery.attempt(),
        inserted_at: delivery.inserted_at(),
        expires_at: delivery.expires_at(),
    })?;
    kept.map_or_else(|| session.output.flush(), KeptOutput::keep)
}

use std::time::Duration;

use clap::Args;
use queue_runtime::Delivery;
use queue_runtime::wire::Body;
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::session::Session;

/// Receive messages: write each as a line of JSON, then hand it back, or complete it.
///
/// A message that is handed back is visible again at once, behind the others, and this attempt does not count. With `--complete`, a message is
/// deleted once its line is written. Its consumers do not get it then.
#[derive(Debug, Args)]
pub(crate) struct Receive {
    queue: String,

    /// How many messages at most.
    #[arg(long, short = 'n', default_value_t = 1)]
    count: u64,

    /// Delete each message once its line is written.
    #[arg(long)]
    complete: bool,

    /// How long to wait for a message.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    wait: Duration,
}

pub(crate) async fn run(receive: &Receive, session: &Session) -> Result<()> {
    let queue = session.queue(&receive.queue)?;
    if receive.complete {
        let count = receive.count;
        session.confirm(&format!(
            "Delete up to {count} messages of queue `{}` as they are written?",
            queue.name()
        ))?;
    }
    // They are held until all are written, so that none is received twice.
    let mut held = Vec::new();
    let mut written = Ok(());
    for _ in 0..receive.count {
        let accepted = queue.accept().wait(receive.wait).await;
        let accepted = accepted.map_err(|error| Failure::new(Exit::Failed, format!("{error:?}")));
        let delivery = match accepted {
            Ok(Some(delivery)) => delivery,
            Ok(None) => break,
            Err(failure) => {
                written = Err(failure);
                break;
            }
        };
        written = write(&delivery, session);
        if written.is_err() || !receive.complete {
            held.push(delivery);
        } else if let Err(error) = delivery.complete().await {
            written = Err(Failure::new(Exit::Failed, format!("{error:?}")));
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
    written
}

fn write(delivery: &Delivery<Body>, session: &Session) -> Result<()> {
    let received = json!({
        "body": delivery.message(),
        "dequeue_count": delivery.dequeue_count(),
        "attempt": delivery.attempt(),
        "inserted_at": delivery.inserted_at(),
        "expires_at": delivery.expires_at(),
    });
    session.output.message(&received)?;
    session.output.flush()
}

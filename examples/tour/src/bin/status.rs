//! A tracked message has a status, and can be cancelled, also while its handler runs. A history says how messages ended.
//!
//! `cargo run -p tour --bin status` takes some seconds, and prints
//!
//! ```text
//! report 1: delayed
//! report 1: cancelled
//! report 2: held by writer/1
//! report 2: told to stop
//! report 2: cancelled
//! report 3: completed, after 1 attempt
//! ```

use std::time::Duration;

use queue_runtime::listener::DrainEnd;
use queue_runtime::service::{Cancelled, Status};
use queue_runtime::{Message, MessageId, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, UnboundedSender};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(
    queue = "reports",
    visibility_timeout = "10s",
    tracked,
    history = 1_000
)]
struct Report {
    number: u32,
}

async fn write(started: UnboundedSender<u32>, report: Received<Report>) {
    // The program waits for the second report alone.
    let _ = started.send(report.number);
    if report.number == 2 {
        report.cancelled().await; // within half of the visibility timeout
        println!("report 2: told to stop");
    }
}

async fn print(service: &QueueService, report: u32, id: &MessageId) -> queue_runtime::Result<()> {
    let status = match service.status(id).await? {
        Status::Delayed { .. } => "delayed".to_owned(),
        Status::Held {
            client_id: Some(by),
            ..
        } => format!("held by {by}"),
        Status::Cancelled => "cancelled".to_owned(),
        Status::Ended { entry, .. } => format!("completed, after {} attempt", entry.attempts),
        other => format!("{other:?}"),
    };
    println!("report {report}: {status}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::builder("memory:").client_id("writer/1");
    let service = service.connect().await?;
    let (sender, mut started) = mpsc::unbounded_channel();

    let hour = Duration::from_secs(3600);
    let first = service.submit(Report { number: 1 }).delay(hour).await?;
    print(&service, 1, &first.id).await?;
    assert_eq!(service.cancel(&first.id).await?, Cancelled::Removed);
    print(&service, 1, &first.id).await?;

    let second = service.submit(Report { number: 2 }).await?;
    let listener = service
        .listener_with(sender.clone(), write)
        .until_empty()
        .start()?;
    started.recv().await;
    print(&service, 2, &second.id).await?;
    assert_eq!(service.cancel(&second.id).await?, Cancelled::Revoked);
    assert_eq!(listener.drained().await.end, DrainEnd::Empty);
    print(&service, 2, &second.id).await?;

    let third = service.submit(Report { number: 3 }).await?;
    let listener = service.listener_with(sender, write).until_empty();
    assert_eq!(listener.start()?.drained().await.end, DrainEnd::Empty);
    print(&service, 3, &third.id).await?;
    Ok(())
}

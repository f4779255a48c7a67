//! A schedule submits a message at each tick. All processes of an application start it, and each tick is submitted once.
//!
//! `cargo run -p tour --bin schedule` takes some seconds, and prints
//!
//! ```text
//! a report
//! a report, 1 s after the one before
//! a report, 1 s after the one before
//! ```

use std::time::Duration;

use queue_runtime::recurring::{Missed, every};
use queue_runtime::{Message, QueueService, Received, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, UnboundedSender};

#[derive(Serialize, Deserialize, Message)]
struct Report {
    until: Timestamp,
}

async fn write(written: UnboundedSender<Timestamp>, report: Received<Report>) {
    // An error, once the program has seen three.
    let _ = written.send(report.until);
}

async fn start(url: &str) -> Result<QueueService, Box<dyn std::error::Error>> {
    let service = QueueService::connect(url).await?;
    let each_second = every(Duration::from_secs(1)); // `cron("0 6 * * *")` with the feature `cron`
    let schedule = service.schedule("report", each_second, |tick| Report { until: tick });
    // By default, ticks that are more than a minute late have one message.
    schedule.missed(Missed::All { limit: 60 }).start()?;
    Ok(service)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let (one, other) = (start(&url).await?, start(&url).await?); // as in two processes

    let (written, mut reports) = mpsc::unbounded_channel();
    one.listener_with(written, write).max_in_flight(1).start()?;
    let mut last = reports.recv().await.ok_or("the listener has ended")?;
    println!("a report");
    for _ in 0..2 {
        let report = reports.recv().await.ok_or("the listener has ended")?;
        let after = report.duration_since(last).as_secs();
        println!("a report, {after} s after the one before");
        last = report;
    }

    other.shutdown(Duration::from_secs(10)).await;
    one.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

//! A payload may be larger than a message of the storage, by default up to 64 MiB. It is compressed, and stored beside
//! its message if it is still too large. Its handler sees no difference.
//!
//! `cargo run -p tour --bin payloads` prints
//!
//! ```text
//! failed to submit a message: the `scan` message has a payload of 8800020 bytes, and 8388608 are allowed
//! page 1: 44 bytes
//! page 2: 4400000 bytes
//! ```

use queue_runtime::listener::DrainReport;
use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};

const MIB: usize = 1024 * 1024;

#[derive(Debug, Serialize, Deserialize, Message)]
struct Scan {
    page: u32,
    text: String,
}

async fn read(scan: Received<Scan>) {
    println!("page {}: {} bytes", scan.page, scan.text.len());
}

#[tokio::main]
async fn main() -> Result<DrainReport, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let service = QueueService::builder(&url)
        .max_payload(8 * MIB)
        .connect()
        .await?;
    for (page, lines) in [(1, 1), (2, 100_000), (3, 200_000)] {
        let text = "All work and no play makes Jack a dull boy. ".repeat(lines);
        if let Err(error) = service.submit(Scan { page, text }).await {
            println!("{error}");
        }
    }

    // A handler gets its payload whole, so many payloads may be in memory at once.
    let listener = service.listener(read).max_bytes_in_flight(16 * MIB);
    let listener = listener.max_in_flight(1); // for the order of the lines
    let report = listener.until_empty().start()?.drained().await;
    Ok(report) // the exit status is 0 if the queue is empty and nothing is poison
}

//! Small messages that are submitted together can travel in packs, which saves requests, and so time and money. To
//! handlers, each is a message of its own.
//!
//! `cargo run -p tour --bin packs` prints
//!
//! ```text
//! 1000 readings, in 1 message of the queue
//! 999 readings are completed, 1 is poison
//! ```

use queue_runtime::{Failure, Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "readings")]
struct Reading {
    sensor: u32,
    celsius: f32,
}

async fn store(reading: Received<Reading>) -> Result<(), Failure> {
    match reading.sensor {
        7 => Err(Failure::reject("there is no sensor 7")), // leaves its pack
        _ => Ok(()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("memory:").await?;
    let readings = (0..1_000).map(|sensor| Reading {
        sensor,
        celsius: 20.5,
    });
    service.submit_all(readings).packed().await?;

    let properties = service.queue::<Reading>().any().properties().await?;
    println!(
        "1000 readings, in {} message of the queue",
        properties.approximate_count
    );

    let report = service
        .listener(store)
        .until_empty()
        .start()?
        .drained()
        .await;
    println!(
        "{} readings are completed, {} is poison",
        report.info.completed, report.info.poisoned
    );
    Ok(())
}

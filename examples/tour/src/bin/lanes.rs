//! Lanes share a maximum of messages in flight by their weights: urgent messages do not wait behind a backlog of bulk
//! work, on a queue of its own.
//!
//! `cargo run -p tour --bin lanes` prints
//!
//! ```text
//! 3 bulk pictures are in work, and more wait
//! the urgent picture is done
//! resize: 1 completed
//! resize-bulk: 100 completed
//! ```

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::listener::Lanes;
use queue_runtime::{Message, QueueName, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

const BULK: QueueName = QueueName::from_static("resize-bulk");

#[derive(Serialize, Deserialize, Message)]
struct Resize {
    picture: u32,
}

/// In place of work that takes its time: it takes until `working` is closed.
struct Studio {
    started: Semaphore,
    working: Semaphore,
    done: Semaphore,
}

impl Studio {
    fn new() -> Arc<Self> {
        let none = || Semaphore::new(0);
        Arc::new(Self {
            started: none(),
            working: none(),
            done: none(),
        })
    }
}

async fn resize(studio: Arc<Studio>, _: Received<Resize>) {
    studio.started.add_permits(1);
    // An error, once it is closed.
    let _ = studio.working.acquire().await;
    studio.done.add_permits(1);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("memory:").await?;
    let (urgent, bulk) = (Studio::new(), Studio::new());
    urgent.working.close();

    let urgent_lane = service.listener_with(urgent.clone(), resize);
    let bulk_lane = service
        .queue_named(BULK)?
        .listener_with(bulk.clone(), resize);
    // A running handler is not interrupted: the fourth place stays free for urgent pictures.
    let bulk_lane = bulk_lane.create_queue().max_in_flight(3);
    // While both lanes have a backlog, 9 of 10 messages are urgent.
    let lanes = Lanes::new(4)
        .lane(9, urgent_lane)
        .lane(1, bulk_lane)
        .start()?;

    service
        .submit_all((1..=100).map(|picture| Resize { picture }))
        .to(BULK)?
        .await?;
    bulk.started.acquire_many(3).await?.forget();
    println!("3 bulk pictures are in work, and more wait");

    service.submit(Resize { picture: 101 }).await?;
    urgent.done.acquire().await?.forget();
    println!("the urgent picture is done");

    bulk.working.close();
    bulk.done.acquire_many(100).await?.forget();
    for report in lanes.shutdown(Duration::from_secs(60)).await {
        println!("{}: {} completed", report.queue, report.info.completed);
    }
    Ok(())
}

//! A message without key fields cannot be submitted once by its key.

use std::time::Duration;

use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Report {
    number: u32,
}

fn main() {
    let submit = |service: QueueService| {
        service
            .submit(Report { number: 7 })
            .unique_for(Duration::from_secs(60))
    };
    drop(submit);
}

//! Handles the orders that `producer.py` puts, and submits a receipt for each, which `consumer.mjs` receives.
//!
//! The queues are in `shop.db`, which this program opens itself, or where `QUEUE_URL` says.

use std::env;
use std::time::Duration;

use queue_runtime::{Disposition, Message, QueueService, Received};
use serde::{Deserialize, Serialize};

/// The producer knows no envelope: the body is this type's JSON alone.
#[derive(Serialize, Deserialize, Message)]
#[message(kind = "shop.order", queue = "orders", wire = "bare")]
struct Order {
    number: u32,
    item: String,
}

/// The consumer reads an event, with this type's JSON as its `data`.
#[derive(Serialize, Deserialize, Message)]
#[message(kind = "shop.receipt", queue = "receipts")]
struct Receipt {
    order: u32,
    text: String,
}

/// The receipt is put in one step with the deletion of its order.
async fn handle(order: Received<Order>) -> Disposition {
    println!("order {}: {}", order.number, order.item);
    Disposition::complete().then(&Receipt {
        order: order.number,
        text: format!("{} is on its way", order.item),
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("QUEUE_URL").unwrap_or_else(|_| "sqlite:shop.db".to_owned());
    let service = QueueService::connect(&url).await?;
    let shutdown = service.shutdown_on_signal(Duration::from_secs(10))?;
    service.listener(handle).start()?;
    shutdown.await;
    Ok(())
}

use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

#[derive(Serialize, Deserialize, Message)]
struct Invoice;

async fn handle(_invoice: Received<Invoice>) {}

fn listen(service: &QueueService) {
    let _ = service.listener::<Order, _>(handle);
}

fn main() {}

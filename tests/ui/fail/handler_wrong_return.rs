use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

async fn handle(_order: Received<Order>) -> u32 {
    7
}

fn listen(service: &QueueService) {
    let _ = service.listener(handle);
}

fn main() {}

use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

async fn handle(_order: Order) {}

fn listen(service: &QueueService) {
    let _ = service.listener::<Order, _>(handle);
}

fn main() {}

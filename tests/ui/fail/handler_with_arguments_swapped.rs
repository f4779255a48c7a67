use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

#[derive(Clone)]
struct Shop;

async fn handle(_order: Received<Order>, _shop: Shop) {}

fn listen(service: &QueueService) {
    let _ = service.listener_with(Shop, handle);
}

fn main() {}

use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

#[derive(Clone)]
struct Shop;

fn handle(_shop: Shop, _order: Received<Order>) {}

fn listen(service: &QueueService) {
    let _ = service.listener_with(Shop, handle);
}

fn main() {}

use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

#[derive(Clone)]
struct Shop;

#[derive(Clone)]
struct Office;

async fn handle(_office: Office, _order: Received<Order>) {}

fn listen(service: &QueueService) {
    let _ = service.listener_with::<_, Order, _>(Shop, handle);
}

fn main() {}

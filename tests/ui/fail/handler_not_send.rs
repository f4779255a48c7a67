use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

async fn handle(_order: Received<Order>) {
    let local = std::rc::Rc::new(1);
    std::future::ready(()).await;
    drop(local);
}

fn listen(service: &QueueService) {
    let _ = service.listener(handle);
}

fn main() {}

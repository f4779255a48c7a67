use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct PriceRequest {
    item: String,
}

async fn ask(service: &QueueService, item: String) {
    let _ = service.request(PriceRequest { item }).await;
}

fn main() {}

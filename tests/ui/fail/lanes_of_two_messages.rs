use queue_runtime::{Message, QueueService, Received};
use queue_runtime::listener::Lanes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

#[derive(Serialize, Deserialize, Message)]
struct Invoice;

async fn ship(_order: Received<Order>) {}

async fn pay(_invoice: Received<Invoice>) {}

fn listeners_of_two_types(service: &QueueService) {
    let _ = Lanes::new(32)
        .lane(9, service.listener(ship))
        .lane(1, service.listener(pay));
}

fn a_handler_of_another_type(service: &QueueService) {
    let bulk = service.queue_named::<Order>("orders-bulk").unwrap();
    let _ = Lanes::new(32)
        .lane(9, service.listener(ship))
        .lane(1, bulk.listener(pay));
}

fn main() {}

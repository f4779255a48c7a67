use std::time::Duration;

use queue_core::{MessageType, QueueName};

const NAME: MessageType = MessageType::new("order", "Bad_Name");

const TOO_SHORT: QueueName = QueueName::from_static("ab");

const ITS_OWN: MessageType = MessageType::new("order", "orders").with_poison_queue("orders");

const VERSION: MessageType = MessageType::new("order", "orders")
    .with_time_to_live(Duration::from_secs(60))
    .with_version(0);

fn main() {}

//! What monitoring sees: metrics, traces and logs.

mod depths;
mod logs;
mod metrics;
mod page;
mod scrape;
mod traces;

use queue_runtime::Message;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "bills", kind = "shop.bill")]
struct Bill {
    order: u32,
}

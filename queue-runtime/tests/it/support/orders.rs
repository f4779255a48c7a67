//! A message with a key.

use queue_runtime::Message;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "order")]
pub(crate) struct Order {
    #[message(key)]
    pub(crate) number: u32,
    pub(crate) note: String,
}

pub(crate) fn order(number: u32) -> Order {
    Order {
        number,
        note: String::new(),
    }
}

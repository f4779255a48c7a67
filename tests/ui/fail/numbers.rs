use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(version = 0, poison_threshold = 0, crate = queue_core)]
struct Zero;

#[derive(Serialize, Deserialize, Message)]
#[message(version = -1, poison_threshold = 4294967296, crate = queue_core)]
struct OutOfRange;

fn main() {}

#[derive(Serialize, Deserialize, Message)]
#[message(version = 2147483648, crate = queue_core)]
struct TooLargeForCloudEvents;

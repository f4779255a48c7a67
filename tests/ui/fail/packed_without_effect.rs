use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "readings", wire = "bare", packed, crate = queue_core)]
struct Reading;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "payments", poison_threshold = 1, packed, crate = queue_core)]
struct Payment;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "slices", wire = "lines", packed, crate = queue_core)]
struct Slice(u32);

fn main() {}

use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", kind = "tile", crate = queue_core)]
#[message(queue = "slices")]
#[message(queue = "slices")]
struct Slice {
    #[message(key, key)]
    number: u32,
}

fn main() {}

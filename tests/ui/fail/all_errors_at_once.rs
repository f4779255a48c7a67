use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(
    kind = "slice request",
    version = 0,
    queue = "Slices",
    visibility_timeout = "8days",
    colour = "red",
    crate = queue_core,
)]
struct Slice {
    #[message(key)]
    celsius: f64,
}

fn main() {}

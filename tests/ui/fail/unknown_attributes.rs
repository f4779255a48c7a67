use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(visibilty_timeout = "2m", retries = 5, crate = queue_core)]
struct Slice {
    #[message(index)]
    number: u32,
}

fn main() {}

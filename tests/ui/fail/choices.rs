use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(wire = "text", key_scope = "Global", crate = queue_core)]
struct Slice {
    #[message(key)]
    number: u32,
}

fn main() {}

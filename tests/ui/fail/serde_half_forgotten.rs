use queue_derive::Message;
use serde::Serialize;

#[derive(Serialize, Message)]
#[message(crate = queue_core)]
struct Slice {
    number: u32,
}

fn main() {}

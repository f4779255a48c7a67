use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Message)]
#[message(crate = queue_core)]
union Bits {
    int: u32,
    float: f32,
}

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Borrowed<'a> {
    text: &'a str,
}

fn main() {}

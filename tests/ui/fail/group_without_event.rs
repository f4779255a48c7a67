use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(wire = "bare", crate = queue_core)]
struct Reading {
    #[message(group)]
    sensor: String,
}

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Measured {
    #[message(group)]
    celsius: f64,
    #[message(group = "x")]
    room: u32,
}

fn main() {}

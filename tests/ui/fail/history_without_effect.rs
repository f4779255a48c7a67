use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "readings", history_age = "30d", crate = queue_core)]
struct Reading;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "a23456789-b23456789-c23456789-d23456789-e23456789-f23456", history = 1000, crate = queue_core)]
struct Payment;

#[derive(Serialize, Deserialize, Message)]
#[message(history = 0, crate = queue_core)]
struct Nothing;

fn main() {}

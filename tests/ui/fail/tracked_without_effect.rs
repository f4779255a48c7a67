use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "readings", wire = "bare", tracked, crate = queue_core)]
struct Reading;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "payments", packed, tracked, crate = queue_core)]
struct Payment;

fn main() {}

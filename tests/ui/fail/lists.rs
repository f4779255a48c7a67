use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message]
#[message(crate = queue_core)]
struct NoList;

#[derive(Serialize, Deserialize, Message)]
#[message = "slice"]
#[message(crate = queue_core)]
struct Value;

#[derive(Serialize, Deserialize, Message)]
#[message("slice", crate = queue_core)]
#[message(crate = queue_core)]
struct NoName;

fn main() {}

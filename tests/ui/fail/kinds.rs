use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "", crate = queue_core)]
struct Empty;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice request", crate = queue_core)]
struct Spaced;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice\u{7}request", crate = queue_core)]
struct Control;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", crate = queue_core)]
struct Long;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "named", crate = queue_core)]
struct __;

#[derive(Serialize, Deserialize, Message)]
#[message(alias = ["a b", "order", "old", "old", ""], crate = queue_core)]
struct Order;

fn main() {}

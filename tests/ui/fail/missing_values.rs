use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind, queue =, version(2), crate = queue_core)]
struct Slice;

fn main() {}

use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "readings", wire = "bare", compress, crate = queue_core)]
struct Reading;

fn main() {}

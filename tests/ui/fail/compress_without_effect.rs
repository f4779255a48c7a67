use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "readings", wire = "bare", compress, crate = queue_core)]
struct Reading;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "slices", wire = "lines", compress, crate = queue_core)]
struct Slice(u32);

fn main() {}

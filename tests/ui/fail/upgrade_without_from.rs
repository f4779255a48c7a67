use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", crate = queue_core)]
struct SliceV1;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", version = 2, upgrade_from = SliceV1, crate = queue_core)]
struct Slice;

fn main() {}

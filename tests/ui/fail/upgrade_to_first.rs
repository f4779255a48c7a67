use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", crate = queue_core)]
struct SliceV1;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", upgrade_from = SliceV1, crate = queue_core)]
struct Slice;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", version = 1, upgrade_from = SliceV1, crate = queue_core)]
struct SliceAgain;

fn main() {}

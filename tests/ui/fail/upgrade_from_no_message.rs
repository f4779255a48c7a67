use queue_derive::Message;
use serde::{Deserialize, Serialize};

struct SliceV1;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", version = 2, upgrade_from = SliceV1, crate = queue_core)]
struct Slice;

impl From<SliceV1> for Slice {
    fn from(_: SliceV1) -> Self {
        Self
    }
}

fn main() {}

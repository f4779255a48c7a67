use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", crate = queue_core)]
struct SliceV1;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", version = 2, upgrade_from = SliceV1, wire = "bare", crate = queue_core)]
struct Slice;

impl From<SliceV1> for Slice {
    fn from(_: SliceV1) -> Self {
        Self
    }
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", version = 2, upgrade_from = SliceV1, wire = "lines", crate = queue_core)]
struct SliceInLines(u32);

impl From<SliceV1> for SliceInLines {
    fn from(_: SliceV1) -> Self {
        Self(1)
    }
}

fn main() {}

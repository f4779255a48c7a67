use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", version = 2, queue = "Slices", crate = queue_core)]
struct SliceV2<T> {
    value: T,
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice", version = 3, upgrade_from = SliceV2<u8>, crate = queue_core)]
struct Slice;

impl From<SliceV2<u8>> for Slice {
    fn from(_: SliceV2<u8>) -> Self {
        Self
    }
}

fn needs<M: queue_core::Message>(message: &M) -> Vec<u8> {
    message.encode().expect("encodes")
}

fn main() {
    needs(&SliceV2 { value: 1 });
    needs(&Slice);
}

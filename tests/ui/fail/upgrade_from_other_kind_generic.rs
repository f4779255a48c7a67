use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "stamp", crate = queue_core)]
struct StampedV1<T> {
    value: T,
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "stamped", version = 2, upgrade_from = StampedV1<T>, crate = queue_core)]
struct Stamped<T> {
    value: T,
}

impl<T> From<StampedV1<T>> for Stamped<T> {
    fn from(old: StampedV1<T>) -> Self {
        Self { value: old.value }
    }
}

const _: u32 = <Stamped<u8> as queue_core::Message>::TYPE.version();

fn main() {}

use queue_derive::Message;
use serde::{Deserialize, Serialize};

struct Id(u64);

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Slice {
    #[message(key)]
    #[serde(with = "as_number")]
    id: Id,
}

mod as_number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(id: &super::Id, serializer: S) -> Result<S::Ok, S::Error> {
        id.0.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<super::Id, D::Error> {
        u64::deserialize(deserializer).map(super::Id)
    }
}

fn main() {}

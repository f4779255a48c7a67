use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(key, crate = queue_core)]
struct OnType {
    #[message(kind = "slice")]
    number: u32,
}

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
enum OnVariant {
    #[message(key)]
    Slice(u32),
}

fn main() {}

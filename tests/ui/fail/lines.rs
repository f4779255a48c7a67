use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(wire = "lines", crate = queue_core)]
struct Unit;

#[derive(Serialize, Deserialize, Message)]
#[message(wire = "lines", crate = queue_core)]
enum Shape {
    Round(u32),
}

#[derive(Serialize, Deserialize, Message)]
#[message(wire = "lines", crate = queue_core)]
struct Slice {
    #[serde(alias = "picture")]
    image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(flatten)]
    size: Size,
}

#[derive(Serialize, Deserialize)]
struct Size {
    width: u32,
}

fn main() {}

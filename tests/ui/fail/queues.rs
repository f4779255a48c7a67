use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "Slice_Request", crate = queue_core)]
struct Upper;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "a--b", poison_queue = "-b", crate = queue_core)]
struct Dashes;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "a23456789-b23456789-c23456789-d23456789-e23456789-f234567", crate = queue_core)]
struct LeavesNoRoom;

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct AVeryLongNameFromWhichADefaultIsMadeThatLeavesNoRoom;

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Ab;

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Größe;

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "slices", poison_queue = "slices", crate = queue_core)]
struct ItsOwnPoison;

fn main() {}

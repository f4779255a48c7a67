use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(
    kind = 7,
    alias = ["old", 7],
    version = "2",
    upgrade_from = "SliceV1",
    queue = slices,
    visibility_timeout = 120,
    time_to_live = 7d,
    poison_threshold = "five",
    poison_queue = b"broken",
    key_scope = global,
    wire = bare,
    compress = true,
    crate = queue_core
)]
struct Slice;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "slice" "request", crate = queue_core)]
struct NoComma;

#[derive(Serialize, Deserialize, Message)]
#[message(crate = "queue_core")]
struct CrateInQuotes;

fn main() {}

use queue_runtime::Message;
use serde::{Deserialize, Serialize};

/// About 200 bytes of JSON.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "bench.parcel", queue = "parcel")]
pub(crate) struct Parcel {
    pub(crate) number: u32,
    recipient: String,
    street: String,
    note: String,
}

impl Parcel {
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            recipient: "Ada Lovelace, Analytical Engines Ltd".to_owned(),
            street: "12 St James's Square, London".to_owned(),
            note: "Handle with care: gears inside. Leave with the porter if nobody answers."
                .to_owned(),
        }
    }
}

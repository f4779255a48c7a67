//! Messages that a macro declares.

use queue_derive::Message;
use serde::{Deserialize, Serialize};

macro_rules! message {
    ($name:ident, $kind:literal, $version:literal, $old:ty, $key:ty) => {
        #[derive(Serialize, Deserialize, Message)]
        #[message(kind = $kind, version = $version, upgrade_from = $old, crate = $crate::accepted::inside_macros::shop)]
        struct $name {
            #[message(key)]
            key: $key,
        }

        impl From<$old> for $name {
            fn from(_: $old) -> Self {
                Self {
                    key: Default::default(),
                }
            }
        }
    };
}

mod shop {
    pub(super) use queue_core::*;
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "order", crate = queue_core)]
struct OrderV1;

message!(Order, "order", 2, OrderV1, Option<u64>);

pub(super) fn main() {
    assert_eq!(<Order as queue_core::Message>::TYPE.version(), 2);
}

//! A module without the names of the prelude.

#![no_implicit_prelude]

use ::queue_derive::Message;
use ::serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "job", crate = ::queue_core)]
struct Old {
    #[message(key)]
    number: u32,
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "job", version = 2, upgrade_from = Old, time_to_live = "1h", crate = ::queue_core)]
enum Job {
    Numbered(#[message(key)] u32),
    Empty,
}

impl ::core::convert::From<Old> for Job {
    fn from(old: Old) -> Self {
        Self::Numbered(old.number)
    }
}

#[derive(Serialize, Deserialize, Message)]
#[message(crate = ::queue_core)]
struct Generic<T> {
    #[message(key)]
    value: T,
}

pub(super) fn main() {
    let _ = (Job::Empty, Generic { value: 1 });
}

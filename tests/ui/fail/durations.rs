use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(visibility_timeout = "2 minuets", time_to_live = "", crate = queue_core)]
struct NoDurations;

#[derive(Serialize, Deserialize, Message)]
#[message(visibility_timeout = "999ms", time_to_live = "0s", crate = queue_core)]
struct TooShort;

#[derive(Serialize, Deserialize, Message)]
#[message(visibility_timeout = "7days 1ns", crate = queue_core)]
struct TooLong;

fn main() {}

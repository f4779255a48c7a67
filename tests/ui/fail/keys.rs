use queue_derive::Message;
use serde::{Deserialize, Serialize};

use std::collections::{BTreeMap, HashSet};

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Reading {
    #[message(key)]
    celsius: f32,
    #[message(key)]
    history: Option<Vec<(u8, [std::primitive::f64; 2])>>,
    #[message(key)]
    by_name: BTreeMap<String, Box<f64>>,
    #[message(key)]
    serial: Option<u128>,
    #[message(key)]
    sensors: HashSet<u32>,
    #[message(key)]
    #[serde(default, skip_serializing)]
    note: String,
    #[message(key = "id")]
    id: u64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
enum Job {
    Measure(#[message(key)] f64),
}

#[derive(Serialize, Deserialize, Message)]
#[message(key_scope = "global", crate = queue_core)]
struct NoKey {
    id: u64,
}

fn main() {}

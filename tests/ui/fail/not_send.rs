use queue_derive::Message;
use serde::{Deserialize, Serialize};

use std::rc::Rc;

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Slice {
    #[serde(skip)]
    shared: Rc<u32>,
}

fn main() {}

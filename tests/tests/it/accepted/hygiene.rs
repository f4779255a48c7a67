//! Names of the user's that are also names that the derive needs.

use queue_derive::Message as Derive;
use serde::{Deserialize as De, Serialize as Ser};

mod core {}
mod std {}

type Option = ();
type Result = ();
type Vec = ();
type String = ();
type Box = ();

#[expect(non_snake_case)]
fn Some() {}
#[expect(non_snake_case)]
fn Ok() {}
#[expect(non_snake_case)]
fn Err() {}

#[expect(non_camel_case_types)]
struct u32;

#[expect(non_upper_case_globals)]
const version: &str = "a constant is a pattern";
#[expect(non_upper_case_globals)]
const old: &str = "so is this one";

macro_rules! vec {
    () => {};
}
macro_rules! assert {
    () => {};
}

#[expect(dead_code)]
trait Message {
    fn encode(&self) {}
    fn key(&self) {}
}
impl<T> Message for T {}

mod v1 {
    pub(super) use ::queue_core as shop;
}

#[derive(Ser, De, Derive)]
#[message(kind = "order", crate = v1::shop)]
struct Old {
    #[message(key)]
    version: i64,
}

#[derive(Ser, De, Derive)]
#[message(kind = "order", version = 2, upgrade_from = Old, crate = v1::shop)]
enum Order {
    Some {
        #[message(key)]
        payload: i64,
    },
    None,
}

#[derive(Ser, De, Derive)]
#[message(crate = v1::shop)]
struct NoKey;

impl From<Old> for Order {
    fn from(previous: Old) -> Self {
        Self::Some {
            payload: previous.version,
        }
    }
}

pub(super) fn main() {
    let _ = (version, old);
    vec![];
    assert!();
    let _: (Option, Result, Vec, String, Box) = ((), (), (), (), ());
    let _ = (Some(), Ok(), Err(), u32, Order::None, NoKey);
}

//! What is at the edge of what the derive takes.

use queue_derive::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message()]
#[message(crate = ::queue_core,)]
#[message(alias = [])]
struct r#Match {
    #[message(key)]
    r#fn: u8,
}

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
enum Never {}

// A type of one's own may hold a float where it does not show in its JSON.
#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Marked {
    #[message(key)]
    id: Id<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Id<T>(u64, std::marker::PhantomData<T>);

#[derive(Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Bounded<T: Clone = String, const N: usize = 1>
where
    Option<T>: PartialEq,
{
    #[message(key)]
    items: Vec<T>,
}

fn is_message<M: queue_core::Message>() {}

pub(super) fn main() {
    is_message::<r#Match>();
    is_message::<Never>();
    is_message::<Marked>();
    is_message::<Bounded>();
}

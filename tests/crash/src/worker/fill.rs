use super::Desk;
use crate::ledger::{Event, Lease};
use crate::messages::{Class, CrashOrder};

/// Orders that are submitted.
const ORDERS: usize = 80;

/// The size of a body, in bytes: all orders together exceed the log at which SQLite makes a checkpoint.
const SIZE: usize = 24 * 1024;

/// Submits large orders, one by one.
pub(super) async fn run(desk: &Desk) {
    for at in 0..ORDERS {
        let class = match at % 4 {
            0 => Class::Receipted,
            _ => Class::Plain,
        };
        let name = format!("{}-{at}-{}", desk.number, class.letter());
        let padding = "x".repeat(SIZE);
        desk.ledger
            .write(Event::Submitting, &name, Lease::default());
        let order = CrashOrder {
            name: name.clone(),
            padding,
        };
        desk.service.submit(order).await.expect("the storage works");
        desk.ledger.write(Event::Submitted, &name, Lease::default());
    }
}

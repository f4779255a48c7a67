// An `async fn` in an `impl Handler` must not raise it.
#![deny(refining_impl_trait)]

use std::error::Error;

use queue_runtime::{Disposition, Failure, Handler, Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
struct Order {
    number: u32,
}

async fn unit(_order: Received<Order>) {}

async fn fallible(order: Received<Order>) -> Result<(), Failure> {
    if order.number == 0 {
        return Err(Failure::reject("there is no order 0"));
    }
    let _: u32 = "7".parse()?;
    Ok(())
}

async fn boxed(_order: Received<Order>) -> Result<Disposition, Box<dyn Error + Send + Sync>> {
    Ok(Disposition::complete())
}

struct Counting;

impl Handler<Order> for Counting {
    type Output = Result<(), std::fmt::Error>;

    async fn call(&self, order: Received<Order>) -> Result<(), std::fmt::Error> {
        drop(order);
        Ok(())
    }
}

fn listen(service: &QueueService) {
    let _ = service.listener(unit);
    let _ = service.listener(fallible);
    let _ = service.listener(boxed);
    let _ = service.listener(Counting);
    let _ = service.listener(async |order: Received<Order>| drop(order));
    let _ = service.listener(|order: Received<Order>| async move { println!("{}", order.number) });
}

pub(super) fn main() {
    let _ = listen;
}

// An `async fn` in an `impl Handler` must not raise it.
#![deny(refining_impl_trait)]

use std::error::Error;

use queue_runtime::{Disposition, Failure, Handler, QueueService, Received};
use queue_tests::orders::ShopOrder;

async fn unit(_order: Received<ShopOrder>) {}

async fn fallible(order: Received<ShopOrder>) -> Result<(), Failure> {
    if order.number == 0 {
        return Err(Failure::reject("there is no order 0"));
    }
    let _: u32 = "7".parse()?;
    Ok(())
}

async fn boxed(_order: Received<ShopOrder>) -> Result<Disposition, Box<dyn Error + Send + Sync>> {
    Ok(Disposition::complete())
}

struct Counting;

impl Handler<ShopOrder> for Counting {
    type Output = Result<(), std::fmt::Error>;

    async fn call(&self, order: Received<ShopOrder>) -> Result<(), std::fmt::Error> {
        drop(order);
        Ok(())
    }
}

fn listen(service: &QueueService) {
    let _ = service.listener(unit);
    let _ = service.listener(fallible);
    let _ = service.listener(boxed);
    let _ = service.listener(Counting);
    let _ = service.listener(async |order: Received<ShopOrder>| drop(order));
    let _ =
        service.listener(|order: Received<ShopOrder>| async move { println!("{}", order.number) });
}

pub(super) fn main() {
    let _ = listen;
}

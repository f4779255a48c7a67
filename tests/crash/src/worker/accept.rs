use std::time::Duration;

use queue_runtime::{AcceptError, RetryPolicy, Settled};

use super::{Desk, work};
use crate::ledger::Event;
use crate::messages::{Named, Order, Receipt};

const WAIT: Duration = Duration::from_millis(50);

/// Accepts orders and receipts in turn.
pub(super) async fn run(desk: &Desk) {
    while !desk.is_stopping() {
        one::<Order>(desk).await;
        one::<Receipt>(desk).await;
    }
}

async fn one<M: Named>(desk: &Desk) {
    let accept = desk.service.accept::<M>().wait(WAIT).create_queue();
    let accept = accept.retry(RetryPolicy::fixed(WAIT));
    let delivery = match accept.await {
        Ok(Some(delivery)) => delivery,
        Ok(None) => return,
        // Locked for too long, for example by a process that is stopped.
        Err(AcceptError::Storage(_)) => return tokio::time::sleep(WAIT).await,
        Err(error) => panic!("{error}"),
    };
    let (name, lease) = (delivery.name().to_owned(), work::lease(&delivery));
    let disposition = work::on(desk, &delivery).await;
    match delivery.settle(disposition).await {
        Ok(Settled::Completed) => desk.ledger.write(Event::Completed, &name, lease),
        Ok(Settled::Poisoned(_)) => desk.ledger.write(Event::Poisoned, &name, lease),
        // Otherwise it comes back.
        Ok(_) | Err(_) => {}
    }
}

use std::time::Duration;

use queue_runtime::Disposition;

use super::{Desk, work};
use crate::ledger::Event;
use crate::messages::{CrashOrder, Named as _};

/// Orders that are completed.
const ORDERS: usize = 60;

/// Longer than the slowest producer takes.
const WAIT: Duration = Duration::from_secs(600);

/// Completes orders, one by one, whose follow-ups nobody completes.
pub(super) async fn run(desk: &Desk) {
    for _ in 0..ORDERS {
        // Never lost, on the slowest machine either.
        let accept = desk.service.accept::<CrashOrder>().visibility_timeout(WAIT);
        let accepted = accept.wait(WAIT).create_queue().await;
        let delivery = accepted.expect("the storage works").expect("an order");
        let (name, lease) = (delivery.name().to_owned(), work::lease(&delivery));
        desk.ledger.write(Event::Finishing, &name, lease);
        let disposition = match delivery.follow_up() {
            Some(receipt) => Disposition::complete().then(&receipt),
            None => Disposition::complete(),
        };
        let settled = delivery.settle(disposition).await;
        settled.expect("the storage works");
        desk.ledger.write(Event::Completed, &name, lease);
    }
}

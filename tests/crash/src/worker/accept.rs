use std::time::Duration;

use queue_runtime::receive::{AcceptError, AcceptErrorKind, Settled};
use queue_runtime::{Delivery, Disposition, RetryPolicy};

use super::{Desk, work};
use crate::ledger::{Event, Lease};
use crate::messages::{CrashOrder, Named, Receipt};

const WAIT: Duration = Duration::from_millis(50);

/// Accepts orders and receipts in turn.
pub(super) async fn run(desk: &Desk) {
    while !desk.is_stopping() {
        one::<CrashOrder>(desk).await;
        one::<Receipt>(desk).await;
    }
}

/// Accepts up to four orders and receipts at a time, and completes together what is to be completed without a follow-up.
pub(super) async fn run_many(desk: &Desk) {
    while !desk.is_stopping() {
        many::<CrashOrder>(desk).await;
        many::<Receipt>(desk).await;
    }
}

async fn many<M: Named>(desk: &Desk) {
    let accept = desk.service.queue::<M>().accept_many(4).wait(WAIT);
    let accept = accept.create_queue().retry(RetryPolicy::fixed(WAIT));
    let deliveries = match accept.await {
        Ok(deliveries) => deliveries,
        Err(AcceptError {
            // The last two where a server ends connections.
            kind:
                AcceptErrorKind::Storage(_) | AcceptErrorKind::Data(_) | AcceptErrorKind::Settle(_),
            ..
        }) => return tokio::time::sleep(WAIT).await,
        Err(error) => panic!("{error}"),
    };
    let mut done = Vec::new();
    for delivery in deliveries {
        let (name, lease) = (delivery.name().to_owned(), work::lease(&delivery));
        let disposition = work::on(desk, &delivery).await;
        if matches!(&disposition, Disposition::Complete(more) if more.is_empty()) {
            done.push((delivery, (name, lease)));
        } else {
            settle(desk, delivery, disposition, &name, lease).await;
        }
    }
    let (deliveries, entries): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let completed = Delivery::complete_all(deliveries).await;
    let failed = completed
        .err()
        .map(|error| error.failed)
        .unwrap_or_default();
    let failed: Vec<_> = failed.iter().map(|one| one.delivery.name()).collect();
    for (name, lease) in entries {
        if !failed.contains(&name.as_str()) {
            desk.ledger.write(Event::Completed, &name, lease);
        }
    }
}

async fn settle<M: Named>(
    desk: &Desk,
    delivery: Delivery<M>,
    disposition: Disposition,
    name: &str,
    lease: Lease,
) {
    match delivery.settle(disposition).await {
        Ok(Settled::Completed) => desk.ledger.write(Event::Completed, name, lease),
        Ok(Settled::Poisoned(_)) => desk.ledger.write(Event::Poisoned, name, lease),
        // Other messages come back.
        Ok(_) | Err(_) => {}
    }
}

async fn one<M: Named>(desk: &Desk) {
    let accept = desk.service.accept::<M>().wait(WAIT).create_queue();
    let accept = accept.retry(RetryPolicy::fixed(WAIT));
    let delivery = match accept.await {
        Ok(Some(delivery)) => delivery,
        Ok(None) => return,
        // The file was locked too long, for example by a stopped process.
        Err(AcceptError {
            // The last two where a server ends connections.
            kind:
                AcceptErrorKind::Storage(_) | AcceptErrorKind::Data(_) | AcceptErrorKind::Settle(_),
            ..
        }) => return tokio::time::sleep(WAIT).await,
        Err(error) => panic!("{error}"),
    };
    let (name, lease) = (delivery.name().to_owned(), work::lease(&delivery));
    let disposition = work::on(desk, &delivery).await;
    settle(desk, delivery, disposition, &name, lease).await;
}

use std::fmt::Display;
use std::time::Duration;

use queue_runtime::receive::{AcceptError, AcceptErrorKind, SettleErrorKind};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{Disposition, Error};

use super::{Desk, work};
use crate::ledger::{Event, Lease};
use crate::messages::{Class, CrashOrder, Named as _};

/// Printed, with the error, when the storage has failed.
pub const FAILED: &str = "failed";

/// More repeats than there are failures.
pub(super) const ATTEMPTS: usize = 40;

const ORDERS: usize = 6;
const LEASE: Duration = Duration::from_secs(600);

/// Submits a few orders and completes some, always in the same way; repeats what has failed.
pub(super) async fn run(desk: &Desk) {
    for at in 0..ORDERS {
        let class = match at % 3 {
            0 => Class::Receipted,
            _ => Class::Plain,
        };
        submit(desk, at, class).await;
    }
    for _ in 0..ORDERS / 2 {
        settle(desk).await;
    }
}

/// Submits an order. Each attempt of each process has another name, because several may be carried out.
async fn submit(desk: &Desk, at: usize, class: Class) {
    for attempt in 0..ATTEMPTS {
        let name = format!("{}.{at}.{attempt}-{}", desk.number, class.letter());
        desk.ledger
            .write(Event::Submitting, &name, Lease::default());
        match desk.service.submit(CrashOrder::named(&name)).await {
            Ok(_) => return desk.ledger.write(Event::Submitted, &name, Lease::default()),
            Err(error) => match error.kind {
                SubmitErrorKind::Storage(error) => report(&error),
                problem => panic!("{problem}"),
            },
        }
    }
    panic!("the storage does not recover");
}

async fn settle(desk: &Desk) {
    for _ in 0..ATTEMPTS {
        let accept = desk
            .service
            .accept::<CrashOrder>()
            .visibility_timeout(LEASE);
        let delivery = match accept.await {
            Ok(delivery) => delivery,
            Err(AcceptError {
                kind: AcceptErrorKind::Storage(error),
                ..
            }) => {
                report(&error);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        // Receives whose outcome was unknown may have leased all that is left.
        let Some(delivery) = delivery else { return };
        let (name, lease) = (delivery.name().to_owned(), work::lease(&delivery));
        desk.ledger.write(Event::Finishing, &name, lease);
        let disposition = match delivery.follow_up() {
            Some(receipt) => Disposition::complete().then(&receipt),
            None => Disposition::complete(),
        };
        match delivery.settle(disposition).await {
            Ok(_) => return desk.ledger.write(Event::Completed, &name, lease),
            Err(error) => match error.kind {
                SettleErrorKind::Unknown(error) | SettleErrorKind::NotDone(error) => report(&error),
                problem => panic!("failed to settle: {problem}"),
            },
        }
    }
    panic!("the storage does not recover");
}

/// Reports an error of the storage.
pub(super) fn report(error: &Error) {
    println!(
        "{FAILED} {:?} {:?}: {}",
        error.kind(),
        error.outcome(),
        one_line(error)
    );
}

fn one_line(error: &impl Display) -> String {
    error.to_string().replace('\n', " ")
}

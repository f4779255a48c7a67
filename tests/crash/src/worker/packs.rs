use std::future::pending;
use std::time::Duration;

use queue_runtime::send::SubmitErrorKind;
use queue_runtime::sqlite::rusqlite::TransactionBehavior;
use queue_runtime::{Disposition, Failure, FollowUp, Received};

use super::{Desk, work};
use crate::ledger::{Event, Lease};
use crate::messages::{Class, CrashOrder, LEASE, Named};

/// More messages than this in the queue, packs counted as one, let a producer pause.
const BACKLOG: usize = 12;

/// The orders of a pack.
const ORDERS: usize = 16;

/// The attempts of an item that ends its process.
pub const ATTEMPTS: usize = 3;

/// Begins the name of an order that ends each process that handles it alone.
pub const DEADLY: &str = "deadly";

/// Submits orders of all classes in packs.
pub(super) async fn produce(desk: &Desk) {
    let queue = desk.service.queue::<CrashOrder>();
    for round in 0.. {
        let expires = round % 8 == 5;
        let order = |at: usize| {
            let class = match at % 4 {
                _ if expires => Class::Expiring,
                0 => Class::Receipted,
                _ => Class::Plain,
            };
            let number = desk.number;
            CrashOrder::named(format!("{number}-{round}-{at}-{}", class.letter()))
        };
        submit(desk, (0..ORDERS).map(order).collect(), expires).await;
        while !desk.is_stopping() {
            let count = queue.any().properties().await;
            // Other processes may have locked the file.
            if count.is_ok_and(|properties| properties.approximate_count < BACKLOG) {
                break;
            }
            tokio::time::sleep(LEASE / 50).await;
        }
        if desk.is_stopping() {
            return;
        }
    }
}

async fn submit(desk: &Desk, orders: Vec<CrashOrder>, expires: bool) {
    let names: Vec<_> = orders.iter().map(|order| order.name.clone()).collect();
    let note = |event| {
        for name in &names {
            desk.ledger.write(event, name, Lease::default());
        }
    };
    note(Event::Submitting);
    let submission = desk.service.submit_all(orders).packed();
    let submission = if expires {
        submission.time_to_live(LEASE)
    } else {
        submission
    };
    match submission.await.map_err(|failed| failed.kind) {
        Ok(_) => note(Event::Submitted),
        // The file was locked too long, for example by a stopped process.
        Err(SubmitErrorKind::Storage(_)) => {}
        Err(problem) => panic!("{problem}"),
    }
}

/// Postpones the message, hangs, takes long, completes it in a transaction, or does what other consumers do.
pub(super) async fn on<M: Named>(desk: &Desk, received: &Received<M>) -> Disposition {
    let dice = desk.dice();
    let is_atomic = desk.service.payloads().is_none();
    if dice >= 26 || dice >= 16 && !is_atomic {
        return work::on(desk, received).await;
    }
    let (name, lease) = (received.name(), work::lease(received));
    desk.ledger.write(Event::Started, name, lease);
    match dice {
        0..4 => Disposition::postpone(Duration::from_millis(50)),
        4..6 => pending().await,
        // Its pack is renewed meanwhile.
        6..16 => {
            tokio::time::sleep(LEASE).await;
            desk.ledger.write(Event::Finishing, name, lease);
            work::complete(received)
        }
        _ => {
            let completed = tokio::task::block_in_place(|| in_transaction(desk, received));
            completed.map_or_else(Disposition::from, |()| Disposition::complete())
        }
    }
}

fn in_transaction<M: Named>(desk: &Desk, received: &Received<M>) -> Result<(), Failure> {
    let mut connection = queue_runtime::sqlite::connect(desk.service.backend())?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let follow_up = received.follow_up().map(|receipt| FollowUp::new(&receipt));
    received.complete_within(&tx, follow_up)?;
    desk.ledger
        .write(Event::Finishing, received.name(), work::lease(received));
    Ok(tx.commit()?)
}

/// Completes the message, or aborts the process if that is deadly. Panics if an attempt was counted that the message has
/// not had.
pub(super) fn alone<M: Named>(desk: &Desk, received: &Received<M>) -> Disposition {
    let (name, lease) = (received.name(), work::lease(received));
    desk.ledger.write(Event::Started, name, lease);
    if name.starts_with(DEADLY) {
        std::process::abort();
    }
    assert_eq!(received.attempt(), 1, "{name} pays for another's crash");
    desk.ledger.write(Event::Finishing, name, lease);
    Disposition::complete()
}

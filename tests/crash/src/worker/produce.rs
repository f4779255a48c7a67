use std::time::Duration;

use queue_runtime::error::Outcome;
use queue_runtime::send::SubmitErrorKind;
use queue_tests::incompressible;

use super::Desk;
use crate::ledger::{Event, Lease};
use crate::messages::{Class, CrashOrder};

/// More messages than this in the queue let a producer pause.
const BACKLOG: usize = 300;
const BATCH: usize = 8;
/// So short that some orders expire, since they wait for a lease to end.
const TIME_TO_LIVE: Duration = Duration::from_secs(1);

/// What is stored beside a message, in two parts.
const LARGE: usize = 3 * 512 * 1024;

/// Submits orders of all classes, of which some are large.
pub(super) async fn run(desk: &Desk) {
    let queue = desk.service.queue::<CrashOrder>();
    for round in 0.. {
        let class = match round % 8 {
            0 => Class::Receipted,
            1 => Class::Expiring,
            _ => Class::Plain,
        };
        let size = if round % 8 == 7 { BATCH } else { 1 };
        let name = |at| format!("{}-{round}-{at}-{}", desk.number, class.letter());
        let mut orders: Vec<_> = (0..size).map(|at| CrashOrder::named(name(at))).collect();
        if round % 8 == 3 {
            orders[0].padding = incompressible(LARGE);
        }
        submit(desk, orders, class).await;
        while !desk.is_stopping() {
            let count = queue.any().properties().await;
            // Other processes may have locked the file.
            if count.is_ok_and(|properties| properties.approximate_count < BACKLOG) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if desk.is_stopping() {
            return;
        }
    }
}

async fn submit(desk: &Desk, orders: Vec<CrashOrder>, class: Class) {
    let names: Vec<_> = orders.iter().map(|order| order.name.clone()).collect();
    let note = |event| {
        for name in &names {
            desk.ledger.write(event, name, Lease::default());
        }
    };
    note(Event::Submitting);
    let mut orders = orders;
    let problem = match (orders.len(), class) {
        (1, class) => {
            let submit = desk.service.submit(orders.remove(0));
            let submit = match class {
                Class::Expiring => submit.time_to_live(TIME_TO_LIVE),
                _ => submit,
            };
            submit.await.err().map(|error| (error.kind, true))
        }
        _ => {
            let submitted = desk.service.submit_all(orders).await;
            let failed = submitted.err();
            failed.map(|error| (error.kind, error.submitted.is_empty()))
        }
    };
    match problem {
        None => note(Event::Submitted),
        // The file was locked too long, for example by a stopped process.
        Some((SubmitErrorKind::Storage(error), of_all)) => {
            if of_all && error.outcome() == Outcome::NotDone {
                note(Event::Refused);
            }
        }
        Some((problem, _)) => panic!("{problem}"),
    }
}

//! What a consumer does with a message: usually the work, sometimes a failure.

use std::time::Duration;

use queue_runtime::{Disposition, Received};

use super::Desk;
use crate::ledger::{Event, Lease};
use crate::messages::Named;

/// Records the receive, does the work, and returns how the message is to be settled.
pub(super) async fn on<M: Named>(desk: &Desk, received: &Received<M>) -> Disposition {
    let (name, lease) = (received.name(), lease(received));
    desk.ledger.write(Event::Started, name, lease);
    match desk.dice() {
        0..4 => return Disposition::reject("rejected by chance"),
        4..10 => return Disposition::retry("failed by chance"),
        // Long enough to be killed or stopped in.
        10..13 => tokio::time::sleep(Duration::from_millis(300)).await,
        _ => {}
    }
    desk.ledger.write(Event::Finishing, name, lease);
    complete(received)
}

/// Completes the message, with its follow-up.
pub(super) fn complete<M: Named>(received: &Received<M>) -> Disposition {
    match received.follow_up() {
        Some(receipt) => Disposition::complete().then(&receipt),
        None => Disposition::complete(),
    }
}

/// The receive that brought a message.
pub(super) fn lease<M: Named>(received: &Received<M>) -> Lease {
    Lease {
        inserted: received.inserted_at().as_microsecond(),
        dequeued: received.dequeue_count(),
    }
}

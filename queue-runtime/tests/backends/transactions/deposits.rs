//! A handler of deposits that works in a transaction, and what waits for it.

use std::time::Duration;

use queue_runtime::listener::DrainReport;
use queue_runtime::sqlite::rusqlite::Transaction;
use queue_runtime::{
    Disposition, ListenerBuilder, ListenerEvent, ListenerEventKind, Received, RetryPolicy,
};
use tokio::sync::broadcast::Receiver;

use crate::transactions::bank::{Deposit, GUARD, add, notice};

/// Adds to the balance, and sends a notice.
pub(crate) fn deposit(tx: &Transaction<'_>, deposit: &Received<Deposit>) -> Disposition {
    add(tx, deposit.amount);
    Disposition::complete().then(&notice("more"))
}

/// Listens until the queue is empty.
pub(crate) async fn drain(listener: ListenerBuilder<Deposit>) -> DrainReport {
    let at_once = RetryPolicy::fixed(Duration::ZERO);
    let listener = listener.retry(at_once).until_empty().start();
    let listener = listener.expect("it starts");
    let report = tokio::time::timeout(GUARD, listener.drained()).await;
    report.expect("the queue becomes empty")
}

pub(crate) async fn next(
    events: &mut Receiver<ListenerEvent>,
    wanted: impl Fn(&ListenerEventKind) -> bool,
) -> ListenerEventKind {
    let found = async {
        loop {
            let kind = events.recv().await.expect("the listener runs").kind;
            if wanted(&kind) {
                return kind;
            }
        }
    };
    let found = tokio::time::timeout(GUARD, found).await;
    found.expect("the event is published")
}

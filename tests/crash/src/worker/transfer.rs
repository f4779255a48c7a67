use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use ledger::{Receipt, Transfer};
use queue_runtime::sqlite::rusqlite::{Connection, TransactionBehavior};
use queue_runtime::{
    Disposition, Failure, Handler, ListenerBuilder, ListenerEventKind, ListenerHandle, Message,
    Received, RetryPolicy, blocking, in_transaction,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use super::Desk;
use super::listen::GRACE;
use crate::accounts::ACCOUNTS;
use crate::ledger::PROGRESS;
use crate::messages::LEASE;
use crate::sabotage::Bug;

/// More transfers than this in the queue let a process that orders them pause.
const BACKLOG: usize = 60;

/// The number of a process's first order: no other process has so many.
const FIRST: i64 = 1_000_000;

/// Orders transfers, one after the other.
pub(super) async fn order(desk: &Desk) {
    let mut connection =
        queue_runtime::sqlite::connect(desk.service.backend()).expect("the file opens");
    let queue = desk.service.queue::<Transfer>();
    for round in 0.. {
        let account = |dice: u32| ACCOUNTS[dice as usize % ACCOUNTS.len()].to_owned();
        let transfer = Transfer {
            number: desk.number as i64 * FIRST + round,
            from: account(desk.dice()),
            to: account(desk.dice()),
            amount: desk.dice().into(),
        };
        // Others may have locked the file for too long; then nothing was ordered.
        if ledger::order(&desk.service, &mut connection, &transfer).is_ok() {
            println!("{PROGRESS}");
        }
        loop {
            if desk.is_stopping() {
                return;
            }
            let count = queue.any().properties().await;
            if count.is_ok_and(|properties| properties.approximate_count < BACKLOG) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Handles transfers and receipts with listeners, which are shut down at the end of the input.
pub(super) async fn handle(desk: &Desk, file: &Path, bug: Option<Bug>) {
    let service = &desk.service;
    let (transfers, noting_transfers) = match bug {
        Some(Bug::CompletesApart) => {
            let connection = queue_runtime::sqlite::connect(service.backend());
            let connection = connection.expect("the file opens");
            start(service.listener(apart(file, connection)))
        }
        _ => start(service.listener(in_transaction(ledger::transfer))),
    };
    let (receipts, noting_receipts) = start(service.listener(in_transaction(ledger::confirm)));
    desk.stopping().await;
    tokio::join!(transfers.shutdown(GRACE), receipts.shutdown(GRACE));
    for noting in [noting_transfers, noting_receipts] {
        noting.await.expect("no panic");
    }
}

fn start<M: Message>(listener: ListenerBuilder<M>) -> (ListenerHandle, JoinHandle<()>) {
    let listener = listener
        .visibility_timeout(LEASE)
        // Kills are attempts, too.
        .poison_threshold(1000)
        .max_in_flight(4)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .create_queue();
    let mut events = listener.events();
    let listener = listener.start().expect("the settings are valid");
    let noting = tokio::spawn(async move {
        loop {
            match events.recv().await {
                Ok(event) if matches!(event.kind, ListenerEventKind::Completed { .. }) => {
                    println!("{PROGRESS}");
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    (listener, noting)
}

/// The handler of transfers with the planted bug.
fn apart(file: &Path, connection: Connection) -> impl Handler<Transfer> + use<> {
    let (aborted, connection) = (file.with_extension("aborted"), Mutex::new(connection));
    blocking(
        move |transfer: Received<Transfer>| -> Result<Disposition, Failure> {
            let mut connection = connection.lock().map_err(|_| "a handler has panicked")?;
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            ledger::enter(&tx, &transfer)?;
            tx.commit()?;
            // Only one process aborts.
            if File::create_new(&aborted).is_ok() {
                std::process::abort();
            }
            let number = transfer.number;
            Ok(Disposition::complete().then(&Receipt { number }))
        },
    )
}

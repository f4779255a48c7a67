//! Rows inserted by handlers in one transaction with the completion of their messages, on SQLite: a transaction for each
//! message, and one for each batch.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use queue_instructions::Parcel;
use queue_runtime::sqlite::rusqlite::{Connection, TransactionBehavior};
use queue_runtime::{Batch, Failure, QueueService, Received, batch, blocking};

use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::tasks::rate;
use crate::{Options, Outcome, runtime};

const EACH: &str = "a transaction each, 32 in flight";
const BATCHES: &str = "batches of 100";
const MESSAGES: u32 = 20_000;

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "A row and its message in one transaction, SQLite, WAL, synchronous=FULL";
    let mut table = Table::new("batches", title, &[BATCHES, EACH]).by("messages");
    for round in options.rounds() {
        eprintln!("batches, round {round}");
        let messages = options.messages(MESSAGES, 100);
        for side in in_turn(round, [BATCHES, EACH]) {
            let path = dir.path().join(format!("{round}-{}.db", side.len()));
            let url = Synchronous::Full.url(&path);
            let rate = runtime.block_on(handle(&url, messages, side == BATCHES))?;
            table.add("listener", messages, side, rate);
        }
    }
    Ok(vec![table])
}

/// Handles messages, and checks their rows. Returns messages per second.
async fn handle(url: &str, messages: u32, in_batches: bool) -> Outcome<f64> {
    let service = QueueService::connect(url).await?;
    let connection = queue_runtime::sqlite::connect(service.backend())?;
    connection.execute("CREATE TABLE parcels (number INTEGER PRIMARY KEY)", [])?;
    let connection = Arc::new(Mutex::new(connection));
    for first in (0..messages).step_by(1_000) {
        let numbers = first..messages.min(first + 1_000);
        service.submit_all(numbers.map(Parcel::new)).await?;
    }
    let started = Instant::now();
    let shared = Arc::clone(&connection);
    let listener = if in_batches {
        let all = async |shared: Arc<Mutex<Connection>>, parcels: Batch<Parcel>| {
            let inserted = tokio::task::spawn_blocking(move || insert(&shared, parcels.iter()));
            inserted.await?
        };
        let all = batch(all).size(100).max_wait(Duration::from_millis(20));
        service.listener_with(shared, all)
    } else {
        let one = move |parcel: Received<Parcel>| insert(&shared, [&parcel]);
        service.listener(blocking(one)).max_in_flight(32)
    };
    let report = listener.until_empty().start()?.drained().await;
    let rate = rate(messages, started);
    let count = "SELECT count(*) FROM parcels";
    let rows: u32 = connection
        .lock()
        .map_err(|_| "a handler has panicked")?
        .query_row(count, [], |row| row.get(0))?;
    if rows == messages && report.info.completed == messages as usize {
        Ok(rate)
    } else {
        Err(format!("{rows} rows of {messages}: {report:?}").into())
    }
}

fn insert<'a>(
    connection: &Mutex<Connection>,
    parcels: impl IntoIterator<Item = &'a Received<Parcel>>,
) -> Result<(), Failure> {
    let mut connection = connection.lock().map_err(|_| "a handler has panicked")?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for parcel in parcels {
        let mut insert = tx.prepare_cached("INSERT INTO parcels VALUES (?1)")?;
        insert.execute([parcel.number])?;
        parcel.complete_within(&tx, [])?;
    }
    tx.commit()?;
    Ok(())
}

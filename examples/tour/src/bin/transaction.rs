//! On SQLite, the rows that a handler writes, the completion of its message and the follow-ups are committed together, or
//! not at all. So are the rows of a submitter and its message.
//!
//! `cargo run -p tour --bin transaction` prints
//!
//! ```text
//! order 1: attempt 1
//! order 1: attempt 2
//! order 1 was booked 1 time, with 1 invoice
//! ```

use std::time::Duration;

use queue_runtime::listener::DrainReport;
use queue_runtime::sqlite::rusqlite::{Transaction, TransactionBehavior};
use queue_runtime::{
    Disposition, Failure, Message, QueueService, Received, RetryPolicy, in_transaction,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "orders")]
struct Order {
    number: i64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "invoices")]
struct Invoice {
    order: i64,
}

fn book(tx: &Transaction<'_>, message: &Received<Order>) -> Result<Disposition, Failure> {
    let (order, attempt) = (message.number, message.attempt());
    println!("order {order}: attempt {attempt}");
    let book = "UPDATE orders SET bookings = bookings + 1 WHERE number = ?1";
    tx.execute(book, [order])?;
    if attempt == 1 {
        return Err("the row is rolled back".into());
    }
    Ok(Disposition::complete().then(&Invoice { order }))
}

#[tokio::main]
async fn main() -> Result<DrainReport, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    // With `?adopt` at its end, the queues are kept in a file that has tables of yours already.
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let service = QueueService::connect(&url).await?;
    let mut connection = queue_runtime::sqlite::connect(service.backend())?;
    connection.execute_batch("CREATE TABLE orders (number INTEGER, bookings INTEGER)")?;

    // `IMMEDIATE`, because one that has read first cannot wait for the lock.
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO orders VALUES (1, 0)", [])?;
    service.submit_within(&tx, Order { number: 1 })?;
    tx.commit()?;

    let soon = RetryPolicy::fixed(Duration::from_millis(10));
    let listener = service.listener(in_transaction(book)).retry(soon);
    let report = listener.until_empty().start()?.drained().await;

    let times: i64 = connection.query_row("SELECT bookings FROM orders", [], |row| row.get(0))?;
    let invoices = service.accept_many::<Invoice>(10).await?.len();
    println!("order 1 was booked {times} time, with {invoices} invoice");
    Ok(report) // the exit status is 0 if the queue is empty and nothing is poison
}

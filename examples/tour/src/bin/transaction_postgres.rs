//! On PostgreSQL, the rows that a handler writes, the completion of its message and the follow-ups are committed
//! together, or not at all. So are the rows of a submitter and its message.
//!
//! `cargo run -p tour --bin transaction_postgres -- postgres://USER:PASSWORD@HOST/DATABASE` makes the table `tour_orders`
//! and two queues, removes them in the end, and prints
//!
//! ```text
//! order 1: attempt 1
//! order 1: attempt 2
//! order 1 was booked 1 time, with 1 invoice
//! ```

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::listener::DrainReport;
use queue_runtime::postgres::{self, Ended, Tx};
use queue_runtime::{Disposition, Failure, Message, QueueService, Received, RetryPolicy};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "tour-orders")]
struct Order {
    number: i64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "tour-invoices")]
struct Invoice {
    order: i64,
}

async fn book(tx: Tx, message: Arc<Received<Order>>) -> Result<Ended, Failure> {
    let (order, attempt) = (message.number, message.attempt());
    println!("order {order}: attempt {attempt}");
    let book = "UPDATE tour_orders SET bookings = bookings + 1 WHERE number = $1";
    tx.execute(book, &[&order]).await?;
    if attempt == 1 {
        return Err("the row is rolled back".into());
    }
    Ok(tx.end(Disposition::complete().then(&Invoice { order })))
}

#[tokio::main]
async fn main() -> Result<DrainReport, Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1);
    let Some(url) = argument.or_else(|| std::env::var("QUEUE_URL").ok()) else {
        eprintln!("give postgres://USER:PASSWORD@HOST/DATABASE, as an argument or in QUEUE_URL");
        std::process::exit(2);
    };
    let service = QueueService::connect(&url).await?;
    let mut client = postgres::connect(&**service.backend()).await?;
    let create = "CREATE TABLE IF NOT EXISTS tour_orders (number bigint, bookings bigint)";
    client.batch_execute(create).await?;
    let orders = service.queue::<Order>().any();
    orders.create().await?; // outside of transactions, which would hinder each other

    let tx = client.transaction().await?;
    let insert = "INSERT INTO tour_orders VALUES (1, 0)";
    tx.execute(insert, &[]).await?;
    service.submit_within(&tx, Order { number: 1 }).await?;
    tx.commit().await?;

    let soon = RetryPolicy::fixed(Duration::from_millis(10));
    let handler = postgres::in_transaction(book);
    let listener = service.listener(handler).retry(soon).until_empty();
    let report = listener.start()?.drained().await;

    let booked = "SELECT bookings FROM tour_orders";
    let times: i64 = client.query_one(booked, &[]).await?.get(0);
    let invoices = service.accept_many::<Invoice>(10).await?.len();
    println!("order 1 was booked {times} time, with {invoices} invoice");

    client.batch_execute("DROP TABLE tour_orders").await?;
    orders.delete().await?;
    service.queue::<Invoice>().any().delete().await?;
    Ok(report) // the exit status is 0 if the queue is empty and nothing is poison
}

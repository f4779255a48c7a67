//! Messages of a group are handled one at a time and in the order of their submissions, in all processes. A retry keeps
//! its place.
//!
//! `cargo run -p tour --bin groups` prints
//!
//! ```text
//! 5 bookings
//! ada: +500 -200 (2nd attempt) -100
//! bob: +70 -10
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::{Message, QueueService, Received, RetryPolicy};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Booking {
    #[message(group)]
    account: String,
    pence: i64,
}

/// The last fence and the bookings of each account.
type Accounts = Arc<Mutex<BTreeMap<String, (u64, String)>>>;

async fn book(accounts: Accounts, booking: Received<Booking>) -> Result<(), String> {
    if booking.pence == -200 && booking.attempt() == 1 {
        return Err("the bank does not answer".to_owned());
    }
    let fence = booking.fence().ok_or("it has a group")?;
    let mut accounts = accounts.lock().expect("no booking panics");
    let (last, entries) = accounts.entry(booking.account.clone()).or_default();
    // A process that was stopped for longer than its lease runs beside the next holder of the group.
    if fence < *last {
        return Err("another process has the account".to_owned());
    }
    *last = fence;
    entries.push_str(&format!(" {:+}", booking.pence));
    if booking.attempt() == 2 {
        entries.push_str(" (2nd attempt)");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("memory:bank").await?;
    for (account, pence) in [
        ("ada", 500),
        ("ada", -200),
        ("bob", 70),
        ("ada", -100),
        ("bob", -10),
    ] {
        service
            .submit(Booking {
                account: account.to_owned(),
                pence,
            })
            .await?;
    }

    let accounts = Accounts::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        // As in a process of its own.
        let service = QueueService::connect("memory:bank").await?;
        let listener = service.listener_with(accounts.clone(), book);
        let soon = RetryPolicy::fixed(Duration::from_millis(10));
        workers.push(listener.retry(soon).until_empty().start()?);
    }
    let mut completed = 0;
    for worker in workers {
        completed += worker.drained().await.info.completed;
    }
    println!("{completed} bookings");
    for (account, (_, entries)) in &*accounts.lock().expect("no booking panics") {
        println!("{account}:{entries}");
    }
    Ok(())
}

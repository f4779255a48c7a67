//! A layer of the crate `tower` goes around a handler: here a limit of calls that two listeners share.
//!
//! `cargo run -p tour --bin layer` prints
//!
//! ```text
//! 10 letters and 10 mails, never more than 2 at once
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};
use tower::limit::GlobalConcurrencyLimitLayer;

#[derive(Serialize, Deserialize, Message)]
struct Letter {
    number: u32,
}

#[derive(Serialize, Deserialize, Message)]
struct Mail {
    number: u32,
}

/// A service elsewhere that can do two things at once.
#[derive(Default)]
struct Printer {
    calls: AtomicUsize,
    most: AtomicUsize,
}

impl Printer {
    async fn print(&self) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(calls, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await; // a request
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("memory:").await?;
    service
        .submit_all((1..=10).map(|number| Letter { number }))
        .await?;
    service
        .submit_all((1..=10).map(|number| Mail { number }))
        .await?;

    let printer = Arc::new(Printer::default());
    // Clones share the limit, unlike those of `ConcurrencyLimitLayer`.
    let limit = GlobalConcurrencyLimitLayer::new(2);
    let letter = async |printer: Arc<Printer>, _: Received<Letter>| printer.print().await;
    let mail = async |printer: Arc<Printer>, _: Received<Mail>| printer.print().await;
    let letters = service
        .listener_with(printer.clone(), letter)
        .layer(limit.clone());
    let mails = service.listener_with(printer.clone(), mail).layer(limit);

    let (letters, mails) = (letters.until_empty().start()?, mails.until_empty().start()?);
    let (letters, mails) = tokio::join!(letters.drained(), mails.drained());
    assert!(printer.most.load(Ordering::Relaxed) <= 2);
    let (letters, mails) = (letters.info.completed, mails.info.completed);
    println!("{letters} letters and {mails} mails, never more than 2 at once");
    Ok(())
}

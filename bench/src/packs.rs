//! Messages in packs, and by themselves: orders of a shop, of about 1 KiB each, on SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_runtime::{Message, QueueService, Received};
use queue_tests::orders;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::report::Table;
use crate::sqlite::Synchronous;
use crate::tasks::rate;
use crate::{Options, Outcome, runtime};

const PACKED: &str = "packed";
const EACH: &str = "by themselves";

#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "bench.order", queue = "orders")]
struct PackedOrder(orders::DetailedOrder);

/// The numbers of messages in one call of `submit_all`, and in all.
const BATCHES: [(u32, u32); 2] = [(100, 20_000), (1_000, 100_000)];

/// Measures submitting orders packed and singly, and handling them by a listener.
pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "Orders of 1 KiB in packs, SQLite, WAL, synchronous=FULL";
    let mut table = Table::new("packs", title, &[PACKED, EACH]).by("messages per call");
    for round in options.rounds() {
        eprintln!("packs, round {round}");
        for (batch, messages) in BATCHES {
            let messages = options.messages(messages, batch);
            let all: Vec<PackedOrder> = orders::detailed_orders(messages, 7)
                .map(PackedOrder)
                .collect();
            for side in [PACKED, EACH] {
                let path = dir.path().join(format!("{round}-{batch}-{side}"));
                let rates = runtime.block_on(async {
                    let service = QueueService::connect(&Synchronous::Full.url(&path)).await?;
                    let submitted = submit(&service, &all, batch, side == PACKED).await?;
                    Ok::<_, Box<dyn std::error::Error + Send + Sync>>((
                        submitted,
                        listen(&service, messages).await?,
                    ))
                });
                let (submitted, handled) = rates?;
                table.add("submit_all", batch, side, submitted);
                table.add("listener", batch, side, handled);
            }
        }
    }
    Ok(vec![table])
}

async fn submit(
    service: &QueueService,
    all: &[PackedOrder],
    batch: u32,
    packed: bool,
) -> Outcome<f64> {
    let started = Instant::now();
    for orders in all.chunks(batch as usize) {
        let submission = service.submit_all(orders.to_vec());
        if packed {
            submission.packed().await?;
        } else {
            submission.await?;
        }
    }
    Ok(rate(all.len() as u32, started))
}

async fn listen(service: &QueueService, messages: u32) -> Outcome<f64> {
    let (left, done) = (Arc::new(AtomicU32::new(messages)), Arc::new(Notify::new()));
    let finished = Arc::clone(&done);
    let started = Instant::now();
    let listener = service
        .listener(move |_: Received<PackedOrder>| {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                finished.notify_one();
            }
            async {}
        })
        .start()?;
    done.notified().await;
    let report = listener.shutdown(Duration::from_secs(60)).await;
    let rate = rate(messages, started);
    let completed = report.info.completed;
    if completed != messages as usize {
        return Err(format!("{completed} of {messages} messages were handled").into());
    }
    Ok(rate)
}

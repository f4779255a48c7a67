//! SQLite with many waiting messages: consuming, counting, and bytes per message.

use std::path::Path;
use std::time::Instant;

use queue_instructions::Parcel;
use queue_runtime::QueueService;
use rusqlite::Connection;

use crate::child::{Job, Work, Worker};
use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, ours, runtime};

const OURS: &str = "ours";
const TASKS: u32 = 32;
/// The messages that are consumed in each round, unless the backlog is smaller.
const CONSUMED: u32 = 20_000;
/// Counts in each round.
const COUNTS: u32 = 20;
/// Messages in each call of `submit_all`.
const BATCH: u32 = 10_000;
/// Messages in the benchmark of memory.
const HELD: u32 = 100_000;

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "SQLite with a backlog, WAL, synchronous=FULL";
    let mut rates = Table::new("backlog", title, &[OURS]).by("waiting");
    let mut counts = Table::new("backlog-count", title, &[OURS])
        .costs("microseconds for an approximate count", 1)
        .by("waiting");
    let mut bytes = Table::new("waiting", "A waiting message", &[OURS])
        .costs("bytes per message", 0)
        .by("waiting");

    let sizes: Vec<u32> = options
        .backlogs
        .iter()
        .map(|size| options.messages(*size, TASKS))
        .collect();
    let path = |size: u32| dir.path().join(format!("{size}.db"));
    for size in &sizes {
        eprintln!("backlog: {size} messages are submitted");
        let url = Synchronous::Normal.url(&path(*size));
        runtime.block_on(async {
            let service = QueueService::connect(&url).await?;
            ours::submit_all(&service, *size, BATCH).await
        })?;
        let file = file_size(&path(*size))?;
        bytes.add("file, on SQLite", *size, OURS, file / f64::from(*size));
    }
    for round in options.rounds() {
        for size in in_turn(round, sizes.clone()) {
            eprintln!("backlog, round {round}: {size} messages");
            let url = Synchronous::Full.url(&path(size));
            let (rate, count) = runtime.block_on(run(&url, size))?;
            rates.add("accept + complete", size, OURS, rate);
            counts.add("count", size, OURS, count);
        }
    }
    let held = options.messages(HELD, 1);
    for (what, url) in [
        ("memory, on memory", "memory:".to_owned()),
        (
            "memory of the process, on SQLite",
            Synchronous::Normal.url(&path(0)),
        ),
    ] {
        let job = Job {
            url,
            work: Work::Grow,
            messages: held,
            tasks: 1,
        };
        let grown = runtime.block_on(async { Worker::start(&job).await?.work().await })?;
        bytes.add(what, held, OURS, grown);
    }
    Ok(vec![rates, counts, bytes])
}

/// Counts, consumes some of the messages, and puts as many back. Returns messages per second, and microseconds for a
/// count.
async fn run(url: &str, size: u32) -> Outcome<(f64, f64)> {
    let service = QueueService::connect(url).await?;
    let queue = service.queue::<Parcel>().any();
    let started = Instant::now();
    for _ in 0..COUNTS {
        let count = queue.properties().await?.approximate_count;
        if count < size as usize {
            return Err(format!("{count} of {size} messages are counted").into());
        }
    }
    let count = started.elapsed().as_secs_f64() / f64::from(COUNTS);

    let each = CONSUMED.min(size).div_ceil(TASKS);
    let started = Instant::now();
    let consumed = ours::accept_most(&service, each, TASKS).await?;
    let rate = f64::from(consumed) / started.elapsed().as_secs_f64();
    if consumed != (each * TASKS).min(size) {
        return Err(format!("{consumed} of {size} messages were consumed").into());
    }
    ours::submit_all(&service, consumed, BATCH).await?;
    Ok((rate, count * 1e6))
}

/// The size of the database, in bytes, with what is still in its write-ahead log.
fn file_size(path: &Path) -> Outcome<f64> {
    let connection = Connection::open(path)?;
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, f64>(0));
    Ok(pragma("page_count")? * pragma("page_size")?)
}

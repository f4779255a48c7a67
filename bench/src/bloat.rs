//! Messages through a queue on PostgreSQL while a snapshot keeps the server from removing what is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_runtime::backend::{Backend, BackendExt as _, NewMessage, Op};
use queue_runtime::postgres::tokio_postgres::{Client, NoTls, connect};
use queue_runtime::{QueueName, QueueService};
use queue_tests::postgres::PostgresServer;
use tokio::task::JoinSet;

use crate::report::Table;
use crate::{Options, Outcome, runtime};

/// The messages that pass, of which the snapshot is held for those from the second fifth to the fourth.
const MESSAGES: u32 = 10_000_000;
const PARTS: u32 = 10;
const HELD: std::ops::Range<u32> = 2..8;

const TASKS: u32 = 8;
const BATCH: u32 = 32;
/// The messages that wait all the time.
const WAITING: u32 = 10_000;
const SIZE: usize = 200;
const LEASE: Duration = Duration::from_secs(600);

const QUEUE: QueueName = QueueName::from_static("parcels");
const MEDIAN: &str = "median";
const SLOW: &str = "99 % are faster";

/// What one task has seen of a part: how long its receives took.
type Took = Vec<Duration>;

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let runtime = runtime()?;
    let title = "A receive of 32 messages on PostgreSQL, with a snapshot that is held for a time";
    let mut table = Table::new("bloat", title, &[])
        .costs("milliseconds", 2)
        .by("thousands passed");
    for side in [MEDIAN, SLOW] {
        table.add_side(side, None);
    }
    for _ in options.rounds() {
        let server = PostgresServer::start()?;
        runtime.block_on(run(options, server.url(), &mut table))?;
    }
    Ok(vec![table])
}

async fn run(options: &Options, url: &str, table: &mut Table) -> Outcome<()> {
    let service = QueueService::connect(url).await?;
    let backend = Arc::clone(service.backend());
    backend.ensure_queue(&QUEUE).await?;
    for _ in 0..WAITING / BATCH {
        backend.apply(puts()).await?;
    }
    let part = options.messages(MESSAGES / PARTS, TASKS * BATCH);
    let observer = open(url).await?;
    let mut snapshot = None;
    let started = Instant::now();
    for number in 0..PARTS {
        if number == HELD.start {
            let client = open(url).await?;
            let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM queues.messages LIMIT 1";
            client.batch_execute(hold).await?;
            snapshot = Some((client, Instant::now()));
        }
        if number == HELD.end
            && let Some((_, held)) = snapshot.take()
        {
            eprintln!("bloat: the snapshot was held for {:?}", held.elapsed());
        }
        let mut took = pass(&backend, part).await?;
        took.sort_unstable();
        let passed = (number + 1) * part / 1000;
        let milliseconds = |share: usize| took[(took.len() - 1) * share / 100].as_secs_f64() * 1e3;
        let what = if snapshot.is_some() {
            "with a snapshot"
        } else {
            "without"
        };
        table.add(what, passed, MEDIAN, milliseconds(50));
        table.add(what, passed, SLOW, milliseconds(99));
        eprintln!(
            "bloat: {passed} thousand messages after {:?}, a receive takes {:.2} ms; {}",
            started.elapsed(),
            milliseconds(50),
            size(&observer).await?
        );
    }
    Ok(())
}

/// Has messages put, received and deleted, each task as many at a time. Returns how long the receives took.
async fn pass(backend: &Arc<dyn Backend>, messages: u32) -> Outcome<Took> {
    let left = Arc::new(AtomicU32::new(messages / BATCH));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (backend, left) = (Arc::clone(backend), Arc::clone(&left));
        tasks.spawn(async move {
            let mut took = Took::new();
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
            {
                backend.apply(puts()).await?;
                let begun = Instant::now();
                let received = backend.receive(&QUEUE, BATCH as usize, LEASE).await?;
                took.push(begun.elapsed());
                if received.len() != BATCH as usize {
                    return Err(format!("{} messages were received", received.len()).into());
                }
                let deletes = received.into_iter().map(|message| Op::Delete {
                    queue: QUEUE,
                    id: message.id,
                    receipt: message.receipt,
                    moved: false,
                });
                backend.apply(deletes.collect()).await?;
            }
            Outcome::Ok(took)
        });
    }
    let mut all = Took::new();
    while let Some(task) = tasks.join_next().await {
        all.extend(task??);
    }
    Ok(all)
}

fn puts() -> queue_runtime::backend::Ops {
    let put = |_| Op::Put {
        queue: QUEUE,
        message: NewMessage::new(vec![b'x'; SIZE]),
    };
    (0..BATCH).map(put).collect()
}

async fn open(url: &str) -> Outcome<Client> {
    let (client, connection) = connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The size of the table with its indexes.
async fn size(client: &Client) -> Outcome<String> {
    let size = "SELECT pg_size_pretty(pg_total_relation_size('queues.messages'))";
    Ok(client.query_one(size, &[]).await?.get(0))
}

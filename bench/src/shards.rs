//! Queues over shards, and by themselves: on SQLite, and on the server with a limit for each queue.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use queue_runtime::QueueService;
use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::{Clock, SystemClock};
use queue_runtime::policy::StorageLimit;
use queue_runtime::sharded::Shards;
use queue_server::{Account, DEVELOPMENT_KEY, Server};
use tokio::net::TcpListener;

use crate::report::{Figures, Table, in_turn};
use crate::sqlite::Synchronous;
use crate::tasks::rate;
use crate::{Options, Outcome, ours, runtime};

const FILES: &str = "4 shards, 4 files";
const FILE: &str = "4 shards, one file";
const ONE: &str = "one queue";

/// The numbers of tasks and of messages.
const SIZES: [(u32, u32); 2] = [(32, 30_000), (256, 60_000)];

/// Measures single messages on shards in one file and in four.
pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "Shards, SQLite, WAL, synchronous=FULL";
    let mut table = Table::new("shards", title, &[FILES, FILE, ONE]);
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            eprintln!("shards, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for side in in_turn(round, [FILES, FILE, ONE]) {
                let folder = tempfile::tempdir_in(dir.path())?;
                let figures = runtime.block_on(on_sqlite(folder.path(), side, messages, tasks))?;
                table.add_all(tasks, side, &figures);
            }
        }
    }
    Ok(vec![table, runtime.block_on(measure_throttled(options))?])
}

async fn on_sqlite(folder: &Path, side: &str, messages: u32, tasks: u32) -> Outcome<Figures> {
    let url = |name: &str| Synchronous::Full.url(&folder.join(name));
    let names = ["0.db", "1.db", "2.db", "3.db"];
    let service = match side {
        FILES => {
            QueueService::sharded(names.map(url), Shards::new(4))
                .connect()
                .await?
        }
        FILE => {
            QueueService::sharded([url("0.db")], Shards::new(4))
                .connect()
                .await?
        }
        _ => QueueService::connect(&url("0.db")).await?,
    };
    let submit = ours::submit(&service, messages, tasks).await?;
    let accept = ours::accept(&service, messages, tasks).await?;
    ours::submit(&service, messages, 256).await?;
    let listen = ours::listen(&service, messages, tasks).await?;
    Ok(Figures::rates(submit, accept, Some(listen)))
}

/// The requests a second that the server allows on each queue, and the service's own limit below that.
const ALLOWED: NonZeroUsize = NonZeroUsize::new(500).unwrap();
const LIMIT: StorageLimit = StorageLimit::new().per_queue(450);

const SHARDS: [(&str, u32); 3] = [("4 shards", 4), ("2 shards", 2), ("1 shard", 1)];

/// Measures messages that are submitted and handled at the same time, three requests each, at the limit of each queue.
async fn measure_throttled(options: &Options) -> Outcome<Table> {
    const TASKS: u32 = 64;

    let title = format!(
        "A server of the protocol of Azure Queue Storage that allows {ALLOWED} requests a second to each queue"
    );
    let mut table = Table::new("shards-throttled", title, &SHARDS.map(|(side, _)| side));
    for round in options.rounds() {
        eprintln!("shards below a limit, round {round}");
        for (side, shards) in in_turn(round, SHARDS) {
            let messages = options.messages(3_000 * shards, TASKS);
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
            let queues = Arc::new(MemoryBackend::new(Arc::clone(&clock)));
            let account =
                Account::new("bench", DEVELOPMENT_KEY, queues, clock)?.with_limit(ALLOWED);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let server = Server::new(vec![account]).start(listener)?;
            let url = format!(
                "AccountName=bench;AccountKey={DEVELOPMENT_KEY};QueueEndpoint=http://{}/bench",
                server.address()
            );
            let service = QueueService::sharded([url.as_str()], Shards::new(shards));
            let service = service.storage_limit(LIMIT).connect().await?;
            let started = Instant::now();
            tokio::try_join!(
                ours::submit(&service, messages, TASKS),
                ours::listen(&service, messages, 4 * TASKS),
            )?;
            table.add("submit and listener", TASKS, side, rate(messages, started));
        }
    }
    Ok(table)
}

//! What idle listeners cost: processor time, threads, memory, and statements of a server.

use std::time::Duration;

use queue_instructions::Parcel;
use queue_runtime::{QueueService, Received};
use queue_tests::postgres::PostgresServer;

use crate::child::{Job, Work, Worker};
use crate::meter::process_time;
use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::statements::Statements;
use crate::{Options, Outcome, memory, runtime};

const LISTENERS: [u32; 2] = [1, 200];

/// How long the processor time is measured for.
const SPAN: Duration = Duration::from_secs(20);

/// How long statements are counted for: what is done once a minute is done once in this time.
const MINUTE: Duration = Duration::from_secs(60);

/// How long until the pauses between two polls have reached their cap.
const SETTLE: Duration = Duration::from_secs(5);

const MIB: f64 = 1024.0 * 1024.0;

const UNITS: [&str; 3] = [
    "percent of a core",
    "threads",
    "MiB of memory, the whole process",
];
const STATEMENTS: &str = "statements a minute";

/// As by default, with a task that polls, and without one, with the least number of tasks.
const SIDES: [(&str, usize); 2] = [("tasks(1..=16)", 1), ("tasks(0..=16)", 0)];

/// Measures listeners of different queues in one process, on one SQLite file.
pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "Idle listeners of one process, on one SQLite file";
    let mut table = Table::new("idle", title, &["ours"])
        .costs("each in its unit", 2)
        .by("listeners");
    for round in options.rounds() {
        for listeners in LISTENERS {
            eprintln!("idle, round {round}: {listeners} listeners");
            let path = dir.path().join(format!("{round}-{listeners}.db"));
            let job = job(
                Synchronous::Full.url(&path),
                listeners,
                1,
                span(options, SPAN),
            );
            let results = runtime.block_on(async { Worker::start(&job).await?.results().await })?;
            for (what, figure) in UNITS.into_iter().zip(results) {
                table.add(what, listeners, "ours", figure);
            }
        }
    }
    Ok(vec![table])
}

/// Measures one listener on a PostgreSQL server of its own, which nobody else uses.
pub(crate) fn measure_on_postgres(options: &Options) -> Outcome<Vec<Table>> {
    let runtime = runtime()?;
    let title = "An idle listener on PostgreSQL";
    let mut table = Table::new("idle-postgres", title, &[])
        .costs("each in its unit", 2)
        .by("listeners");
    for (side, _) in SIDES {
        table.add_side(side, None);
    }
    for round in options.rounds() {
        for (side, least) in in_turn(round, SIDES) {
            eprintln!("idle on PostgreSQL, round {round}: {side}");
            let server = match PostgresServer::start() {
                Ok(server) => server,
                Err(why) => {
                    table.note(why.to_string());
                    return Ok(vec![table]);
                }
            };
            let span = span(options, MINUTE);
            let job = job(server.url().to_owned(), 1, least, span);
            let (results, statements) = runtime.block_on(async {
                let log = Statements::log(server.url()).await?;
                let worker = Worker::start(&job).await?;
                let counted = async {
                    tokio::time::sleep(SETTLE).await;
                    log.during(span).await
                };
                tokio::try_join!(worker.results(), counted)
            })?;
            for (statement, times) in &statements {
                eprintln!("  {times} in {span:?}: {statement:.160}");
            }
            for (what, figure) in UNITS.into_iter().zip(results) {
                table.add(what, 1, side, figure);
            }
            let times = f64::from(statements.values().sum::<u32>());
            let minutes = span.as_secs_f64() / MINUTE.as_secs_f64();
            table.add(STATEMENTS, 1, side, times / minutes);
        }
    }
    Ok(vec![table])
}

fn span(options: &Options, span: Duration) -> Duration {
    if options.quick {
        Duration::from_secs(1)
    } else {
        span
    }
}

fn job(url: String, listeners: u32, least: usize, span: Duration) -> Job {
    let seconds = span.as_secs() as u32;
    Job {
        url,
        work: Work::Idle { seconds, least },
        messages: 0,
        tasks: listeners,
    }
}

/// Runs idle listeners in this process, of at least so many tasks each. Returns percent of a core, threads, and MiB of memory.
pub(crate) async fn wait(
    service: &QueueService,
    listeners: u32,
    least: usize,
    span: Duration,
) -> Outcome<[f64; 3]> {
    let mut running = Vec::new();
    for number in 0..listeners {
        let queue = service.queue_named::<Parcel>(format!("idle-{number}"))?;
        let listener = queue.listener(async |_: Received<Parcel>| {});
        let listener = listener.tasks(least..=16).create_queue().start()?;
        running.push(listener.stop_on_drop());
    }
    tokio::time::sleep(SETTLE).await;
    let before = process_time();
    tokio::time::sleep(span).await;
    let share = (process_time() - before) / span.as_secs_f64() * 100.0;
    let threads = memory::threads().map_or(f64::NAN, f64::from);
    let resident = memory::resident().map_or(f64::NAN, |bytes| bytes / MIB);
    drop(running);
    Ok([share, threads, resident])
}

//! What idle listeners cost: processor time, threads and memory.

use std::time::Duration;

use queue_instructions::Parcel;
use queue_runtime::{QueueService, Received};

use crate::child::{Job, Work, Worker};
use crate::meter::process_time;
use crate::report::Table;
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, memory, runtime};

const LISTENERS: [u32; 2] = [1, 200];

/// How long the processor time is measured for.
const SPAN: Duration = Duration::from_secs(20);

/// How long until the pauses between two polls have reached their cap.
const SETTLE: Duration = Duration::from_secs(5);

const MIB: f64 = 1024.0 * 1024.0;

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
            let seconds = if options.quick {
                1
            } else {
                SPAN.as_secs() as u32
            };
            let job = Job {
                url: Synchronous::Full.url(&path),
                work: Work::Idle { seconds },
                messages: 0,
                tasks: listeners,
            };
            let results = runtime.block_on(async { Worker::start(&job).await?.results().await })?;
            let units = [
                "percent of a core",
                "threads",
                "MiB of memory, the whole process",
            ];
            for (what, figure) in units.into_iter().zip(results) {
                table.add(what, listeners, "ours", figure);
            }
        }
    }
    Ok(vec![table])
}

/// Runs idle listeners in this process. Returns percent of a core, threads, and MiB of memory.
pub(crate) async fn wait(
    service: &QueueService,
    listeners: u32,
    span: Duration,
) -> Outcome<[f64; 3]> {
    let mut running = Vec::new();
    for number in 0..listeners {
        let queue = service.queue_named::<Parcel>(format!("idle-{number}"))?;
        let listener = queue.listener(async |_: Received<Parcel>| {});
        let listener = listener.tasks(1..=16).create_queue().start()?;
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

//! The command line `queues` on a SQLite file with many waiting messages: how soon it answers, and its memory.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use queue_instructions::Parcel;
use queue_runtime::QueueService;

use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, memory, ours, runtime};

const QUEUES: &str = "queues";
/// Messages in each call of `submit_all`.
const BATCH: u32 = 10_000;
/// The id of the message that is put last, so that a search for it reads all others.
const LAST: &str = "the-last-one";
/// The pause between looks at the program's memory.
const LOOK: Duration = Duration::from_millis(2);

/// The first page of a list, a queue, and one message, which is searched for.
const COMMANDS: [&[&str]; 4] = [
    &["ls"],
    &["stat", "parcel"],
    &["browse", "parcel"],
    &["show", "parcel", LAST],
];

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let mut times = Table::new(
        "inspect",
        "The command line on a file with a backlog",
        &[QUEUES],
    )
    .costs("milliseconds from its start to its end", 1)
    .by("waiting");
    let mut peaks = Table::new(
        "inspect-memory",
        "The memory of the command line",
        &[QUEUES],
    )
    .costs("MiB at most", 1)
    .by("waiting");
    let program = std::env::current_exe()?.with_file_name(QUEUES);
    if !program.exists() {
        times.note(format!("{} is not built", program.display()));
        return Ok(vec![times, peaks]);
    }
    let dir = options.scratch()?;
    let sizes = options.backlogs.iter();
    let sizes: Vec<u32> = sizes.map(|size| options.messages(*size, 1)).collect();
    let url = |size: u32| Synchronous::Normal.url(&dir.path().join(format!("{size}.db")));
    for size in &sizes {
        eprintln!("inspect: {size} messages are submitted");
        runtime()?.block_on(async {
            let service = QueueService::connect(&url(*size)).await?;
            ours::submit_all(&service, size - 1, BATCH).await?;
            service.submit(Parcel::new(*size)).id(LAST).await?;
            Outcome::Ok(())
        })?;
    }
    for round in options.rounds() {
        for size in in_turn(round, sizes.clone()) {
            for arguments in COMMANDS {
                eprintln!("inspect, round {round}: {size} messages, {}", arguments[0]);
                let command = Command::new(&program);
                let (took, peak) = run(command, &url(size), arguments)?;
                times.add(arguments[0], size, QUEUES, took.as_secs_f64() * 1e3);
                if let Some(peak) = peak {
                    peaks.add(arguments[0], size, QUEUES, peak / f64::from(1 << 20));
                }
            }
        }
    }
    Ok(vec![times, peaks])
}

/// Runs the program to its end; returns how long that took, and its memory in bytes.
fn run(mut program: Command, url: &str, arguments: &[&str]) -> Outcome<(Duration, Option<f64>)> {
    let started = Instant::now();
    let mut child = program
        .env("QUEUE_URL", url)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let mut peak = None;
    let status = loop {
        // Peaks only grow.
        peak = memory::peak_of(child.id()).or(peak);
        match child.try_wait()? {
            Some(status) => break status,
            None => thread::sleep(LOOK),
        }
    };
    if !status.success() {
        return Err(format!("`queues {}` ended with {status}", arguments.join(" ")).into());
    }
    Ok((started.elapsed(), peak))
}

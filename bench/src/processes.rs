//! Two processes on one SQLite file, and one process with as many tasks.

use std::time::Instant;

use tokio::task::JoinSet;

use crate::child::{Job, Work, Worker};
use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, runtime};

const TWO: &str = "two processes";
const ONE: &str = "one process";

/// The numbers of tasks, of all processes, and of messages.
const SIZES: [(u32, u32); 2] = [(2, 10_000), (64, 50_000)];

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "Two processes on one SQLite file, WAL, synchronous=FULL";
    let mut table = Table::new("processes", title, &[TWO, ONE]);
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            eprintln!("processes, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for side in in_turn(round, [TWO, ONE]) {
                let processes = if side == TWO { 2 } else { 1 };
                let path = dir.path().join(format!("{round}-{tasks}-{processes}.db"));
                let url = Synchronous::Full.url(&path);
                let rates = runtime.block_on(rates(&url, messages, tasks, processes))?;
                for (what, rate) in rates {
                    table.add(what, tasks, side, rate);
                }
            }
        }
    }
    Ok(vec![table])
}

async fn rates(
    url: &str,
    messages: u32,
    tasks: u32,
    processes: u32,
) -> Outcome<[(&'static str, f64); 3]> {
    let each = |work| Job {
        url: url.to_owned(),
        work,
        messages: messages / processes,
        tasks: tasks / processes,
    };
    let all = |work| vec![each(work); processes as usize];
    // Every message is submitted by one process and handled by the other.
    let beside = match processes {
        1 => all(Work::SubmitAndListen),
        _ => [Work::Submit, Work::Listen]
            .map(|work| Job {
                messages,
                ..each(work)
            })
            .into(),
    };
    let done_beside = messages * processes;
    Ok([
        ("submit", rate(all(Work::Submit), messages, messages).await?),
        (
            "accept + complete",
            rate(all(Work::Consume), messages, messages).await?,
        ),
        (
            "submit beside a listener",
            rate(beside, messages, done_beside).await?,
        ),
    ])
}

/// Lets the children work together. Returns messages per second, or an error if the results do not add up to
/// `expected`.
async fn rate(jobs: Vec<Job>, messages: u32, expected: u32) -> Outcome<f64> {
    let mut workers = Vec::new();
    for job in &jobs {
        workers.push(Worker::start(job).await?);
    }
    let started = Instant::now();
    let mut working: JoinSet<_> = workers.into_iter().map(Worker::work).collect();
    let mut done = 0.0;
    while let Some(ended) = working.join_next().await {
        done += ended??;
    }
    let rate = f64::from(messages) / started.elapsed().as_secs_f64();
    if done == f64::from(expected) {
        Ok(rate)
    } else {
        Err(format!("{done} instead of {expected} messages: {jobs:?}").into())
    }
}

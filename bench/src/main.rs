//! What the framework costs: our API against a bare `rusqlite` loop that makes the same commits, in
//! turn, in one run, on one disk.
//!
//! | module | holds |
//! |---|---|
//! | `workload` | the message that both sides store |
//! | `raw` | the loop to compare with |
//! | `ours` | submit, accept and listen through `queue-runtime` |
//! | `report` | medians and ratios |

mod ours;
mod raw;
mod report;
mod workload;

use std::error::Error;

use clap::Parser;

use report::{Report, Sample};

/// Messages per second of submit, accept+complete and a listener, on SQLite.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Options {
    /// Rounds; the median of them is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Messages in each measurement with 256 tasks; fewer tasks get fewer.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(256..))]
    messages: u32,
    /// One round of few messages, to see that it runs.
    #[arg(long)]
    quick: bool,
    /// Where the database files go; the disk decides the figures.
    #[arg(long)]
    dir: Option<std::path::PathBuf>,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const TASKS: [u32; 3] = [1, 32, 256];

fn main() -> Outcome<()> {
    let mut options = Options::parse();
    if options.quick {
        options.rounds = 1;
        options.messages = 2_560;
    }
    let dir = match &options.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut report = Report::new(rusqlite::version());
    for round in 1..=options.rounds {
        for tasks in TASKS {
            eprintln!("round {round} of {}: {tasks} tasks", options.rounds);
            let messages = sized(options.messages, tasks);
            let path = |name: &str| dir.path().join(format!("{name}-{round}-{tasks}.db"));
            let (insert, consume) = raw::run(&path("raw"), messages, tasks)?;
            report.add("submit", tasks, Sample::Raw, insert);
            report.add("accept + complete", tasks, Sample::Raw, consume);
            let ours = runtime.block_on(ours::run(&path("ours"), messages, tasks))?;
            report.add("submit", tasks, Sample::Ours, ours.submit);
            report.add("accept + complete", tasks, Sample::Ours, ours.accept);
            report.add("listener", tasks, Sample::Raw, consume);
            report.add("listener", tasks, Sample::Ours, ours.listen);
        }
    }
    print!("{report}");
    Ok(())
}

/// Fewer messages where every one is a commit, and a multiple of the tasks.
fn sized(messages: u32, tasks: u32) -> u32 {
    let wanted = match tasks {
        1 => messages / 10,
        2..=32 => messages / 2,
        _ => messages,
    };
    wanted.div_ceil(tasks) * tasks
}

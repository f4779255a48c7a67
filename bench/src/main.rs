//! What the framework costs: our API against the bare engine under it, in turn, in one run.
//!
//! | module | holds |
//! |---|---|
//! | `workload` | the message that all sides store |
//! | `ours` | submit, accept and listen through `queue-runtime`, on any engine |
//! | `sqlite`, `raw` | what it comes to on SQLite, beside a bare `rusqlite` loop |
//! | `azure`, `sdk` | what it comes to on Azure's queues, beside the bare SDK |
//! | `listener` | a listener beside a loop over `accept`; ten thousand handlers that wait |
//! | `loopback` | a server of such queues that does nothing |
//! | `tasks` | the same work in many tasks |
//! | `meter` | the rate, processor time and requests of some work |
//! | `report` | medians and ratios |

mod azure;
mod listener;
mod loopback;
mod meter;
mod ours;
mod raw;
mod report;
mod sdk;
mod sqlite;
mod tasks;
mod workload;

use std::error::Error;

use clap::{Parser, ValueEnum};

/// Messages per second of submit, accept+complete and a listener, ours beside the bare engine's.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Options {
    /// What to measure; all of it unless chosen.
    engines: Vec<Engine>,
    /// Rounds; the median of them is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// One round of few messages, to see that it runs.
    #[arg(long)]
    quick: bool,
    /// Where SQLite's files go; the disk decides the figures.
    #[arg(long)]
    dir: Option<std::path::PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Against a bare `rusqlite` loop that makes the same commits, on one disk.
    Sqlite,
    /// A listener against `accept` and `complete` in a loop, on memory and SQLite.
    Listener,
    /// Ten thousand handlers that wait a second each, on memory.
    Handlers,
    /// Against the bare Azure SDK, on a loopback server that does nothing.
    Http,
    /// Against the bare Azure SDK, on Azurite.
    Azurite,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let options = Options::parse();
    let chosen = |engine| options.engines.contains(&engine);
    let all = options.engines.is_empty();
    // First, because the peak of the memory is that of the whole process so far.
    if all || chosen(Engine::Handlers) {
        listener::measure_waiting(&options)?;
    }
    if all || chosen(Engine::Sqlite) {
        sqlite::measure(&options)?;
    }
    if all || chosen(Engine::Listener) {
        listener::measure(&options)?;
    }
    if all || chosen(Engine::Http) {
        azure::measure_on_loopback(&options)?;
    }
    if all || chosen(Engine::Azurite) {
        match queue_tests::azurite::Azurite::start(&[azure::ACCOUNT]) {
            Ok(server) => azure::measure_on_azurite(&options, &server)?,
            Err(why) if chosen(Engine::Azurite) => return Err(why.into()),
            Err(why) => println!("\nLEFT OUT: the figures on Azurite: {why}"),
        }
    }
    Ok(())
}

impl Options {
    fn rounds(&self) -> std::ops::RangeInclusive<u32> {
        1..=if self.quick { 1 } else { self.rounds }
    }

    /// A folder for SQLite's files, which is removed in the end.
    fn scratch(&self) -> std::io::Result<tempfile::TempDir> {
        match &self.dir {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir(),
        }
    }

    /// That many messages, or a few; and a multiple of the tasks.
    fn messages(&self, wanted: u32, tasks: u32) -> u32 {
        let wanted = if self.quick { wanted / 40 } else { wanted };
        wanted.div_ceil(tasks).max(1) * tasks
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
}

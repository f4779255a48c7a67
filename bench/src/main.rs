//! The overhead of the framework: our API and the bare engine below it, measured alternately in one run.
//!
//! | module | contents |
//! |---|---|
//! | `workload` | the message that all benchmarks store |
//! | `ours` | submit, accept and listen through `queue-runtime`, on any engine |
//! | `sqlite`, `raw` | SQLite: ours and a bare `rusqlite` loop |
//! | `azure`, `sdk` | Azure's queues: ours and the bare SDK |
//! | `envelope`, `instructions` | the cost of an envelope, and of a message on memory |
//! | `listener` | a listener and a loop over `accept`; ten thousand handlers that wait |
//! | `loopback` | an HTTP server that imitates Azure's queues at little cost |
//! | `tasks` | the same work in many concurrent tasks |
//! | `meter` | the rate, processor time and requests of a workload |
//! | `report` | medians and ratios |

mod azure;
mod envelope;
mod instructions;
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

/// Measures messages per second of submit, accept + complete and a listener, and of the bare engine.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Options {
    /// Benchmarks to run; all by default.
    engines: Vec<Engine>,
    /// Number of rounds; their median is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Runs one round of few messages, as a smoke test.
    #[arg(long)]
    quick: bool,
    /// Folder for SQLite's files; the figures depend on its disk.
    #[arg(long)]
    dir: Option<std::path::PathBuf>,
    /// Performs this work and ends. The benchmark of instructions runs itself so.
    #[arg(long, hide = true)]
    perform: Option<instructions::Work>,
    /// How many messages to perform it for.
    #[arg(long, hide = true, default_value_t = 1)]
    messages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Ours and a bare `rusqlite` loop that makes the same commits, on one disk.
    Sqlite,
    /// A listener and a loop over `accept` and `complete`, on memory and SQLite.
    Listener,
    /// Ten thousand handlers that wait a second each, on memory.
    Handlers,
    /// An envelope, and plain `serde_json` of its payload.
    Envelope,
    /// Instructions per message on memory, counted by valgrind.
    Instructions,
    /// Ours and the bare Azure SDK, on a minimal loopback server.
    Http,
    /// Ours and the bare Azure SDK, on Azurite.
    Azurite,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let options = Options::parse();
    if let Some(work) = options.perform {
        return instructions::perform(work, options.messages);
    }
    let chosen = |engine| options.engines.contains(&engine);
    let all = options.engines.is_empty();
    // First, because the peak memory is that of the whole process so far.
    if all || chosen(Engine::Handlers) {
        listener::measure_waiting(&options)?;
    }
    if all || chosen(Engine::Instructions) {
        instructions::measure(&options)?;
    }
    if all || chosen(Engine::Envelope) {
        envelope::measure(&options)?;
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
            Err(why) => println!("\nSKIPPED: the figures on Azurite: {why}"),
        }
    }
    Ok(())
}

impl Options {
    fn rounds(&self) -> std::ops::RangeInclusive<u32> {
        1..=if self.quick { 1 } else { self.rounds }
    }

    /// Creates a folder for SQLite's files, which is removed when dropped.
    fn scratch(&self) -> std::io::Result<tempfile::TempDir> {
        match &self.dir {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir(),
        }
    }

    /// The number of messages: as wanted, or few if quick, rounded up to a multiple of the tasks.
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

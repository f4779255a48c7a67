//! The overhead of the framework: our API, the bare engine below it, and other queues, measured alternately in one run.
//!
//! | module | contents |
//! |---|---|
//! | `ours` | submit, accept and listen through `queue-runtime`, on any engine |
//! | `sqlite`, `raw`, `writer` | SQLite: ours, a bare `rusqlite` loop, and a bare writer thread |
//! | `postgres`, `waits` | PostgreSQL: ours, and a bare connection; what our connections wait for |
//! | `bloat` | PostgreSQL: messages through a queue while a snapshot is held |
//! | `processes`, `backlog` | SQLite: two processes on one file; many waiting messages |
//! | `inspect` | the command line `queues` on many waiting messages |
//! | `page` | the mosaic's page and its command line |
//! | `peers` | other queues, on files, on Redis and on PostgreSQL, in the programs of `bench/peers` |
//! | `server`, `serving` | the server of `queues serve` beside Azurite, each in a process of its own |
//! | `wire`, `nothing` | a bare client of such a server; a server that stores nothing |
//! | `azure`, `sdk` | Azure's queues: ours and the bare SDK |
//! | `envelope`, `instructions` | the cost of an envelope, and of a message on memory |
//! | `large` | large messages: as they are, compressed, attached, and in a folder |
//! | `batches` | handlers of one message and of a hundred, with a transaction each |
//! | `keys` | messages of which those of one key are handled one at a time |
//! | `groups` | messages whose order the storage keeps |
//! | `packs` | messages in packs and by themselves |
//! | `shards` | queues over shards and by themselves |
//! | `burst`, `idle` | how a listener scales with a burst; what idle ones cost |
//! | `pickup` | how soon an idle listener starts to handle a message |
//! | `listener` | a listener and a loop over `accept`; ten thousand handlers that wait |
//! | `loopback` | an HTTP server that imitates Azure's queues at little cost |
//! | `child` | work in child processes of this program |
//! | `statements` | what clients of PostgreSQL execute |
//! | `tasks` | the same work in many concurrent tasks |
//! | `meter`, `memory` | the rate, processor time and requests of a workload; the memory of this process |
//! | `report` | medians and ratios, as tables, JSON, plots, and in the documentation |

mod azure;
mod backlog;
mod batches;
mod bloat;
mod burst;
mod child;
mod envelope;
mod groups;
mod idle;
mod inspect;
mod instructions;
mod keys;
mod large;
mod listener;
mod loopback;
mod memory;
mod meter;
mod nothing;
mod ours;
mod packs;
mod page;
mod peers;
mod pickup;
mod postgres;
mod processes;
mod raw;
mod report;
mod sdk;
mod server;
mod serving;
mod shards;
mod sqlite;
mod statements;
mod tasks;
mod waits;
mod wire;
mod writer;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use report::{Report, Table};
use sqlite::Synchronous;

/// Measures messages per second of submit, accept + complete and a listener, of the bare engines, and of other queues.
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
    dir: Option<PathBuf>,
    /// Numbers of waiting messages in the benchmarks `backlog` and `inspect`.
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000",
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    backlogs: Vec<u32>,
    /// Writes the figures as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Shows what changed since the run in this JSON file.
    #[arg(long)]
    compare: Option<PathBuf>,
    /// Writes tables and plots into `docs`.
    #[arg(long, conflicts_with = "quick")]
    write_docs: bool,
    /// Measures nothing, and uses the figures of the run in this JSON file.
    #[arg(long, conflicts_with_all = ["engines", "quick", "json"])]
    from: Option<PathBuf>,
    /// Performs this work and ends. The benchmark of instructions runs itself so.
    #[arg(long, hide = true)]
    perform: Option<instructions::Counted>,
    /// The number of messages to perform the work for.
    #[arg(long, hide = true, default_value_t = 1)]
    messages: u32,
    /// Waits for messages at this URL and says when each is handled, as the other process of the benchmark of pick-ups.
    #[arg(long, hide = true)]
    wait_on: Option<String>,
    /// The NATS server that wakes the process that waits.
    #[arg(long, hide = true, requires = "wait_on")]
    woken_by: Option<String>,
    /// Serves queues that store nothing, as the other process of the benchmark of the server.
    #[arg(long, hide = true)]
    serve_nothing: bool,
    /// Does this work instead, as the child process of a benchmark.
    #[arg(long, hide = true)]
    child: Option<child::Job>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Ten thousand handlers that wait a second each, on memory.
    // First, because the peak memory is that of the whole process so far.
    Handlers,
    /// Instructions per message on memory, counted by valgrind.
    Instructions,
    /// An envelope, and plain `serde_json` of its payload.
    Envelope,
    /// SQLite with `synchronous=FULL`: ours, a bare writer thread, and bare `rusqlite` loops.
    Sqlite,
    /// As `sqlite`, with `synchronous=NORMAL`.
    Normal,
    /// PostgreSQL: ours, and a bare connection with as many messages in each statement; what our connections wait for.
    Postgres,
    /// Ten million messages through a queue on PostgreSQL, while a snapshot is held for a time; only if it is named.
    Bloat,
    /// `submit_all` and a bare `rusqlite` loop, on SQLite.
    Bulk,
    /// Large messages: as they are, compressed, attached, and in a folder, on SQLite.
    Large,
    /// Handlers of one message and of a hundred, with a transaction each, on SQLite.
    Batches,
    /// Messages of one key handled one at a time, by a listener and by locks, on SQLite.
    Keys,
    /// Messages of groups on SQLite and PostgreSQL, beside messages without, and beside a long backlog of one group
    Groups,
    /// Messages in packs and by themselves, on SQLite.
    Packs,
    /// Queues over shards and by themselves, on SQLite, and at the limits of queues of the server.
    Shards,
    /// Two processes, compared with one process, on one SQLite file.
    Processes,
    /// Consuming and counting with many waiting messages, and the bytes of each.
    Backlog,
    /// The command line `queues` with many waiting messages: how soon it answers, and its memory.
    Inspect,
    /// The mosaic's page and its command line: how soon the default picture is done.
    Page,
    /// A listener and a loop over `accept` and `complete`, on memory and SQLite.
    Listener,
    /// From `submit` to the handler of an idle listener: on memory, SQLite and PostgreSQL, in one process and in two, and
    /// on Azurite with wake-ups by NATS.
    Pickup,
    /// A burst on an idle queue, on SQLite: the listener's tasks and the queue's depth over time.
    Burst,
    /// The processor time, threads and memory of idle listeners, on SQLite; the statements of one on PostgreSQL.
    Idle,
    /// Queues of other projects, on SQLite and on Redis, and ours.
    Peers,
    /// Queues of other projects on PostgreSQL, a bare connection, and ours.
    PostgresPeers,
    /// Ours and the bare Azure SDK, on a minimal loopback server.
    Http,
    /// Ours and the bare Azure SDK, on Azurite.
    Azurite,
    /// The server of `queues serve` on SQLite, beside Azurite and beside itself on an engine that does nothing, through the
    /// SDK and a bare client.
    Server,
    /// The memory of this server with up to a million messages, and with idle connections.
    ServerMemory,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let options = Options::parse();
    if let Some(work) = options.perform {
        return instructions::perform(work, options.messages);
    }
    if options.serve_nothing {
        return nothing::serve();
    }
    if let Some(job) = &options.child {
        return child::perform(job);
    }
    if let Some(url) = &options.wait_on {
        return pickup::wait(url, options.woken_by.as_deref());
    }
    // Before hours of measuring.
    let earlier = options.compare.as_deref().map(Report::read).transpose()?;
    let report = match &options.from {
        Some(path) => Report::read(path)?,
        None => options.measure()?,
    };
    if let Some(earlier) = earlier {
        println!("\n{}", report::compare(&report, &earlier));
    }
    if options.write_docs {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
        report::write_docs(&report, docs.as_ref())?;
    }
    Ok(())
}

impl Engine {
    fn measure(self, options: &Options) -> Outcome<Vec<Table>> {
        match self {
            Self::Handlers => listener::measure_waiting(options),
            Self::Instructions => instructions::measure(options),
            Self::Envelope => envelope::measure(options),
            Self::Sqlite => sqlite::measure(options, Synchronous::Full),
            Self::Normal => sqlite::measure(options, Synchronous::Normal),
            Self::Postgres => {
                let mut tables = postgres::measure(options)?;
                tables.extend(waits::measure(options)?);
                Ok(tables)
            }
            Self::Bloat => bloat::measure(options),
            Self::Bulk => sqlite::measure_bulk(options),
            Self::Large => {
                let mut tables = large::measure(options)?;
                tables.extend(large::measure_beside(options)?);
                Ok(tables)
            }
            Self::Batches => batches::measure(options),
            Self::Keys => keys::measure(options),
            Self::Groups => groups::measure(options),
            Self::Packs => packs::measure(options),
            Self::Shards => shards::measure(options),
            Self::Processes => processes::measure(options),
            Self::Backlog => backlog::measure(options),
            Self::Inspect => inspect::measure(options),
            Self::Page => page::measure(options),
            Self::Listener => listener::measure(options),
            Self::Pickup => pickup::measure(options),
            Self::Burst => burst::measure(options),
            Self::Idle => {
                let mut tables = idle::measure(options)?;
                tables.extend(idle::measure_on_postgres(options)?);
                Ok(tables)
            }
            Self::Peers => peers::measure(options, &peers::LOCAL),
            Self::PostgresPeers => peers::measure(options, &peers::ON_POSTGRES),
            Self::Http => azure::measure_on_loopback(options),
            Self::Azurite => azure::measure_on_azurite(options),
            Self::Server => server::measure(options),
            Self::ServerMemory => server::measure_memory(options),
        }
    }
}

impl Options {
    /// Runs the chosen benchmarks, and prints each table when it is done. The figures of those that were done are
    /// kept if a later one fails.
    fn measure(&self) -> Outcome<Report> {
        let scratch = self.scratch()?;
        let mut report = Report::new(self.repeatable(), *self.rounds().end(), scratch.path());
        for engine in Engine::value_variants() {
            let is_asked_for = match engine {
                Engine::Bloat => false,
                _ => self.engines.is_empty(),
            };
            if !is_asked_for && !self.engines.contains(engine) {
                continue;
            }
            for table in engine.measure(self)? {
                println!("\n{}: {}\n\n{table}", table.title, table.unit);
                report.tables.push(table);
            }
            if let Some(path) = &self.json {
                report.write(path)?;
            }
        }
        Ok(report)
    }

    /// The command that repeats this run, without what is only about files.
    fn repeatable(&self) -> String {
        let engines = self.engines.iter().filter_map(Engine::to_possible_value);
        let mut words: Vec<String> = engines.map(|engine| engine.get_name().to_owned()).collect();
        if self.quick {
            words.push("--quick".to_owned());
        }
        words.insert(0, "cargo xtask bench".to_owned());
        words.join(" ")
    }

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_smoke_test_does_not_overwrite_the_documentation() {
        for allowed in [["--write-docs", "sqlite"], ["--quick", "sqlite"]] {
            Options::try_parse_from([&["bench"], &allowed[..]].concat()).expect("allowed");
        }
        let refused = ["bench", "--quick", "--write-docs"];
        Options::try_parse_from(refused).expect_err("a quick run");
    }
}

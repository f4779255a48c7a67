//! Bills the tenants of a provider each month, with several processes, kills some of them, and checks every invoice.
//!
//! On SQLite, the rows of a step and the acknowledgement of its messages are one transaction. On Azure, the rows are
//! committed first, and each step can be repeated: its rows have keys.

mod agent;
mod books;
mod chart;
mod cost;
mod judge;
mod messages;
mod processes;
mod role;
mod roles;
mod run;
mod tariff;
#[cfg(test)]
mod tests;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use tracing_subscriber::EnvFilter;

/// Bills tenants with several processes, kills some of them, and checks every invoice to the cent.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one role until the end of the standard input.
    #[command(hide = true)]
    Role {
        kind: Kind,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Args)]
struct Run {
    /// Number of usage records
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = value_parser!(u32).range(..=10_000_000))]
    records: u32,
    /// Number of tenants
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = value_parser!(u32).range(1..=100_000))]
    tenants: u32,
    /// Number of processes that are killed
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// Greatest number of worker processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Seconds from its submission within which 99 of 100 invoices are written; otherwise the run fails
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    within: u32,
    /// Seed of the usage and of the kills; by default a random one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// URL of the queues; by default four shards in a SQLite file
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// SVG file for the chart of the run
    #[arg(long, value_name = "FILE", default_value = "billing.svg")]
    plot: PathBuf,
    /// Empty or missing folder for the SQLite file; by default a temporary one
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

/// Where the processes of a run find queues and tables.
#[derive(Debug, Clone, Args)]
struct Place {
    #[arg(long)]
    url: String,
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    workers: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Kind {
    Initiator,
    Worker,
    Controller,
    Agent,
}

impl Kind {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let log = tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env());
    log.with_writer(std::io::stderr).init();
    let done = match arguments.command {
        Some(Command::Role { kind, place }) => role::role(kind, &place),
        None => run::run(&arguments.run),
    };
    if let Err(error) = done {
        eprintln!("Error: {}", error.chain());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

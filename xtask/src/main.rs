//! The project's own commands.
//!
//! | module | contents |
//! |---|---|
//! | `steps` | the steps of `cargo xtask test` and `cargo xtask check`: a row each |
//! | `test` | runs steps, some beside each other |
//! | `step` | one step: its command line, and whether it may be skipped |
//! | `built` | the programs of tests that a build has built |
//! | `summary` | the outcome of each step, and of the run |
//! | `azurite` | installs the emulator of Azure Storage that suites need |
//! | `python` | installs the Python packages that a suite needs |
//! | `browser` | installs what drives a browser, and a browser if there is none |
//! | `npm` | installs packages of npm |
//! | `bench` | `cargo xtask bench` |
//! | `crash` | `cargo xtask crash` |
//! | `fuzz` | `cargo xtask fuzz` |
//! | `weigh/` | `cargo xtask weigh` |
//! | `guides` | `cargo xtask guides` |
//! | `preload` | whether tests can record a program's writes |
//! | `dependencies` | `cargo xtask dependencies` |
//! | `oldest` | `cargo xtask oldest` |
//! | `release` | `cargo xtask release` |
//! | `archives` | packs the command line for those who build nothing |
//! | `mount` | whether tests can mount a file system of their own |
//! | `cargo` | the cargo that runs all steps, and its target directory |
//! | `program` | runs and measures other programs, and checks whether they are installed |

mod archives;
mod azurite;
mod bench;
mod browser;
mod built;
mod cargo;
mod crash;
mod debian;
mod dependencies;
mod fuzz;
mod guides;
mod mount;
mod npm;
mod oldest;
mod peers;
mod preload;
mod program;
mod python;
mod release;
mod step;
mod steps;
mod summary;
mod test;
mod weigh;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::test::Choice;

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Checks what is quick to check, to the end.
    Check,
    /// Checks everything that does not take long, to the end.
    Test {
        /// Runs only the steps whose names contain this text, and what they need.
        only: Option<String>,
        /// Runs all steps, as CI does: also kills, instructions, migrations, a browser and more sets of features.
        #[arg(long, conflicts_with = "only")]
        all: bool,
    },
    /// Measures the framework against a bare engine, in a release build.
    Bench {
        /// Arguments of the benchmark: `--quick`, `--rounds 5`, …; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Counts code, names, words and what should not be, and fails if that is more than `docs/weight.md` says.
    Weigh(weigh::Then),
    /// Checks the licences, origins and versions of the dependencies by `deny.toml`.
    Dependencies,
    /// Checks the published packages with the oldest dependencies that their manifests allow.
    Oldest,
    /// Checks what would be published, and packs the command line into `target/release-archives`. Publishes nothing.
    Release {
        /// Does only this.
        only: Option<release::Part>,
    },
    /// Copies the guides into the package `storage-queues`, whose documentation shows them.
    Guides,
    /// Feeds the server's readers of requests, signatures and XML with inputs that look for a failure.
    Fuzz {
        /// How long each of the three is fed.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Kills processes, loses power, fills a disk and harms requests for longer than `test --all` does, and looks for
    /// growth over more messages.
    Crash {
        /// Only the tests whose names contain this, such as `soak`, or `backlog` with `--times 100` for ten million
        /// messages.
        only: Option<String>,
        /// The seed that an earlier run has printed; default: a random one.
        #[arg(long)]
        seed: Option<u64>,
        /// How many times as many kills, power losses, harmed requests, messages and rounds as in `test --all`.
        #[arg(long, default_value_t = 20)]
        times: u32,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Check => test::run(steps::CHECK, Choice::All),
        Task::Test {
            only: Some(only), ..
        } => test::run(steps::TEST, Choice::Named(&only)),
        Task::Test { all: true, .. } => test::run(steps::TEST, Choice::All),
        Task::Test { .. } => test::run(steps::TEST, Choice::Short),
        Task::Bench { arguments } => bench::run(&arguments),
        Task::Weigh(then) => weigh::run(then),
        Task::Dependencies => dependencies::run(),
        Task::Oldest => oldest::run(),
        Task::Release { only } => release::run(only),
        Task::Guides => guides::run(),
        Task::Fuzz { seconds } => fuzz::run(seconds),
        Task::Crash { only, seed, times } => crash::run(only.as_deref(), seed, times),
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn an_unknown_task_is_refused_with_the_usage() {
        for wrong in [&["cargo xtask", "tests"][..], &["cargo xtask"]] {
            let error = Arguments::try_parse_from(wrong).expect_err("refused");
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
            assert!(error.to_string().contains("Usage: cargo xtask"), "{error}");
        }
        let error = Arguments::try_parse_from(["cargo xtask", "test", "--fast"]);
        let error = error.expect_err("`test` has no such option");
        assert_eq!(error.kind(), ErrorKind::UnknownArgument);
    }

    #[test]
    fn the_arguments_of_the_benchmark_are_passed_on_unchanged() {
        let line = ["cargo xtask", "bench", "--quick", "--rounds", "5"];
        let parsed = Arguments::try_parse_from(line).expect("allowed");
        let Task::Bench { arguments } = parsed.task else {
            panic!("{parsed:?}")
        };
        assert_eq!(arguments, ["--quick", "--rounds", "5"]);
    }
}

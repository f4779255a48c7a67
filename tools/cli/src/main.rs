//! Looks into queues on any storage, and mends what is wrong with their messages.
//!
//! | module | does |
//! |---|---|
//! | `arguments` | the command line |
//! | `session` | what a command works with: the storage, the output, the answers to questions |
//! | `storage` | opening what the URL names |
//! | `input` | files and standard input, as text; what is something else is named |
//! | `commands` | one module for each command |
//! | `output` | text that is safe on a terminal, tables, JSON, progress |
//! | `failure` | what is reported, and the exit code |

mod arguments;
mod commands;
mod failure;
mod input;
mod output;
mod session;
mod storage;

use std::process::{self, ExitCode};
use std::time::Duration;

use arguments::Arguments;
use clap::{ColorChoice, Parser as _};
use failure::{Exit, Failure};
use tokio::runtime::Runtime;

/// The time that a command has to end after Ctrl-C, unless it waits for a person or a file.
const GRACE: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            return Failure::new(Exit::Failed, format!("failed to start: {error}")).report();
        }
    };
    let code = runtime.block_on(run());
    // A check of a file that was interrupted may still block a thread.
    runtime.shutdown_background();
    code
}

async fn run() -> ExitCode {
    let arguments = Arguments::parse();
    output::log();
    let colors = match arguments.general.color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    colors.write_global();
    // A read from a terminal blocks the thread that would notice it.
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            tokio::time::sleep(GRACE).await;
            Failure::interrupted().report();
            process::exit(Exit::Interrupted as i32);
        }
    });
    let ended = tokio::select! {
        ended = commands::run(arguments) => ended,
        _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

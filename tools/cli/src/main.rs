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

use arguments::{Arguments, Command};
use clap::{ColorChoice, Parser as _};
use failure::{Exit, Failure};
use queue_runtime::service::{StopSignal, StopSignals};
use tokio::runtime::Runtime;

/// The time that a command has to end after a signal, unless it waits for a person or a file.
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

/// Says that a signal has ended the command, and returns the exit code.
fn stopped(signal: StopSignal) -> u8 {
    Failure::new(Exit::Failed, format!("stopped by {signal}")).report();
    signal.exit_code()
}

async fn run() -> ExitCode {
    let arguments = Arguments::parse();
    // A server finishes what it has begun.
    let (serves, logs_requests) = match &arguments.command {
        Command::Serve(serve) => (true, serve.logs_requests()),
        _ => (false, false),
    };
    output::log(logs_requests);
    let colors = match arguments.general.color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    colors.write_global();
    let (mut signals, mut unnoticed) = match (StopSignals::new(), StopSignals::new()) {
        (Ok(signals), Ok(unnoticed)) => (signals, unnoticed),
        (Err(error), _) | (_, Err(error)) => {
            return Failure::new(Exit::Failed, format!("failed to start: {error}")).report();
        }
    };
    if serves {
        drop((signals, unnoticed));
        return ended(commands::run(arguments).await);
    }
    // A read from a terminal blocks the thread that would notice signals.
    tokio::spawn(async move {
        let signal = unnoticed.next().await;
        tokio::time::sleep(GRACE).await;
        process::exit(stopped(signal).into());
    });
    tokio::select! {
        result = commands::run(arguments) => ended(result),
        signal = signals.next() => stopped(signal).into(),
    }
}

fn ended(result: failure::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

//! Looks into queues on any storage, and mends what is wrong with their messages.
//!
//! | module | does |
//! |---|---|
//! | `arguments` | the command line |
//! | `session` | what a command works with: the storage, the output, the answers to questions |
//! | `storage` | opening what the URL names |
//! | `commands` | one module for each command |
//! | `output` | text that is safe on a terminal, tables, JSON, progress |
//! | `failure` | what is reported, and the exit code |

mod arguments;
mod commands;
mod failure;
mod output;
mod session;
mod storage;

use std::process::ExitCode;

use arguments::Arguments;
use clap::{ColorChoice, Parser as _};
use failure::Failure;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    output::log();
    let colors = match arguments.general.color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    colors.write_global();
    let ended = tokio::select! {
        ended = commands::run(arguments) => ended,
        _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

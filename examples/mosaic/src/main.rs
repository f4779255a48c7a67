//! Makes photo mosaics: all in one process, or one role in each.

mod cli;

use std::process::ExitCode;

use clap::Parser as _;
use cli::{Arguments, Bars, Command};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let bars = Bars::default();
    let ended = match arguments.command() {
        Command::Run(arguments) => {
            cli::log(&bars, "warn");
            cli::run(arguments, bars).await
        }
        Command::Submit(arguments) => {
            cli::log(&bars, "warn");
            cli::submit(arguments, bars).await
        }
        Command::Role(arguments) => {
            cli::log(&bars, "mosaic=info,warn");
            cli::role(arguments).await
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}", failure.chain());
            ExitCode::FAILURE
        }
    }
}

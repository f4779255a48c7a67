//! Makes photo mosaics: all in one process, or one role in each.

mod cli;

use clap::Parser as _;
use cli::{Arguments, Bars, Command, QUIET};

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let bars = Bars::new();
    let command = arguments.command();
    let filter = match &command {
        Command::Role(_) => "mosaic=info,queue_agent=info,warn",
        #[cfg(feature = "web")]
        Command::Serve(_) => "warn",
        _ => QUIET,
    };
    cli::log(&bars, filter);
    let (operation, result) = match command {
        Command::Run(arguments) => ("make the mosaic", cli::run(arguments, bars).await),
        Command::Submit(arguments) => ("make the mosaic", cli::submit(arguments, bars).await),
        Command::Role(arguments) => ("run the role", cli::role(arguments).await),
        #[cfg(feature = "web")]
        Command::Serve(arguments) => ("serve the page", cli::serve(arguments).await),
        Command::Status(arguments) => ("list the requests", cli::status(arguments).await),
        Command::Clean(arguments) => ("clean up", cli::clean(arguments).await),
    };
    if let Err(failure) = result {
        eprintln!("error: failed to {operation}: {}", failure.chain());
        // All guards of temporary files are dropped. Dropping the runtime, too, would wait for work on its blocking
        // threads, whose result is not needed.
        std::process::exit(1);
    }
}

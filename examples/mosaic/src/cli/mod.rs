//! The command line.

mod agent;
mod arguments;
mod bars;
mod job;
mod location;
mod role;
mod run;
#[cfg(feature = "web")]
mod serve;
mod status;

use arguments::{Arguments, Command};
use bars::{Bars, QUIET};
use clap::Parser as _;

/// Does what the command line of this process says, on a runtime of its own, and exits with 1 if that fails.
#[tokio::main]
pub async fn main() {
    let arguments = Arguments::parse();
    let bars = Bars::new();
    let command = arguments.command();
    let filter = match &command {
        Command::Role(_) => "mosaic=info,queue_agent=info,warn",
        #[cfg(feature = "web")]
        Command::Serve(_) => "warn",
        _ => QUIET,
    };
    bars::log(&bars, filter);
    let (operation, result) = match command {
        Command::Run(arguments) => ("make the mosaic", run::run(arguments, bars).await),
        Command::Submit(arguments) => ("make the mosaic", run::submit(arguments, bars).await),
        Command::Role(arguments) => ("run the role", role::role(arguments).await),
        #[cfg(feature = "web")]
        Command::Serve(arguments) => ("serve the page", serve::serve(arguments).await),
        Command::Status(arguments) => ("list the requests", status::status(arguments).await),
        Command::Clean(arguments) => ("clean up", status::clean(arguments).await),
    };
    if let Err(failure) = result {
        eprintln!("error: failed to {operation}: {}", failure.chain());
        // All guards of temporary files are dropped. Dropping the runtime, too, would wait for work on its blocking
        // threads, whose result is not needed.
        std::process::exit(1);
    }
}

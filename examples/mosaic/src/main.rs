//! Makes photo mosaics: all in one process, or one role in each.

mod cli;

use clap::Parser as _;
use cli::{Arguments, Bars, Command, QUIET};

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let bars = Bars::new();
    let (operation, result) = match arguments.command() {
        Command::Run(arguments) => {
            cli::log(&bars, QUIET);
            ("make the mosaic", cli::run(arguments, bars).await)
        }
        Command::Submit(arguments) => {
            cli::log(&bars, QUIET);
            ("make the mosaic", cli::submit(arguments, bars).await)
        }
        Command::Role(arguments) => {
            cli::log(&bars, "mosaic=info,queue_agent=info,warn");
            ("run the role", cli::role(arguments).await)
        }
        #[cfg(feature = "web")]
        Command::Serve(arguments) => {
            cli::log(&bars, "mosaic=warn,web_guard=warn,warn");
            ("serve the page", cli::serve(arguments).await)
        }
        Command::Status(arguments) => {
            cli::log(&bars, QUIET);
            ("list the requests", cli::status(arguments).await)
        }
        Command::Clean(arguments) => {
            cli::log(&bars, QUIET);
            ("clean up", cli::clean(arguments).await)
        }
    };
    if let Err(failure) = result {
        eprintln!("error: failed to {operation}: {}", failure.chain());
        // All guards of temporary files are dropped. The runtime is not: that would wait for work on its
        // blocking threads, whose result is not needed.
        std::process::exit(1);
    }
}

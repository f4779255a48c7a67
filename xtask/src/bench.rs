use std::process::ExitCode;

use crate::{azurite, cargo};

/// Builds the benchmark in release and runs it with these arguments. Without Azurite it says itself
/// which figures it leaves out.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if let Err(why) = azurite::installed() {
        eprintln!("there is no Azurite to measure on: {why}");
    }
    let status = cargo::command()
        .args(["run", "--release", "--package", "queue-bench", "--"])
        .args(arguments)
        // The Azure SDK makes an error for each header that a request lacks, and each would be given
        // a backtrace.
        .env("RUST_LIB_BACKTRACE", "0")
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("the benchmark failed: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("failed to start cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

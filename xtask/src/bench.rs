use std::process::ExitCode;

use crate::cargo;

/// Builds the benchmark in release and runs it with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let status = cargo::command()
        .args(["run", "--release", "--package", "queue-bench", "--"])
        .args(arguments)
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

use std::process::ExitCode;

use crate::{azurite, cargo};

/// Builds the benchmark in release mode and runs it with these arguments. Without Azurite the benchmark skips some
/// figures, and reports which.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if let Err(why) = azurite::ensure_installed() {
        eprintln!("Azurite is not available: {why}");
    }
    // The benchmarks `inspect`, `page` and `server` run the other packages.
    let mut build = cargo::command();
    build.args(["build", "--release"]);
    for package in ["queue-bench", "storage-queues-cli", "mosaic"] {
        build.args(["--package", package]);
    }
    if !build.status().is_ok_and(|status| status.success()) {
        eprintln!("the programs `queues` and `mosaic` are not built");
    }
    let mut command = cargo::command();
    command
        .args(["run", "--release", "--package", "queue-bench", "--"])
        .args(arguments)
        // The Azure SDK makes an error for each header that a request lacks, and each would capture a
        // backtrace.
        .env("RUST_LIB_BACKTRACE", "0");
    cargo::exit_code(&mut command, "the benchmark")
}

use std::process::ExitCode;

use crate::{azurite, cargo, preload};

/// Runs the crash suites for longer than `cargo xtask test` does: `times` as many kills, power losses and
/// harmed requests, and messages. With `only`, runs the tests whose names contain it.
pub(crate) fn run(only: Option<&str>, seed: Option<u64>, times: u32) -> ExitCode {
    let mut command = cargo::command();
    command.args(["test", "--package", "queue-crash", "--all-features"]);
    command.args(["--test", "kills", "--test", "stops", "--test", "growth"]);
    command.args(["--test", "redrive", "--test", "requests"]);
    command.args([
        "--test",
        "accounts",
        "--test",
        "shutdowns",
        "--test",
        "stores",
    ]);
    match preload::obstacle() {
        None => drop(command.args(["--test", "power"])),
        Some(why) => eprintln!("power loss is left out: {why}"),
    }
    match azurite::ensure_installed() {
        Ok(()) => drop(command.args(["--test", "harm"])),
        Err(why) => eprintln!("harmed requests are left out: {why}"),
    }
    command.args(["--", "--nocapture"]).args(only);
    command.env("CRASH_TIMES", times.to_string());
    command.envs(seed.map(|seed| ("CRASH_SEED", seed.to_string())));
    cargo::exit_code(&mut command, "the crash suites")
}

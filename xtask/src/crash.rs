use std::process::ExitCode;

use crate::{cargo, preload};

/// Runs the crash suites for longer than `cargo xtask test` does: `times` as many kills and power
/// losses.
pub(crate) fn run(seed: Option<u64>, times: u32) -> ExitCode {
    let mut command = cargo::command();
    command.args(["test", "--package", "queue-crash", "--all-features"]);
    command.args(["--test", "kills", "--test", "stops"]);
    match preload::obstacle() {
        None => drop(command.args(["--test", "power"])),
        Some(why) => eprintln!("power loss is left out: {why}"),
    }
    command.args(["--", "--nocapture"]);
    command.env("CRASH_TIMES", times.to_string());
    command.envs(seed.map(|seed| ("CRASH_SEED", seed.to_string())));
    cargo::exit_code(&mut command, "the crash suites")
}

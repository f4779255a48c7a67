use std::process::ExitCode;

use crate::step::{postgres_clock_missing, postgres_disk_missing, postgres_missing};
use crate::{azurite, cargo, mount, preload};

/// The suite that needs nothing but the toolchain.
const SUITE: &str = "crash";

/// The module of [`SUITE`] with no more to do in a longer run: it drops a future at each of its awaits.
const COMPLETE: &str = "cancellation::";

/// A suite that may be left out, and the check that returns why.
type Obstacle = fn() -> Option<String>;

/// The suites that need more than the toolchain.
const WITH_NEEDS: [(&str, Obstacle); 6] = [
    ("full_disk", mount::obstacle),
    ("power", preload::obstacle),
    ("harm", || azurite::ensure_installed().err()),
    ("crash-postgres", postgres_missing),
    ("clock-postgres", postgres_clock_missing),
    ("disk-postgres", postgres_disk_missing),
];

/// The suite of an example whose processes are killed.
const EXAMPLE: [&str; 4] = ["--package", "billing", "--test", "billing-kills"];

/// Runs the crash suites for longer than `cargo xtask test --all`: `times` as many kills, power losses, harmed requests
/// and messages. With `only`, runs the tests whose names contain it.
pub(crate) fn run(only: Option<&str>, seed: Option<u64>, times: u32) -> ExitCode {
    let mut command = cargo::command();
    command.args(["test", "--package", "queue-crash", "--all-features"]);
    command.args(["--test", SUITE]).args(EXAMPLE);
    for (suite, obstacle) in WITH_NEEDS {
        match obstacle() {
            None => drop(command.args(["--test", suite])),
            Some(why) => eprintln!("the suite `{suite}` is left out: {why}"),
        }
    }
    command.args(["--", "--nocapture", "--skip", COMPLETE]);
    if azurite::ensure_installed().is_ok() {
        // Only what needs Azurite or PostgreSQL is ignored.
        command.arg("--include-ignored");
        if postgres_missing().is_some() {
            command.args(["--skip", "postgresql"]);
        }
    }
    command.args(only);
    command.env("CRASH_TIMES", times.to_string());
    command.envs(seed.map(|seed| ("CRASH_SEED", seed.to_string())));
    cargo::exit_code(&mut command, "the crash suites")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The suite with no more to do in a longer run: it opens a file by each path.
    const COMPLETE: &str = "mounts";

    #[test]
    fn every_suite_that_can_run_for_longer_is_run() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/crash/tests");
        let files = std::fs::read_dir(folder).expect("a folder");
        let suite = |path: &Path| path.file_stem().expect("a name").display().to_string();
        let suites: BTreeSet<_> = files
            .map(|file| suite(&file.expect("an entry").path()))
            .collect();
        let run = [SUITE, COMPLETE].into_iter();
        let run = run.chain(WITH_NEEDS.map(|(suite, _)| suite));
        let listed = run.map(str::to_owned).collect();
        assert_eq!(suites, listed);
    }
}

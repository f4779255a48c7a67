//! What CI runs.
//!
//! Dependencies are built twice: once for checking, which clippy and rustdoc share, and once for running.
//! All steps use one target directory and, except for the checks of feature sets, the whole workspace
//! with all features, so that no step invalidates what another built. What is quick comes first, and the longest
//! suites last.

use std::io::Write as _;
use std::process::{ExitCode, Output};
use std::time::{Duration, Instant};

use crate::step::{Need, Step};
use crate::summary::{Outcome, Summary, seconds};

const STEPS: &[Step] = &[
    check("format", &["fmt", "--all", "--check"]),
    check("weight", &["xtask", "weigh"]),
    check(
        "clippy",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        // `--all-targets` does not include targets with `test = false`.
        "clippy: tests that run only when named",
        &[
            "clippy",
            "--workspace",
            "--all-features",
            "--test",
            "azurite",
            "--test",
            "interop",
            "--test",
            "nats",
            "--test",
            "mosaic-azurite",
            "--test",
            "queue-cli-azurite",
            "--test",
            "mosaic-browser",
            "--test",
            "billing-kills",
            "--test",
            "power",
            "--test",
            "full_disk",
            "--test",
            "mounts",
            "--test",
            "harm",
            "--test",
            "crash",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        "clippy: queue-runtime without features",
        &[
            "clippy",
            "--package",
            "queue-runtime",
            "--no-default-features",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        // Without `testing`, which all tests have.
        "clippy: queue-runtime with its default features",
        &[
            "clippy",
            "--package",
            "queue-runtime",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        "clippy: queue-runtime with `azure` alone",
        &[
            "clippy",
            "--package",
            "queue-runtime",
            "--no-default-features",
            "--features",
            "azure",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        "clippy: the engines without the runtime",
        &[
            "clippy",
            "--package",
            "queue-azure",
            "--package",
            "queue-nats",
            "--package",
            "queue-sqlite",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        "clippy: queue-core without features",
        &[
            "clippy",
            "--package",
            "queue-core",
            "--no-default-features",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        "clippy: queue-core with `conformance`",
        &[
            "clippy",
            "--package",
            "queue-core",
            "--no-default-features",
            "--features",
            "conformance",
            "--",
            "-D",
            "warnings",
        ],
    ),
    check(
        "clippy: mosaic without features",
        &[
            "clippy",
            "--package",
            "mosaic",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    ),
    Step {
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        ..check(
            "docs",
            &["doc", "--workspace", "--all-features", "--no-deps"],
        )
    },
    suite(
        "dependencies",
        Need::Deny,
        // Not `advisories`, which come from the network.
        &[
            "deny",
            "--all-features",
            "check",
            "bans",
            "licenses",
            "sources",
        ],
    ),
    suite(
        "tests",
        Need::Nothing,
        &["test", "--no-fail-fast", "--workspace", "--all-features"],
    ),
    waiting(
        "a full disk and mounted files",
        Need::Mount,
        &[
            "test",
            "--no-fail-fast",
            "--workspace",
            "--all-features",
            "--test",
            "full_disk",
            "--test",
            "mounts",
        ],
    ),
    waiting(
        "tests with a NATS server",
        Need::Nats,
        &["test", "--workspace", "--all-features", "--test", "nats"],
    ),
    waiting(
        "tests with Python's packages",
        Need::AzuriteAndPython,
        &["test", "--workspace", "--all-features", "--test", "interop"],
    ),
    waiting(
        "the mosaic and the command line over Azurite",
        Need::Azurite,
        &[
            "test",
            "--no-fail-fast",
            "--workspace",
            "--all-features",
            "--test",
            "mosaic-azurite",
            "--test",
            "queue-cli-azurite",
        ],
    ),
    waiting(
        "payloads in a container of Azurite",
        Need::Azurite,
        &[
            "test",
            "--package",
            "queue-runtime",
            "--all-features",
            "--test",
            "it",
            "--",
            "--ignored",
            "payloads::azurite",
        ],
    ),
    waiting(
        "harmed requests",
        Need::Azurite,
        &["test", "--workspace", "--all-features", "--test", "harm"],
    ),
    waiting(
        "migrations by rusqlite_migration and sqlx",
        Need::Nothing,
        &[
            "test",
            "--locked",
            "--manifest-path",
            "tests/migrations/Cargo.toml",
            "--target-dir",
            "target/migrations",
        ],
    ),
    suite(
        "instructions of a message",
        Need::Valgrind,
        &["run", "--release", "--package", "queue-instructions"],
    ),
    suite(
        "the mosaic's page in a browser",
        Need::Browser,
        &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "mosaic-browser",
        ],
    ),
    suite(
        "power loss and failing writes",
        Need::Preload,
        &["test", "--workspace", "--all-features", "--test", "power"],
    ),
    waiting(
        "tests against Azurite",
        Need::Azurite,
        &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "azurite",
            "--",
            // They mostly wait for leases to expire.
            "--test-threads=24",
        ],
    ),
    waiting(
        "billing under kills",
        Need::Nothing,
        &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "billing-kills",
        ],
    ),
    waiting(
        "billing over Azurite under kills",
        Need::Azurite,
        &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "billing-kills",
            "--",
            "--ignored",
        ],
    ),
    waiting(
        "crashes",
        Need::Nothing,
        &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "crash",
            "--",
            // They mostly wait for processes and for the disk.
            "--test-threads=4",
        ],
    ),
];

/// Runs the steps in order, also after one that failed. Suites in a row that mostly wait run beside each other.
pub(crate) fn run() -> ExitCode {
    let mut summary = Summary {
        under_ci: is_set("CI"),
        rows: Vec::new(),
        took: Duration::ZERO,
    };
    let started = Instant::now();
    let together = |one: &Step, other: &Step| one.waits && other.waits;
    for steps in STEPS.chunk_by(together) {
        for (at, step) in (summary.rows.len() + 1..).zip(steps) {
            let of = STEPS.len();
            let line = step.shell_line();
            eprintln!("\n── {at} of {of}: {} ── {line}", step.name);
        }
        let ended = steps.iter().zip(run_steps(steps));
        let ended = ended.map(|(step, (outcome, took))| (*step, outcome, took));
        summary.rows.extend(ended);
    }
    summary.took = started.elapsed();
    eprint!("{summary}");
    if summary.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs steps beside each other, and prints what each has written when all before it have ended.
fn run_steps(steps: &[Step]) -> Vec<(Outcome, Duration)> {
    let ready = steps.iter().map(|step| (step, step.obstacle()));
    let ready: Vec<_> = ready.collect();
    std::thread::scope(|scope| {
        let alone = steps.len() == 1;
        let running = ready.into_iter().map(|(step, obstacle)| {
            let run = move || {
                let started = Instant::now();
                let (outcome, output) = match obstacle {
                    Some(why) => (Outcome::Skipped(why), None),
                    None => run_step(step, alone),
                };
                (outcome, output, started.elapsed())
            };
            (step, scope.spawn(run))
        });
        let running: Vec<_> = running.collect();
        let ended = running.into_iter().map(|(step, running)| {
            let (outcome, output, took) = running.join().expect("no panic");
            if let Some(output) = output {
                // The step has failed or not, whether or not anybody reads this.
                let _ = std::io::stdout().write_all(&output.stdout);
                let _ = std::io::stderr().write_all(&output.stderr);
            }
            match &outcome {
                Outcome::Skipped(why) => eprintln!("   SKIPPED: {}: {why}", step.name),
                _ => eprintln!("   {}: {}", step.name, seconds(took)),
            }
            (outcome, took)
        });
        ended.collect()
    })
}

/// Runs a step. Returns what it has written, unless it runs alone, which shows it at once.
fn run_step(step: &Step, alone: bool) -> (Outcome, Option<Output>) {
    let mut command = step.command();
    let ended = if alone {
        command.status().map(|status| (status, None))
    } else {
        let output = command.output();
        output.map(|output| (output.status, Some(output)))
    };
    match ended {
        Ok((status, output)) if status.success() => (Outcome::Ran, output),
        Ok((status, output)) => (Outcome::Failed(status.to_string()), output),
        Err(error) => {
            let why = format!("it did not start: {error}");
            (Outcome::Failed(why), None)
        }
    }
}

/// Returns whether a variable is set, and neither empty, `0` nor `false`.
fn is_set(name: &str) -> bool {
    let value = std::env::var_os(name).unwrap_or_default();
    !(value.is_empty() || value == "0" || value == "false")
}

const fn check(name: &'static str, arguments: &'static [&'static str]) -> Step {
    Step {
        name,
        need: Need::Nothing,
        arguments,
        environment: &[],
        waits: false,
    }
}

const fn suite(name: &'static str, need: Need, arguments: &'static [&'static str]) -> Step {
    Step {
        need,
        ..check(name, arguments)
    }
}

/// A suite that mostly waits, so that it runs beside others.
const fn waiting(name: &'static str, need: Need, arguments: &'static [&'static str]) -> Step {
    Step {
        waits: true,
        ..suite(name, need, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_set_and_every_suite_is_linted_and_warnings_are_errors() {
        let lints: Vec<_> = STEPS
            .iter()
            .filter(|step| step.arguments[0] == "clippy")
            .collect();
        assert_eq!(lints.len(), 9);
        for step in lints {
            assert!(
                step.arguments.ends_with(&["--", "-D", "warnings"]),
                "{step:?}"
            );
        }
    }

    #[test]
    fn steps_beside_each_other_all_run_and_say_how_they_ended() {
        let steps = [
            waiting("one", Need::Nothing, &["--version"]),
            waiting("two", Need::Nothing, &["no-such-subcommand"]),
            waiting("three", Need::Nothing, &["--version"]),
        ];
        let ended = run_steps(&steps);
        let ended: Vec<_> = ended.into_iter().map(|(outcome, _)| outcome).collect();
        assert_eq!([&ended[0], &ended[2]], [&Outcome::Ran, &Outcome::Ran]);
        assert!(matches!(ended[1], Outcome::Failed(_)), "{ended:?}");
    }

    #[test]
    fn no_two_steps_share_a_name() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }
}

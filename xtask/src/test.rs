//! What CI runs.
//!
//! Dependencies are built twice: once for checking, which clippy and rustdoc share, and once for running.
//! All steps use one target directory and, except for the checks of feature sets, the whole workspace
//! with all features, so that no step invalidates what another built.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::step::{Need, Part, Step};
use crate::summary::{Outcome, Summary, seconds};

const STEPS: &[Step] = &[
    check("format", &["fmt", "--all", "--check"]),
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
            "power",
            "--test",
            "full_disk",
            "--test",
            "mounts",
            "--test",
            "harm",
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
        name: "tests",
        part: Part::Suite(Need::Nothing),
        arguments: &["test", "--workspace", "--all-features"],
        environment: &[],
    },
    Step {
        name: "power loss and failing writes",
        part: Part::Suite(Need::Preload),
        arguments: &["test", "--workspace", "--all-features", "--test", "power"],
        environment: &[],
    },
    Step {
        name: "a full disk and mounted files",
        part: Part::Suite(Need::Mount),
        arguments: &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "full_disk",
            "--test",
            "mounts",
        ],
        environment: &[],
    },
    Step {
        name: "tests against Azurite",
        part: Part::Suite(Need::Azurite),
        arguments: &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "azurite",
            "--",
            // They mostly wait for leases to expire.
            "--test-threads=24",
        ],
        environment: &[],
    },
    Step {
        name: "harmed requests",
        part: Part::Suite(Need::Azurite),
        arguments: &["test", "--workspace", "--all-features", "--test", "harm"],
        environment: &[],
    },
    Step {
        name: "tests with Python's packages",
        part: Part::Suite(Need::AzuriteAndPython),
        arguments: &["test", "--workspace", "--all-features", "--test", "interop"],
        environment: &[],
    },
    Step {
        name: "tests with a NATS server",
        part: Part::Suite(Need::Nats),
        arguments: &["test", "--workspace", "--all-features", "--test", "nats"],
        environment: &[],
    },
    Step {
        name: "mosaic over Azurite",
        part: Part::Suite(Need::Azurite),
        arguments: &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "mosaic-azurite",
        ],
        environment: &[],
    },
    Step {
        name: "migrations by rusqlite_migration and sqlx",
        part: Part::Suite(Need::Nothing),
        arguments: &[
            "test",
            "--locked",
            "--manifest-path",
            "tests/migrations/Cargo.toml",
            "--target-dir",
            "target/migrations",
        ],
        environment: &[],
    },
    Step {
        name: "docs",
        part: Part::Check,
        arguments: &["doc", "--workspace", "--all-features", "--no-deps"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    Step {
        name: "dependencies",
        part: Part::Tool {
            install: "cargo-deny",
        },
        arguments: &["deny", "--all-features", "check"],
        environment: &[],
    },
];

/// Runs the steps in order, up to the first that fails.
pub(crate) fn run() -> ExitCode {
    let mut summary = Summary {
        under_ci: is_set("CI"),
        rows: Vec::new(),
    };
    let mut failed = false;
    for (at, step) in STEPS.iter().enumerate() {
        if failed {
            summary.rows.push((*step, Outcome::NotRun, Duration::ZERO));
            continue;
        }
        eprintln!(
            "\n── {} of {}: {} ── {}",
            at + 1,
            STEPS.len(),
            step.name,
            step.shell_line()
        );
        let started = Instant::now();
        let outcome = run_step(step);
        let took = started.elapsed();
        match &outcome {
            Outcome::Skipped(why) => eprintln!("   SKIPPED: {why}"),
            _ => eprintln!("   {}: {}", step.name, seconds(took)),
        }
        failed = matches!(outcome, Outcome::Failed(_));
        summary.rows.push((*step, outcome, took));
    }
    eprint!("{summary}");
    if summary.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_step(step: &Step) -> Outcome {
    if let Some(why) = step.obstacle() {
        return Outcome::Skipped(why);
    }
    match step.command().status() {
        Ok(status) if status.success() => Outcome::Ran,
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(format!("it did not start: {error}")),
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
        part: Part::Check,
        arguments,
        environment: &[],
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
        assert_eq!(lints.len(), 8);
        for step in lints {
            assert!(
                step.arguments.ends_with(&["--", "-D", "warnings"]),
                "{step:?}"
            );
        }
    }

    #[test]
    fn no_two_steps_share_a_name() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }
}

//! The project's own commands. `cargo xtask test` is what CI runs.

use std::process::{Command, ExitCode};

const STEPS: &[&[&str]] = &[
    &["fmt", "--all", "--check"],
    &[
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ],
    &["test", "--workspace", "--all-features"],
];

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("test") => test(),
        _ => {
            eprintln!("usage: cargo xtask test");
            ExitCode::from(2)
        }
    }
}

fn test() -> ExitCode {
    for step in STEPS {
        eprintln!("── cargo {}", step.join(" "));
        match Command::new("cargo").args(*step).status() {
            Ok(status) if status.success() => {}
            Ok(status) => {
                eprintln!("cargo {} failed: {status}", step[0]);
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("cargo {} did not start: {error}", step[0]);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Returns whether a program is installed and runs.
pub(crate) fn is_installed(program: impl AsRef<OsStr>) -> bool {
    let mut command = Command::new(program);
    let status = command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Runs a command to its end. The error says that it failed to do `operation`, a verb phrase.
pub(crate) fn run(command: &mut Command, operation: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("failed to {operation}: {status}")),
        Err(error) => Err(format!("failed to {operation}: it did not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_not_installed_and_does_not_run() {
        assert!(!is_installed("no-such-program"));
        let error = run(&mut Command::new("no-such-program"), "make it");
        let error = error.expect_err("the program is missing");
        assert!(
            error.starts_with("failed to make it: it did not start: "),
            "{error}"
        );
    }
}

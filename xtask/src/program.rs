use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Whether a program is installed: it answers when asked for its version.
pub(crate) fn answers(program: impl AsRef<OsStr>) -> bool {
    let status = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Runs a command to its end, or says that `what` was not done and why.
pub(crate) fn run(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what}: {status}")),
        Err(error) => Err(format!("{what}: it did not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_does_not_answer_and_does_not_run() {
        assert!(!answers("no-such-program"));
        let told = run(&mut Command::new("no-such-program"), "nothing was made");
        let told = told.expect_err("it is missing");
        assert!(
            told.starts_with("nothing was made: it did not start: "),
            "{told}"
        );
    }
}

use std::env::consts::EXE_EXTENSION;
use std::io::{Error, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the test that runs alone.
const ALONE: &str = "QUEUE_TEST_ALONE";

/// Returns whether the calling test, with this name, is the only one of its process, as one must be that sets what holds
/// for a whole process; if not, runs it in a process of its own.
///
/// # Panics
///
/// If the test fails.
#[must_use]
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return true;
    }
    let mut process = Command::new(std::env::current_exe().expect("a program"));
    process.args(["--exact", test]).env(ALONE, test);
    let output = process.output().expect("it starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    // No test of that name would be a success, too.
    let has_run = stdout.contains("1 passed");
    assert!(output.status.success() && has_run, "{test}: {stdout}");
    false
}

/// Returns the path of a program of the workspace, which is in the folder of the build of the calling test.
///
/// # Errors
///
/// If the program is not built, since `cargo test` builds programs only for the tests of their own packages.
pub fn built(program: &str) -> Result<PathBuf, Error> {
    let this = std::env::current_exe()?;
    let path = |folder: &Path| folder.join(program).with_extension(EXE_EXTENSION);
    let mut paths = this.ancestors().skip(1).map(path);
    paths.find(|path| path.is_file()).ok_or_else(|| {
        Error::other(format!(
            "`{program}` is not built: `cargo build --workspace --all-features --bins`"
        ))
    })
}

/// Returns a command that runs its arguments as root of namespaces of their own, which these arguments of `unshare` create.
/// Returns `None` where this user may not create namespaces, and says so on the terminal.
///
/// # Panics
///
/// If this user may not create namespaces and `CI` is set: the test would pass there without anybody noticing that it
/// did not run.
#[must_use]
pub fn in_namespaces(kinds: &[&str]) -> Option<Command> {
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user"]).args(kinds);
        unshare
    };
    let why = match unshare().arg("true").output() {
        Ok(output) if output.status.success() => return Some(unshare()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let test = std::thread::current();
    let said = format!(
        "SKIPPED, all or a part of `{}`: `unshare {}` fails: {}",
        test.name().unwrap_or("a test"),
        kinds.join(" "),
        why.trim()
    );
    skip(&said, std::env::var("CI").ok().as_deref());
    None
}

/// Says what was skipped, or fails under CI.
fn skip(said: &str, ci: Option<&str>) {
    let is_ci = !matches!(ci, None | Some("" | "0" | "false"));
    assert!(!is_ci, "{said}");
    // Unlike `eprintln`, this is not kept back when the test passes.
    let _ = writeln!(std::io::stderr(), "{said}");
}

/// Returns the process id of the only child of a process, on Linux.
///
/// # Panics
///
/// Unless there is one child.
#[must_use]
pub fn only_child(parent: u32) -> i32 {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(children).expect("it runs");
    children.trim().parse().expect("it has one child")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_elsewhere_fails_under_ci() {
        for ci in [None, Some(""), Some("0"), Some("false")] {
            skip("SKIPPED, nothing: a test of what is said", ci);
        }
        let failed = std::panic::catch_unwind(|| skip("no namespaces", Some("true")));
        let said = failed.expect_err("it fails");
        assert_eq!(
            said.downcast_ref::<String>().map(String::as_str),
            Some("no namespaces")
        );
    }
}

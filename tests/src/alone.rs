use std::process::Command;

/// The variable that names the test that runs alone.
const ALONE: &str = "QUEUE_TEST_ALONE";

/// Returns whether the calling test, with this name, is the only one of its process, as one must be that sets what holds
/// for a whole process. If not, runs it in a process of its own.
///
/// # Panics
///
/// If the test fails there.
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

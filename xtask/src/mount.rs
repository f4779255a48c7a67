use std::process::Command;

use crate::program;

/// Returns the reason if tests cannot mount a file system in a namespace of their own.
pub(crate) fn obstacle() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("only Linux has namespaces of file systems".to_owned());
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "true"]);
    program::run(&mut unshare, "create a namespace of file systems").err()
}

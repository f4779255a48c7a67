use std::path::Path;
use std::process::Command;

use crate::program::{is_installed, run};

/// Has `apt-get` install a package, if this is root.
pub(crate) fn install(package: &str) -> Result<(), String> {
    if !is_root() || !is_installed("apt-get") {
        return Err("only root can have `apt-get` install it".to_owned());
    }
    eprintln!("   installing Debian's package {package}");
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut apt, &format!("run `apt-get {}`", arguments.join(" ")))
    };
    apt(&["update", "--quiet"])?;
    apt(&[
        "install",
        "--quiet",
        "--yes",
        "--no-install-recommends",
        package,
    ])
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// Makes sure that the library that sets the clock of a program is where the tests look for it. Returns the reason if it
/// is missing.
pub(crate) fn ensure_faketime() -> Result<(), String> {
    faketime(Path::new("/usr/lib"), || install("libfaketime"))
}

fn faketime(libraries: &Path, install: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let is_there = || {
        let folders = std::fs::read_dir(libraries).into_iter().flatten().flatten();
        let mut files = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
        files.any(|file| file.exists())
    };
    if is_there() {
        return Ok(());
    }
    let missing = "libfaketime is not installed; install Debian's package `libfaketime`";
    install().map_err(|error| format!("{missing} ({error})"))?;
    if is_there() {
        Ok(())
    } else {
        Err(missing.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_installed() {
        let nowhere = Path::new("/no/such/folder");
        for installed in [Ok(()), Err("no network".to_owned())] {
            let error = faketime(nowhere, || installed.clone());
            let error = error.expect_err("it is still missing");
            assert!(error.contains("package `libfaketime`"), "{error}");
            assert_eq!(error.contains("no network"), installed.is_err(), "{error}");
        }
    }
}

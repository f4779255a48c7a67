use std::path::Path;
use std::process::Command;

use crate::program::{is_installed, run};

/// Makes sure that there is PgBouncer. Returns the reason if it is missing.
pub(crate) fn ensure_pgbouncer() -> Result<(), String> {
    ensure("pgbouncer", || is_installed("pgbouncer"), install)
}

/// Makes sure that the library that sets the clock of a program is where the tests look for it. Returns the reason if it
/// is missing.
pub(crate) fn ensure_faketime() -> Result<(), String> {
    let is_there = || {
        let folders = Path::new("/usr/lib").read_dir().into_iter().flatten();
        let mut files = folders
            .flatten()
            .map(|folder| folder.path().join("faketime/libfaketime.so.1"));
        files.any(|file| file.exists())
    };
    ensure("libfaketime", is_there, install)
}

fn ensure(
    package: &str,
    is_there: impl Fn() -> bool,
    install: impl FnOnce(&str) -> Result<(), String>,
) -> Result<(), String> {
    if is_there() {
        return Ok(());
    }
    let missing = format!("Debian's package `{package}` is not installed");
    install(package).map_err(|error| format!("{missing} ({error})"))?;
    if is_there() { Ok(()) } else { Err(missing) }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_installed() {
        assert_eq!(ensure("cargo", || true, |_| panic!("it is there")), Ok(()));
        for installed in [Ok(()), Err("no network".to_owned())] {
            let error = ensure("clock", || false, |_| installed.clone());
            let error = error.expect_err("it is still missing");
            assert!(error.contains("package `clock`"), "{error}");
            assert_eq!(error.contains("no network"), installed.is_err(), "{error}");
        }
    }
}

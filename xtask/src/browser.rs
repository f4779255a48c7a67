use std::ffi::OsString;

use crate::program::is_installed;
use crate::{cargo, debian, npm};

/// The version that the tests were written against.
const PLAYWRIGHT: &str = "1.65.1";

/// The names of Chromium, in the order in which the tests look for them in the path.
const NAMES: &str = include_str!("../../examples/mosaic/tests/browser/chromium.txt");

/// Makes sure that there are `playwright-core` below the target directory, where npm installs it if necessary, and a
/// Chromium where the tests look for it: at `CHROMIUM`, or in the path, where root has `apt-get` install it if necessary.
/// Returns the reason if one is missing.
pub(crate) fn ensure_installed() -> Result<(), String> {
    let directory = cargo::target().join("browser");
    npm::ensure_installed("playwright-core", PLAYWRIGHT, &directory)?;
    chromium(std::env::var_os("CHROMIUM"), NAMES, || {
        debian::install("chromium")
    })
}

fn chromium(
    given: Option<OsString>,
    names: &str,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    if let Some(given) = given {
        return if is_installed(&given) {
            Ok(())
        } else {
            Err(format!("CHROMIUM is {given:?}, which does not run"))
        };
    }
    if names.lines().any(is_installed) {
        return Ok(());
    }
    let missing = "Chromium is not installed; install Debian's package `chromium`, or set CHROMIUM";
    install().map_err(|error| format!("{missing} ({error})"))?;
    if names.lines().any(is_installed) {
        Ok(())
    } else {
        Err(missing.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chromium_in_the_path_is_used_and_a_missing_one_installed() {
        let needless = || panic!("it is there");
        assert_eq!(chromium(None, "no-such-program\ncargo\n", needless), Ok(()));
        for installed in [Ok(()), Err("no network".to_owned())] {
            let error = chromium(None, "no-such-program\n", || installed.clone());
            let error = error.expect_err("it is still missing");
            assert!(error.contains("package `chromium`"), "{error}");
            assert_eq!(error.contains("no network"), installed.is_err(), "{error}");
        }
    }

    #[test]
    fn a_chromium_that_is_named_must_run() {
        let needless = || panic!("another one is not installed");
        let error = chromium(Some("no-such-program".into()), "cargo\n", needless);
        let error = error.expect_err("it is missing");
        assert!(error.contains("no-such-program"), "{error}");
    }
}

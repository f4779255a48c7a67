use std::path::Path;

use crate::{cargo, npm};

/// The version that the tests were written against, since they depend on its quirks.
const VERSION: &str = "3.35.0";

/// Makes sure that Azurite is installed where `queue_tests::azurite` looks for it: at `AZURITE`, or below
/// the target directory, where npm installs it if necessary. Returns the reason if there is none.
pub(crate) fn ensure_installed() -> Result<(), String> {
    if let Some(given) = std::env::var_os("AZURITE") {
        return if Path::new(&given).exists() {
            Ok(())
        } else {
            Err(format!("AZURITE is {given:?}, which does not exist"))
        };
    }
    npm::ensure_installed("azurite", VERSION, &cargo::target().join("azurite"))
}

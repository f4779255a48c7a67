use std::path::Path;
use std::process::Command;

use crate::cargo;
use crate::program::{is_installed, run};

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
    if !is_installed("node") {
        return Err("Azurite needs Node.js, which is not installed".to_owned());
    }
    let directory = cargo::target().join("azurite");
    if has_version(&directory) {
        return Ok(());
    }
    if !is_installed("npm") {
        return Err("the installation of Azurite needs npm, which is not installed".to_owned());
    }
    eprintln!("   installing azurite@{VERSION} in {}", directory.display());
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("failed to create {}: {error}", directory.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-save"])
        .arg("--prefix")
        .arg(&directory)
        .arg(format!("azurite@{VERSION}"));
    let operation = format!("install azurite@{VERSION} with npm");
    run(&mut npm, &operation)?;
    if has_version(&directory) {
        Ok(())
    } else {
        Err(format!("failed to {operation}: the package is missing"))
    }
}

fn has_version(directory: &Path) -> bool {
    let package = directory.join("node_modules/azurite/package.json");
    let wanted = format!("\"version\": \"{VERSION}\"");
    std::fs::read_to_string(package).is_ok_and(|package| package.contains(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_version_is_accepted() {
        let scratch = std::env::temp_dir().join(format!("azurite-{}", std::process::id()));
        let package = scratch.join("node_modules/azurite");
        std::fs::create_dir_all(&package).expect("a directory");
        assert!(!has_version(&scratch));
        for (version, expected) in [("3.34.0", false), (VERSION, true)] {
            let text = format!("{{\n  \"version\": \"{version}\"\n}}");
            std::fs::write(package.join("package.json"), text).expect("written");
            assert_eq!(has_version(&scratch), expected, "{version}");
        }
        std::fs::remove_dir_all(&scratch).expect("removed");
    }
}

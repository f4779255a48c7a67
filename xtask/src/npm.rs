use std::path::Path;
use std::process::Command;

use crate::program::{is_installed, run};

/// Makes sure that this version of a package of npm is installed below `directory`. Returns the reason if it is not.
pub(crate) fn ensure_installed(
    package: &str,
    version: &str,
    directory: &Path,
) -> Result<(), String> {
    if !is_installed("node") {
        return Err(format!("{package} needs Node.js, which is not installed"));
    }
    if has_version(package, version, directory) {
        return Ok(());
    }
    if !is_installed("npm") {
        return Err(format!(
            "the installation of {package} needs npm, which is not installed"
        ));
    }
    let wanted = format!("{package}@{version}");
    eprintln!("   installing {wanted} in {}", directory.display());
    std::fs::create_dir_all(directory)
        .map_err(|error| format!("failed to create {}: {error}", directory.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-save"])
        .arg("--prefix")
        .arg(directory)
        .arg(&wanted);
    let operation = format!("install {wanted} with npm");
    run(&mut npm, &operation)?;
    if has_version(package, version, directory) {
        Ok(())
    } else {
        Err(format!("failed to {operation}: the package is missing"))
    }
}

fn has_version(package: &str, version: &str, directory: &Path) -> bool {
    let installed = directory.join("node_modules").join(package);
    let wanted = format!("\"version\": \"{version}\"");
    std::fs::read_to_string(installed.join("package.json"))
        .is_ok_and(|package| package.contains(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_version_is_accepted() {
        let scratch = std::env::temp_dir().join(format!("npm-{}", std::process::id()));
        let package = scratch.join("node_modules/azurite");
        std::fs::create_dir_all(&package).expect("a directory");
        assert!(!has_version("azurite", "3.35.0", &scratch));
        for (version, expected) in [("3.34.0", false), ("3.35.0", true)] {
            let text = format!("{{\n  \"version\": \"{version}\"\n}}");
            std::fs::write(package.join("package.json"), text).expect("written");
            let found = has_version("azurite", "3.35.0", &scratch);
            assert_eq!(found, expected, "{version}");
        }
        std::fs::remove_dir_all(&scratch).expect("removed");
    }
}

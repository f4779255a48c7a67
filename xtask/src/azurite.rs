use std::path::Path;
use std::process::Command;

use crate::cargo;
use crate::program::{answers, run};

/// The version that the tests were written against: its quirks are part of what they know.
const VERSION: &str = "3.35.0";

/// Makes sure that there is an Azurite where `queue_tests::azurite` looks: at `AZURITE`, or below the
/// target directory, where npm installs it if need be. Otherwise says why there is none.
pub(crate) fn installed() -> Result<(), String> {
    if let Some(given) = std::env::var_os("AZURITE") {
        return match Path::new(&given).exists() {
            true => Ok(()),
            false => Err(format!("AZURITE names {given:?}, which does not exist")),
        };
    }
    if !answers("node") {
        return Err("Node.js, which Azurite runs on, is not installed".to_owned());
    }
    let directory = cargo::target().join("azurite");
    if is_there(&directory) {
        return Ok(());
    }
    if !answers("npm") {
        return Err("npm, which installs Azurite, is not installed".to_owned());
    }
    eprintln!("   installing azurite@{VERSION} in {}", directory.display());
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("{} cannot be made: {error}", directory.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-save"])
        .arg("--prefix")
        .arg(&directory)
        .arg(format!("azurite@{VERSION}"));
    let told = format!("npm did not install azurite@{VERSION}");
    run(&mut npm, &told)?;
    match is_there(&directory) {
        true => Ok(()),
        false => Err(told),
    }
}

fn is_there(directory: &Path) -> bool {
    let package = directory.join("node_modules/azurite/package.json");
    let wanted = format!("\"version\": \"{VERSION}\"");
    std::fs::read_to_string(package).is_ok_and(|package| package.contains(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_version_counts() {
        let scratch = std::env::temp_dir().join(format!("azurite-{}", std::process::id()));
        let package = scratch.join("node_modules/azurite");
        std::fs::create_dir_all(&package).expect("a directory");
        assert!(!is_there(&scratch));
        for (version, expected) in [("3.34.0", false), (VERSION, true)] {
            let text = format!("{{\n  \"version\": \"{version}\"\n}}");
            std::fs::write(package.join("package.json"), text).expect("written");
            assert_eq!(is_there(&scratch), expected, "{version}");
        }
        std::fs::remove_dir_all(&scratch).expect("removed");
    }
}

//! `cargo xtask release`: checks that the packages are ready to be published, as far as a program can tell. Publishing
//! is left to a person: nothing here does it.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

use serde_json::Value;

use crate::program;
use crate::{archives, cargo};

/// The parts of `cargo xtask release`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Checks the packages, and has cargo build each as it would be published.
    Packages,
    /// Packs the command line.
    Archives,
}

/// The licences, in the root and in each package.
pub(crate) const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// What a manifest must say. The registry itself refuses only a package without description or licence.
const STATED: [&str; 4] = ["description", "license", "readme", "rust_version"];

/// Checks the packages and makes the archives, or does only one of these.
pub(crate) fn run(only: Option<Part>) -> ExitCode {
    let done = match only {
        Some(Part::Packages) => check(),
        Some(Part::Archives) => archives::make(),
        None => check().and_then(|()| archives::make()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Checks all published packages, and has cargo do all but upload them.
fn check() -> Result<(), String> {
    let changelog = read("CHANGELOG.md")?;
    let mut problems = Vec::new();
    let mut asked = Ok(());
    for package in &published()? {
        let name = text(package, "name");
        let mut list = cargo::command();
        list.args(["package", "--list", "--allow-dirty", "--package", name]);
        problems.extend(unready(package, &cargo::output(&mut list)?, &changelog));
        if asked.is_ok() {
            asked = holder(package).map(|other| problems.extend(other));
        }
    }
    if let Err(why) = asked {
        eprintln!(
            "WARNING: NOBODY KNOWS WHETHER THE NAMES ARE FREE: cannot ask the registry: {why}"
        );
    }
    if !problems.is_empty() {
        return Err(problems.join("\nerror: "));
    }
    let mut publish = cargo::command();
    publish.args(["publish", "--workspace", "--dry-run", "--locked"]);
    // As in this workspace, so that dependencies are not built again.
    publish.env("CARGO_PROFILE_DEV_DEBUG", "false");
    program::run(&mut publish, "do all but publish the packages")
}

/// Reads a file in the root of the repository.
fn read(path: &str) -> Result<String, String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    fs::read_to_string(root.join(path)).map_err(|error| format!("failed to read {path}: {error}"))
}

/// The packages without `publish = false`, as `cargo metadata` describes them.
pub(crate) fn published() -> Result<Vec<Value>, String> {
    let mut metadata = cargo::command();
    metadata.args(["metadata", "--format-version=1", "--no-deps", "--locked"]);
    let metadata = serde_json::from_str::<Value>(&cargo::output(&mut metadata)?);
    let mut metadata = metadata.map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array_mut().map(std::mem::take);
    let mut packages = packages.ok_or("cargo has named no packages")?;
    packages.retain(|package| package["publish"].is_null());
    Ok(packages)
}

pub(crate) fn text<'a>(package: &'a Value, member: &str) -> &'a str {
    package[member].as_str().unwrap_or_default()
}

/// Returns what a package lacks, of which cargo would upload these files.
fn unready(package: &Value, files: &str, changelog: &str) -> Vec<String> {
    let (name, version) = (text(package, "name"), text(package, "version"));
    let unstated = STATED
        .iter()
        .filter(|member| text(package, member).is_empty());
    let mut problems: Vec<_> = unstated
        .map(|member| format!("{name}: its manifest has no `{member}`"))
        .collect();
    let is_missing = |file: &&&str| !files.lines().any(|line| line == **file);
    let missing = LICENCES.iter().filter(is_missing);
    problems.extend(missing.map(|file| format!("{name}: the package would have no {file}")));
    let mut titles = changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## "));
    if !titles.any(|title| title.split(' ').next() == Some(version)) {
        problems.push(format!("{name}: CHANGELOG.md has no entry for {version}"));
    }
    problems
}

/// Returns a problem if another project has the name of a package on the registry.
///
/// # Errors
///
/// If the registry cannot be asked.
fn holder(package: &Value) -> Result<Option<String>, String> {
    let (name, description) = (text(package, "name"), text(package, "description"));
    let mut info = Command::new(cargo::program());
    info.args(["info", "--registry", "crates-io", name]);
    // In this workspace, cargo would tell of the package here.
    info.current_dir(env::temp_dir());
    match cargo::output(&mut info) {
        Ok(there) => Ok((!there.contains(description)).then(|| {
            format!("{name}: the registry has a package of this name with another description: is it ours?")
        })),
        Err(why) if why.contains(&format!("could not find `{name}`")) => Ok(None),
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_package_that_lacks_something_is_not_ready() {
        let ready = json!({
            "name": "one", "version": "0.2.0", "description": "One.", "license": "MIT", "readme": "README.md",
            "rust_version": "1.89",
        });
        let files = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nsrc/lib.rs\n";
        let changelog = "# Changelog\n\n## 0.2.0 (unreleased)\n\n## 0.1.0\n";
        assert_eq!(unready(&ready, files, changelog), Vec::<String>::new());
        for member in STATED {
            let mut package = ready.clone();
            package[member] = Value::Null;
            let lacks = format!("one: its manifest has no `{member}`");
            assert_eq!(unready(&package, files, changelog), [lacks]);
        }
        assert_eq!(
            unready(&ready, "src/LICENSE-MIT\nLICENSE-APACHE", "## 0.2.01\n"),
            [
                "one: the package would have no LICENSE-MIT",
                "one: CHANGELOG.md has no entry for 0.2.0"
            ]
        );
    }

    #[test]
    fn tests_examples_and_tools_of_the_project_are_not_published() {
        let published = published().expect("the packages");
        let names: Vec<_> = published.iter().map(|one| text(one, "name")).collect();
        assert!(names.contains(&"storage-queues"), "{names:?}");
        let ours = |name: &&str| *name == "storage-queues" || name.starts_with("storage-queues-");
        assert!(names.iter().all(ours), "{names:?}");
    }
}

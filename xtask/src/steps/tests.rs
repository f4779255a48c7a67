use std::fs;
use std::path::{Path, PathBuf};

use super::*;

#[test]
fn no_two_steps_share_a_name() {
    for steps in [CHECK, TEST] {
        let mut names: Vec<_> = steps.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), steps.len());
    }
}

/// The tests of a source that are ignored, without those that another test of the same source starts in a process.
fn ignored(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let starts_itself = source.contains("\"--ignored\"");
    let mut lines = source.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let is_ignored = line.starts_with("#[") && words.any(|word| word == "ignore");
        let is_started = line.contains("that the other test") && starts_itself;
        if is_ignored && !is_started {
            let function = lines.find_map(|line| line.split_once("fn "));
            let (_, name) = function.expect("an attribute of a function");
            found.extend(name.split('(').next());
        }
    }
    found
}

/// The name of the program that a source below the folder `tests` of a package belongs to, and the source's module in it.
fn program(manifest: &toml::Table, source: &Path) -> Option<(String, String)> {
    let below = source.strip_prefix("tests").ok()?.with_extension("");
    let mut parts = below.iter().filter_map(|part| part.to_str());
    let own = parts.next()?.to_owned();
    let modules: Vec<_> = parts
        .filter(|part| !["main", "mod"].contains(part))
        .collect();
    let files = [format!("tests/{own}.rs"), format!("tests/{own}/main.rs")];
    let targets = manifest.get("test").and_then(toml::Value::as_array);
    let target = targets.into_iter().flatten().find(|target| {
        let path = target.get("path").and_then(toml::Value::as_str);
        path.is_some_and(|path| files.iter().any(|file| file == path))
    });
    let name = target.and_then(|target| target.get("name")?.as_str());
    let name = name.map_or(own, str::to_owned);
    Some((name, modules.join("::")))
}

/// Whether a step runs the ignored tests with this name in a program.
fn is_run(program: &str, test: &str) -> bool {
    TEST.iter().any(|step| match step.run {
        Run::Suites(programs, arguments) if programs.contains(&program) => {
            let (options, filters): (Vec<_>, Vec<_>) = arguments
                .split_ascii_whitespace()
                .partition(|word| word.starts_with("--"));
            options.contains(&"--ignored")
                && (filters.is_empty() || filters.iter().any(|filter| test.contains(filter)))
        }
        _ => false,
    })
}

/// The ignored tests of a source that no step runs. The source has this path from the folder of its package's manifest.
fn lost<'a>(manifest: &str, path: &Path, source: &'a str) -> Vec<&'a str> {
    let program = program(&manifest.parse().expect("TOML"), path);
    let mut tests = ignored(source);
    tests.retain(|test| {
        let is_run = |(name, module): &(String, String)| is_run(name, &format!("{module}::{test}"));
        !program.as_ref().is_some_and(is_run)
    });
    tests
}

/// Adds the sources below a folder, with the closest folder above that has a manifest.
fn sources(folder: &Path, package: &Path, found: &mut Vec<(PathBuf, PathBuf)>) {
    let is_package = folder.join("Cargo.toml").exists();
    let package = if is_package { folder } else { package };
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.expect("names are text");
        if path.is_dir() && !name.starts_with('.') && !["target", "node_modules"].contains(&name) {
            sources(&path, package, found);
        } else if name.ends_with(".rs") {
            found.push((package.to_owned(), path));
        }
    }
}

#[test]
fn every_ignored_test_is_run_by_a_step() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let (mut found, mut all) = (Vec::new(), Vec::new());
    sources(root, root, &mut all);
    assert!(all.len() > 500, "{} sources", all.len());
    for (package, path) in all {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a manifest");
        let source = fs::read_to_string(&path).expect("a source");
        let path = path.strip_prefix(&package).expect("a file of its package");
        let lost = lost(&manifest, path, &source);
        found.extend(
            lost.iter()
                .map(|test| format!("{}: {test}", path.display())),
        );
    }
    assert!(
        found.is_empty(),
        "no step of xtask/src/steps.rs runs these with `--ignored`: {found:#?}"
    );
}

#[test]
fn an_ignored_test_that_no_step_runs_is_noticed() {
    const MANIFEST: &str = "[[test]]\nname = \"billing-kills\"\npath = \"tests/kills.rs\"\n";
    fn lost_at<'a>(path: &str, source: &'a str) -> Vec<&'a str> {
        lost(MANIFEST, Path::new(path), source)
    }
    let slow = "#[test]\n#[ignore = \"slow\"]\nfn slow() {}\n#[test]\nfn other() {}\n";
    assert!(lost_at("tests/it/payloads/azurite.rs", slow).is_empty());
    let on_azurite = slow.replace("slow()", "slow_on_azurite()");
    assert!(lost_at("tests/kills.rs", &on_azurite).is_empty());
    // A unit test, a test that the filter of a step leaves out, and one in a suite that runs without `--ignored`.
    for path in [
        "src/a.rs",
        "tests/kills.rs",
        "tests/it/main.rs",
        "tests/crash/main.rs",
    ] {
        assert_eq!(lost_at(path, slow), ["slow"], "{path}");
    }
    let conditional = "    #[cfg_attr(windows, ignore)]\n    async fn other() {}\n";
    assert_eq!(lost_at("tests/it/main.rs", conditional), ["other"]);
    let role = "#[ignore = \"a process that the other test starts\"]\nfn role() {}\n";
    assert_eq!(lost_at("tests/it/main.rs", role), ["role"]);
    let started = format!("{role}#[test]\nfn test() {{ run(\"--ignored\") }}\n");
    assert!(lost_at("tests/it/main.rs", &started).is_empty());
}

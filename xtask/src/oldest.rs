use std::path::Path;
use std::process::{Command, ExitCode};
use std::{fs, io};

use crate::{cargo, program, release};

/// Checks the published packages with the oldest dependencies that their manifests allow, on a copy of the project,
/// whose lock file this changes.
pub(crate) fn run() -> ExitCode {
    match try_run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_run() -> Result<(), String> {
    let folder = cargo::target().join("oldest");
    let sources = folder.join("sources");
    copy(&sources).map_err(|error| format!("failed to copy the project: {error}"))?;
    let mut update = cargo::command();
    update.args(["update", "-Zdirect-minimal-versions"]);
    // The option is not stable. The compiler gets no such variable, for which some build scripts look.
    update.env("RUSTC_BOOTSTRAP", "1").current_dir(&sources);
    program::run(&mut update, "select the oldest dependencies")?;
    let mut check = cargo::background();
    check.args(["check", "--locked", "--all-features"]);
    for package in release::published()? {
        check.args(["--package", release::text(&package, "name")]);
    }
    check.env("CARGO_TARGET_DIR", folder.join("build"));
    check.current_dir(&sources);
    program::run(
        &mut check,
        "check the packages with the oldest dependencies",
    )
}

/// Copies the files that belong to the project.
fn copy(to: &Path) -> io::Result<()> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut list = Command::new("git");
    list.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let listed = list.current_dir(root).output()?;
    // Without a copy, cargo would change the lock file of the project itself.
    if !listed.status.success() || listed.stdout.is_empty() {
        let problem = String::from_utf8_lossy(&listed.stderr);
        return Err(io::Error::other(format!("git lists no files: {problem}")));
    }
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    for path in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
        let (from, to) = (root.join(path), to.join(path));
        // A file that is deleted is in git's list until that is committed.
        if from.is_file() {
            fs::create_dir_all(to.with_file_name(""))?;
            fs::copy(from, to)?;
        }
    }
    Ok(())
}

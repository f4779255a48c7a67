use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo;
use crate::program::{is_installed, run};

/// The packages, each with the version that the tests were written against.
const REQUIREMENTS: &str = include_str!("../../queue-runtime/tests/interop/requirements.txt");

/// The package whose own tests run, too. Only its source package has them.
const TESTED: &str = "azure-storage-queue";

/// Makes sure that there is a Python with the packages where the tests look for it: at `INTEROP_PYTHON`,
/// or in a virtual environment below the target directory, which is created if necessary. Returns the
/// reason if there is none.
pub(crate) fn ensure_installed() -> Result<(), String> {
    if let Some(given) = std::env::var_os("INTEROP_PYTHON") {
        return if is_installed(&given) {
            Ok(())
        } else {
            Err(format!("INTEROP_PYTHON is {given:?}, which does not run"))
        };
    }
    create(&cargo::target().join("interop"), "python3")
}

/// Creates a virtual environment with the packages, unless it is ready.
fn create(environment: &Path, python: &str) -> Result<(), String> {
    if is_ready(environment) {
        return Ok(());
    }
    if !is_installed(python) {
        return Err("the packages need Python 3, which is not installed".to_owned());
    }
    eprintln!("   installing Python packages in {}", environment.display());
    let mut venv = Command::new(python);
    venv.args(["-m", "venv", "--clear"]).arg(environment);
    run(
        &mut venv,
        "create a virtual environment with `python3 -m venv` (in the package `python3-venv` on some systems)",
    )?;
    let requirements = stamp(environment).with_extension("wanted");
    write(&requirements)?;
    let mut install = pip(environment, "install");
    install.arg("--requirement").arg(&requirements);
    run(&mut install, "install the Python packages with pip")?;
    unpack_tests(environment)?;
    write(&stamp(environment))
}

/// Unpacks the source package of [`TESTED`], of the version that is installed, in the environment.
fn unpack_tests(environment: &Path) -> Result<(), String> {
    let pinned = REQUIREMENTS
        .lines()
        .filter_map(|line| line.split_once("=="));
    let mut versions = pinned.filter(|(name, _)| *name == TESTED);
    let (_, version) = versions.next().expect("it is required");
    let mut download = pip(environment, "download");
    download
        .args(["--no-deps", "--no-binary", TESTED, "--dest"])
        .arg(environment)
        .arg(format!("{TESTED}=={version}"));
    run(&mut download, "download a source package with pip")?;
    let archive = format!("{}-{version}.tar.gz", TESTED.replace('-', "_"));
    let mut unpack = Command::new(interpreter(environment));
    unpack
        .args(["-m", "tarfile", "--extract"])
        .arg(environment.join(archive))
        .arg(environment);
    run(&mut unpack, "unpack a source package")
}

fn pip(environment: &Path, verb: &str) -> Command {
    let mut pip = Command::new(interpreter(environment));
    pip.args(["-m", "pip", verb])
        .args(["--quiet", "--no-input", "--disable-pip-version-check"]);
    pip
}

/// Returns whether the environment is complete, has these packages, and runs.
fn is_ready(environment: &Path) -> bool {
    let made_for = std::fs::read_to_string(stamp(environment));
    made_for.is_ok_and(|packages| packages == REQUIREMENTS)
        && is_installed(interpreter(environment))
}

/// The file that is written last, and marks the environment as complete.
fn stamp(environment: &Path) -> PathBuf {
    environment.join("requirements.txt")
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

fn write(path: &Path) -> Result<(), String> {
    let written = std::fs::write(path, REQUIREMENTS);
    written.map_err(|error| format!("failed to write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned() {
        let packages = REQUIREMENTS
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut names = Vec::new();
        for package in packages {
            let (name, version) = package.split_once("==").expect(package);
            assert!(
                version.starts_with(|c: char| c.is_ascii_digit()),
                "{package}"
            );
            names.push(name);
        }
        assert!(names.contains(&TESTED), "{names:?}");
        assert!(names.contains(&"cloudevents"), "{names:?}");
    }

    #[cfg(unix)]
    #[test]
    fn an_environment_is_ready_if_complete_for_these_packages_and_running() {
        let scratch = std::env::temp_dir().join(format!("interop-{}", std::process::id()));
        std::fs::create_dir_all(scratch.join("bin")).expect("a directory");
        assert!(!is_ready(&scratch));
        write(&stamp(&scratch)).expect("written");
        assert!(!is_ready(&scratch), "there is no interpreter");
        std::os::unix::fs::symlink("/bin/true", interpreter(&scratch)).expect("linked");
        assert!(is_ready(&scratch));
        std::fs::write(stamp(&scratch), "cloudevents==1.0.0").expect("written");
        assert!(!is_ready(&scratch), "it has other packages");
        std::fs::remove_dir_all(&scratch).expect("removed");
    }

    #[test]
    fn a_missing_python_is_reported() {
        let nowhere = std::env::temp_dir().join("no-such-environment");
        let error = create(&nowhere, "no-such-python").expect_err("it is missing");
        assert!(error.contains("Python 3"), "{error}");
        assert!(!nowhere.exists());
    }
}

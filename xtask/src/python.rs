use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo;
use crate::program::{answers, run};

/// The packages of the environment, each at the version that the tests were written against.
const REQUIREMENTS: &str = include_str!("../../queue-runtime/tests/interop/requirements.txt");

/// Makes sure that there is a Python with the packages where the tests look for one: at
/// `INTEROP_PYTHON`, or in an environment below the target directory, which is made if need be.
/// Otherwise says why there is none.
pub(crate) fn installed() -> Result<(), String> {
    if let Some(given) = std::env::var_os("INTEROP_PYTHON") {
        return match answers(&given) {
            true => Ok(()),
            false => Err(format!(
                "INTEROP_PYTHON names {given:?}, which does not run"
            )),
        };
    }
    make(&cargo::target().join("interop"), "python3")
}

/// Makes an environment, unless it is there.
fn make(environment: &Path, python: &str) -> Result<(), String> {
    if is_there(environment) {
        return Ok(());
    }
    if !answers(python) {
        return Err("Python 3, which the packages run on, is not installed".to_owned());
    }
    eprintln!("   installing Python packages in {}", environment.display());
    let mut venv = Command::new(python);
    venv.args(["-m", "venv", "--clear"]).arg(environment);
    run(
        &mut venv,
        "`python3 -m venv` made no environment (some systems have it in a package `python3-venv`)",
    )?;
    let requirements = stamp(environment).with_extension("wanted");
    write(&requirements)?;
    let mut pip = Command::new(interpreter(environment));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "--requirement"])
        .arg(&requirements);
    run(&mut pip, "pip did not install the Python packages")?;
    write(&stamp(environment))
}

/// Whether it was made to its end, for these very packages, and still runs.
fn is_there(environment: &Path) -> bool {
    let made_for = std::fs::read_to_string(stamp(environment));
    made_for.is_ok_and(|packages| packages == REQUIREMENTS) && answers(interpreter(environment))
}

/// The file that is written last.
fn stamp(environment: &Path) -> PathBuf {
    environment.join("requirements.txt")
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

fn write(path: &Path) -> Result<(), String> {
    let written = std::fs::write(path, REQUIREMENTS);
    written.map_err(|error| format!("{} cannot be written: {error}", path.display()))
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
        assert!(names.contains(&"azure-storage-queue"), "{names:?}");
        assert!(names.contains(&"cloudevents"), "{names:?}");
    }

    #[cfg(unix)]
    #[test]
    fn only_a_finished_environment_for_these_packages_that_runs_counts() {
        let scratch = std::env::temp_dir().join(format!("interop-{}", std::process::id()));
        std::fs::create_dir_all(scratch.join("bin")).expect("a directory");
        assert!(!is_there(&scratch));
        write(&stamp(&scratch)).expect("written");
        assert!(!is_there(&scratch), "there is no interpreter");
        std::os::unix::fs::symlink("/bin/true", interpreter(&scratch)).expect("linked");
        assert!(is_there(&scratch));
        std::fs::write(stamp(&scratch), "cloudevents==1.0.0").expect("written");
        assert!(!is_there(&scratch), "it is for other packages");
        std::fs::remove_dir_all(&scratch).expect("removed");
    }

    #[test]
    fn a_python_that_is_missing_is_told() {
        let nowhere = std::env::temp_dir().join("no-such-environment");
        let told = make(&nowhere, "no-such-python").expect_err("it is missing");
        assert!(told.contains("Python 3"), "{told}");
        assert!(!nowhere.exists());
    }
}

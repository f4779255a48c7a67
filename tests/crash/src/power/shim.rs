use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The compiled library of `shim/shim.c`.
#[derive(Debug)]
pub struct Shim(TempDir);

/// The environment of a process.
pub type Environment = Vec<(&'static str, OsString)>;

impl Shim {
    /// Compiles the library with the system's C compiler.
    ///
    /// # Panics
    /// If the compiler fails.
    #[must_use]
    pub fn build() -> Self {
        let folder = TempDir::new().expect("a folder");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/shim.c");
        let shim = Self(folder);
        let built = Command::new("cc")
            .args([
                "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o",
            ])
            .arg(shim.library())
            .args([source, "-ldl"])
            .status();
        assert!(
            built.expect("cc is installed").success(),
            "failed to compile {source}"
        );
        shim
    }

    /// The environment in which a process records its operations on the files of a folder.
    #[must_use]
    pub fn recording(&self, folder: &Path, trace: &Path) -> Environment {
        let mut environment = self.watching(folder);
        environment.push(("SHIM_TRACE", trace.into()));
        environment
    }

    /// The environment in which `count` operations on the database fail with this error of the system,
    /// from the operation `first`, counted from 1.
    #[must_use]
    pub fn failing(&self, folder: &Path, first: u64, errno: i32, count: u64) -> Environment {
        let mut environment = self.watching(folder);
        environment.push(("SHIM_FAIL", format!("{first}:{errno}:{count}").into()));
        environment
    }

    /// The environment in which a process is killed just before its operation `at` on the database, counted
    /// from 1.
    #[must_use]
    pub fn killing(&self, folder: &Path, at: u64) -> Environment {
        self.failing(folder, at, 0, 1)
    }

    /// The environment in which a process writes the number of its operations on the database to a file.
    #[must_use]
    pub fn counting(&self, folder: &Path, count: &Path) -> Environment {
        let mut environment = self.watching(folder);
        environment.push(("SHIM_COUNT", count.into()));
        environment
    }

    fn watching(&self, folder: &Path) -> Environment {
        vec![
            ("LD_PRELOAD", self.library().into()),
            ("SHIM_DIR", folder.into()),
        ]
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("shim.so")
    }
}

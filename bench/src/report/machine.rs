use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// What a run was measured on and with. What is not known is empty.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    cores: usize,
    processor: String,
    system: String,
    /// The file system of the folder with SQLite's files.
    file_system: String,
    /// Of Git, with a mark if files were changed since.
    commit: String,
    rustc: String,
    sqlite: String,
}

impl Machine {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: line("/proc/cpuinfo", "model name").unwrap_or_default(),
            system: format!("{} {}", std::env::consts::OS, kernel()),
            file_system: file_system(dir).unwrap_or_default(),
            commit: output("git", &["describe", "--always", "--dirty", "--exclude=*"]),
            rustc: output("rustc", &["--version"]),
            sqlite: rusqlite::version().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores", self.cores)?;
        let known = [
            ("", &self.processor),
            ("", &self.system),
            ("", &self.file_system),
            ("", &self.rustc),
            ("SQLite ", &self.sqlite),
            ("commit ", &self.commit),
        ];
        for (name, value) in known.iter().filter(|(_, value)| !value.is_empty()) {
            write!(f, ", {name}{value}")?;
        }
        Ok(())
    }
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// The value of a line such as `model name : …`.
fn line(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// The file system whose mount point is the longest that contains the folder.
fn file_system(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let containing = mounts.filter(|(mount, _)| dir.starts_with(mount));
    let (_, kind) = containing.max_by_key(|(mount, _)| mount.len())?;
    Some(kind.to_owned())
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}

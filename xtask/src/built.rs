use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cargo;
use crate::program::{Kept, measure};

/// How many tests of a program run at once, unless its arguments say otherwise. Tests wait more than they work.
const THREADS: &str = "4";

/// The programs of tests that a build has built, by their paths.
#[derive(Debug, Default)]
pub(crate) struct Built(BTreeMap<PathBuf, Program>);

/// A program of tests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) name: String,
    /// Where cargo runs the program: its package's folder.
    folder: PathBuf,
    /// The program has a file of its own in `tests`, unlike the unit tests of a library or program.
    is_suite: bool,
    /// `cargo test` runs the program, also if not named.
    unnamed: bool,
}

impl Built {
    /// Builds all programs of tests; returns those that could be built, why others could not, and the processor time.
    pub(crate) fn build(command: impl Fn() -> Command) -> (Self, Option<String>, Duration) {
        let (mut built, mut wrong, mut worked) = (Self::default(), None, Duration::ZERO);
        // What `cargo test` runs, and tests that run only when named.
        for more in [&[][..], &["--test", "*"]] {
            let mut build = command();
            build.args(["--message-format", "json-render-diagnostics"]);
            build.args(more);
            match measure(build, Kept::Output) {
                Ok(ended) => {
                    built.read(&String::from_utf8_lossy(&ended.output));
                    worked += ended.worked;
                    if !ended.status.success() {
                        wrong = Some(ended.status.to_string());
                    }
                }
                Err(error) => wrong = Some(format!("it did not start: {error}")),
            }
        }
        (built, wrong, worked)
    }

    /// Returns the programs that `cargo test` runs, those with the names of `first` before the others.
    pub(crate) fn unnamed(&self, first: &[&str]) -> Vec<(&Path, &Program)> {
        let mut found = self.find(|program| program.unnamed);
        let turn = |name: &str| first.iter().position(|first| *first == name);
        found.sort_by_key(|(_, program)| turn(&program.name).unwrap_or(first.len()));
        found
    }

    /// Returns the programs of the suite with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<(&Path, &Program)> {
        self.find(|program| program.is_suite && program.name == name)
    }

    /// Returns the programs that run only when named.
    pub(crate) fn only_named(&self) -> Vec<(&Path, &Program)> {
        self.find(|program| !program.unnamed)
    }

    fn find(&self, wanted: impl Fn(&Program) -> bool) -> Vec<(&Path, &Program)> {
        let programs = self.0.iter().filter(|(_, program)| wanted(program));
        programs
            .map(|(path, program)| (path.as_path(), program))
            .collect()
    }

    /// Reads what cargo has printed: a message a line.
    fn read(&mut self, messages: &str) {
        let parsed = messages.lines().flat_map(serde_json::from_str::<Value>);
        self.0.extend(parsed.filter_map(|message| {
            let target = &message["target"];
            let manifest = Path::new(message["manifest_path"].as_str()?);
            let program = Program {
                name: target["name"].as_str()?.to_owned(),
                folder: manifest.parent()?.to_owned(),
                is_suite: target["kind"][0] == "test",
                unnamed: target["test"] == true,
            };
            let path = message["executable"].as_str()?;
            (message["profile"]["test"] == true).then(|| (path.into(), program))
        }));
    }
}

impl Program {
    /// The command that runs the program at this path as cargo does, but with more threads.
    pub(crate) fn command(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command
            .current_dir(&self.folder)
            .env("CARGO", cargo::program())
            .env("RUST_TEST_THREADS", THREADS)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_read_from_the_messages_of_a_build() {
        let message = |name: &str, kind: &str, test: bool, is_test: bool, path: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/queue/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}","test":{test}}},"profile":{{"test":{is_test}}},"executable":{path}}}"#
            )
        };
        let messages = [
            message("queue", "lib", true, false, "null"),
            message("queue", "lib", true, true, r#""/t/queue-1""#),
            message("queues", "bin", true, false, r#""/t/queues""#),
            message("it", "test", true, true, r#""/t/it-1""#),
            message("queue", "test", false, true, r#""/t/queue-2""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "no message".to_owned(),
        ];
        let mut built = Built::default();
        built.read(&messages.join("\n"));
        let paths = |found: Vec<(&Path, &Program)>| -> Vec<PathBuf> {
            found.iter().map(|(path, _)| path.to_path_buf()).collect()
        };
        let expected = ["/t/it-1", "/t/queue-1"].map(PathBuf::from);
        assert_eq!(paths(built.unnamed(&["it"])), expected);
        let expected = ["/t/queue-2"].map(PathBuf::from);
        assert_eq!(paths(built.named("queue")), expected);
        assert_eq!(paths(built.only_named()), expected);
        let (path, program) = built.named("queue")[0];
        let command = program.command(path);
        assert_eq!(command.get_current_dir(), Some(Path::new("/w/queue")));
    }
}

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::program::is_installed;
use crate::{azurite, browser, cargo, debian, fuzz, mount, peers, preload};

/// One step of `cargo xtask test`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// The name in the summary.
    pub(crate) name: &'static str,
    /// What the step needs besides the toolchain: where that is missing, it is skipped, which is a failure under CI.
    pub(crate) need: Need,
    pub(crate) run: Run,
    /// Additional environment variables.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// The step mostly waits, so that it runs beside other steps.
    pub(crate) waits: bool,
    /// Only `cargo xtask test --all` runs the step, or who asks for it by name.
    pub(crate) long: bool,
}

/// What a step runs. Arguments are separated by spaces.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Run {
    /// A command of cargo.
    Cargo(&'static str),
    /// Clippy on these packages, features and targets, with warnings as errors.
    Lint(&'static str),
    /// A build of all programs of tests, which `Tests` and `Suites` run.
    Build,
    /// All programs of tests that `cargo test` runs, the longest first.
    Tests(&'static [&'static str]),
    /// The programs of the tests with these names, and their arguments.
    Suites(&'static [&'static str], &'static str),
}

/// What a step needs besides the toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Azurite,
    /// Azurite, and other languages with clients for it.
    Peers,
    /// Chromium, and what drives it.
    Browser,
    /// A NATS server.
    Nats,
    /// PostgreSQL's programs, or a server.
    Postgres,
    /// PostgreSQL, and the pooler PgBouncer.
    Pooler,
    /// PostgreSQL's programs, and a library that sets the clock of its server.
    PostgresClock,
    /// PostgreSQL's programs, and a user who may mount a file system that only the server sees.
    PostgresDisk,
    /// A C compiler, and a system that loads a library before a program.
    Preload,
    /// A user who may mount a file system that only one process sees.
    Mount,
    /// A C++ compiler, for libFuzzer.
    Fuzzer,
    /// Valgrind.
    Valgrind,
}

impl Step {
    /// Returns the reason if the step cannot run here. Installs what the step lacks, after what other steps need.
    pub(crate) fn obstacle(&self) -> Option<String> {
        static INSTALLING: Mutex<()> = Mutex::new(());
        let one_at_a_time = || INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        let _installing = (self.need != Need::Nothing).then(one_at_a_time);
        match self.need {
            Need::Nothing => None,
            Need::Azurite => azurite::ensure_installed().err(),
            Need::Peers => peers::ensure_installed().err(),
            Need::Browser => browser::ensure_installed().err(),
            Need::Nats => nats_server_missing(),
            Need::Postgres => postgres_missing(),
            Need::Pooler => postgres_missing().or_else(|| debian::ensure_pgbouncer().err()),
            Need::PostgresClock => postgres_clock_missing(),
            Need::PostgresDisk => postgres_disk_missing(),
            Need::Preload => preload::obstacle(),
            Need::Mount => mount::obstacle(),
            Need::Fuzzer => fuzz::obstacle(),
            Need::Valgrind => valgrind_missing(),
        }
    }

    /// The cargo command that runs the step. Other steps wait for the build; what else cargo does runs beside tests.
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.run {
            Run::Build => cargo::command(),
            _ => cargo::background(),
        };
        command
            .args(self.arguments())
            .envs(self.environment.iter().copied());
        command
    }

    /// The shell command that runs the step alone.
    pub(crate) fn shell_line(&self) -> String {
        let mut words: Vec<String> = self
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={}", quoted(value)))
            .collect();
        words.push("cargo".to_owned());
        words.extend(self.arguments().into_iter().map(quoted));
        words.join(" ")
    }

    /// Returns whether the step runs programs of tests.
    pub(crate) fn needs_the_build(&self) -> bool {
        matches!(self.run, Run::Tests(_) | Run::Suites(..))
    }

    /// The suites whose programs the step runs.
    pub(crate) fn suites(&self) -> &'static [&'static str] {
        match self.run {
            Run::Suites(names, _) => names,
            _ => &[],
        }
    }

    fn arguments(&self) -> Vec<&'static str> {
        const TESTS: &str = "test --no-fail-fast --workspace --all-features";
        let words = str::split_ascii_whitespace;
        match self.run {
            Run::Cargo(all) => words(all).collect(),
            Run::Lint(what) => {
                let what = words("clippy").chain(words(what));
                what.chain(words("-- -D warnings")).collect()
            }
            Run::Build => words(TESTS).chain(["--no-run"]).collect(),
            Run::Tests(_) => words(TESTS).chain(["--tests"]).collect(),
            Run::Suites(names, arguments) => {
                let names = names.iter().flat_map(|name| ["--test", name]);
                let separator = (!arguments.is_empty()).then_some("--");
                let all = words(TESTS).chain(names).chain(separator);
                all.chain(words(arguments)).collect()
            }
        }
    }
}

/// Returns the reason if the tests find no `nats-server`, at `NATS_SERVER` or in the path.
fn nats_server_missing() -> Option<String> {
    let given = std::env::var_os("NATS_SERVER");
    let program = given.unwrap_or_else(|| "nats-server".into());
    let missing = format!(
        "{} does not run; install the NATS server, or set NATS_SERVER",
        program.display()
    );
    (!is_installed(program)).then_some(missing)
}

/// Where the tests look for PostgreSQL's programs.
const POSTGRES: &str = "/usr/lib/postgresql";

/// Returns the reason if the tests find neither PostgreSQL's programs nor a server.
pub(crate) fn postgres_missing() -> Option<String> {
    let is_there =
        Path::new(POSTGRES).is_dir() || std::env::var_os("QUEUE_TEST_POSTGRES").is_some();
    (!is_there).then(|| {
        format!("PostgreSQL is not below {POSTGRES}; install it, or set QUEUE_TEST_POSTGRES to the URL of a server")
    })
}

/// Returns the reason if the tests cannot start PostgreSQL on a clock of its own.
pub(crate) fn postgres_clock_missing() -> Option<String> {
    postgres_missing().or_else(|| debian::ensure_faketime().err())
}

/// Returns the reason if the tests cannot start PostgreSQL on a disk of its own.
pub(crate) fn postgres_disk_missing() -> Option<String> {
    postgres_missing().or_else(mount::obstacle)
}

/// Returns the reason if nothing counts a program's instructions.
fn valgrind_missing() -> Option<String> {
    let missing = "valgrind is not installed; install its package";
    (!is_installed("valgrind")).then(|| missing.to_owned())
}

fn quoted(word: &str) -> String {
    if word.contains([' ', '*']) {
        format!("'{word}'")
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(run: Run, environment: &'static [(&'static str, &'static str)]) -> String {
        let step = Step {
            name: "the step",
            need: Need::Nothing,
            run,
            environment,
            waits: false,
            long: false,
        };
        step.shell_line()
    }

    #[test]
    fn the_shell_line_can_be_pasted() {
        let environment = &[("RUSTDOCFLAGS", "-D warnings")];
        let docs = line(Run::Cargo("doc --no-deps"), environment);
        assert_eq!(docs, "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
        let named = line(Run::Lint("--workspace --test *"), &[]);
        assert_eq!(named, "cargo clippy --workspace --test '*' -- -D warnings");
    }

    #[test]
    fn programs_that_the_build_has_built_are_run_alone_by_cargo() {
        let all = "cargo test --no-fail-fast --workspace --all-features";
        let tests = line(Run::Tests(&["it"]), &[]);
        assert_eq!(tests, format!("{all} --tests"));
        let suites = line(Run::Suites(&["full_disk", "mounts"], ""), &[]);
        assert_eq!(suites, format!("{all} --test full_disk --test mounts"));
        let ignored = line(Run::Suites(&["payloads"], "--ignored"), &[]);
        assert_eq!(ignored, format!("{all} --test payloads -- --ignored"));
    }
}

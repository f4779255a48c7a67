use std::process::Command;

use crate::program::is_installed;
use crate::{azurite, browser, cargo, deny, mount, preload, python};

/// One step of `cargo xtask test`: a cargo command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Its name in the summary.
    pub(crate) name: &'static str,
    /// What it needs besides the toolchain. It is skipped where that is missing, which is a failure under CI.
    pub(crate) need: Need,
    /// The arguments of cargo.
    pub(crate) arguments: &'static [&'static str],
    /// Additional environment variables.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// It mostly waits, so that it runs beside those of its kind before and after it.
    pub(crate) waits: bool,
}

/// What a step needs besides the toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Azurite,
    /// Azurite, and Python with clients for it.
    AzuriteAndPython,
    /// Chromium, and what drives it.
    Browser,
    /// `cargo-deny`, which checks the dependencies.
    Deny,
    /// A NATS server.
    Nats,
    /// A C compiler, and a system that loads a library before a program.
    Preload,
    /// A user who may mount a file system that only one process sees.
    Mount,
    /// Valgrind.
    Valgrind,
}

impl Step {
    /// Returns the reason if the step cannot run here. Installs what the step needs if necessary.
    pub(crate) fn obstacle(&self) -> Option<String> {
        match self.need {
            Need::Nothing => None,
            Need::Azurite => azurite::ensure_installed().err(),
            Need::AzuriteAndPython => azurite::ensure_installed()
                .and_then(|()| python::ensure_installed())
                .err(),
            Need::Browser => browser::ensure_installed().err(),
            Need::Deny => deny::ensure_installed().err(),
            Need::Nats => nats_server_missing(),
            Need::Preload => preload::obstacle(),
            Need::Mount => mount::obstacle(),
            Need::Valgrind => valgrind_missing(),
        }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = cargo::command();
        command
            .args(self.arguments)
            .envs(self.environment.iter().copied());
        if self.need == Need::Deny {
            command.env("PATH", deny::path());
        }
        command
    }

    /// The shell command that runs the step alone.
    pub(crate) fn shell_line(&self) -> String {
        let mut words: Vec<String> = self
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={}", quoted(value)))
            .collect();
        if self.need == Need::Deny {
            words.push(format!("PATH={}:\"$PATH\"", deny::programs().display()));
        }
        words.push("cargo".to_owned());
        words.extend(self.arguments.iter().map(|argument| quoted(argument)));
        words.join(" ")
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

/// Returns the reason if nothing counts a program's instructions.
fn valgrind_missing() -> Option<String> {
    let missing = "valgrind is not installed; install its package";
    (!is_installed("valgrind")).then(|| missing.to_owned())
}

fn quoted(word: &str) -> String {
    if word.contains(' ') {
        format!("'{word}'")
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_line_can_be_pasted() {
        let step = Step {
            name: "docs",
            need: Need::Nothing,
            arguments: &["doc", "--no-deps"],
            environment: &[("RUSTDOCFLAGS", "-D warnings")],
            waits: false,
        };
        let line = step.shell_line();
        assert_eq!(line, "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }
}

use std::process::Command;

use crate::program::{is_installed, prints_version};
use crate::{azurite, browser, cargo, mount, preload, python};

/// One step of `cargo xtask test`: a cargo command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Its name in the summary.
    pub(crate) name: &'static str,
    pub(crate) part: Part,
    /// The arguments of cargo.
    pub(crate) arguments: &'static [&'static str],
    /// Additional environment variables.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// It mostly waits, so that it runs beside those of its kind before and after it.
    pub(crate) waits: bool,
}

/// The part that a step plays, which decides whether it may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// It needs the toolchain only, and is never skipped.
    Check,
    /// A cargo subcommand. It is skipped if it is not installed, also under CI.
    Tool {
        /// The crate that provides the subcommand.
        install: &'static str,
    },
    /// Tests. They are skipped if what they need is not available, which is a failure under CI.
    Suite(Need),
}

/// What tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Azurite,
    /// Azurite, and Python with clients for it.
    AzuriteAndPython,
    /// Chromium, and what drives it.
    Browser,
    /// A NATS server.
    Nats,
    /// A C compiler, and a system that loads a library before a program.
    Preload,
    /// A user who may mount a file system that only one process sees.
    Mount,
}

impl Step {
    /// Returns the reason if the step cannot run here. Installs what a suite needs if necessary.
    pub(crate) fn obstacle(&self) -> Option<String> {
        match self.part {
            Part::Check | Part::Suite(Need::Nothing) => None,
            Part::Suite(Need::Azurite) => azurite::ensure_installed().err(),
            Part::Suite(Need::AzuriteAndPython) => azurite::ensure_installed()
                .and_then(|()| python::ensure_installed())
                .err(),
            Part::Suite(Need::Browser) => browser::ensure_installed().err(),
            Part::Suite(Need::Nats) => nats_server_missing(),
            Part::Suite(Need::Preload) => preload::obstacle(),
            Part::Suite(Need::Mount) => mount::obstacle(),
            Part::Tool { install } => {
                let found = prints_version(cargo::command().arg(self.arguments[0]));
                (!found).then(|| {
                    format!("{install} is not installed; run `cargo install --locked {install}`")
                })
            }
        }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = cargo::command();
        command
            .args(self.arguments)
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
            part: Part::Check,
            arguments: &["doc", "--no-deps"],
            environment: &[("RUSTDOCFLAGS", "-D warnings")],
            waits: false,
        };
        let line = step.shell_line();
        assert_eq!(line, "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn the_obstacle_of_a_missing_tool_says_what_to_install() {
        let tool = Step {
            name: "made up",
            part: Part::Tool {
                install: "cargo-no-such-thing",
            },
            arguments: &["no-such-thing", "check"],
            environment: &[],
            waits: false,
        };
        let obstacle = tool.obstacle().expect("it is not installed");
        assert!(obstacle.contains("cargo install --locked cargo-no-such-thing"));
        let check = Step {
            part: Part::Check,
            ..tool
        };
        assert_eq!(check.obstacle(), None);
    }
}

use std::process::{Command, Stdio};

use crate::{azurite, cargo, python};

/// One step of `cargo xtask test`: a cargo command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// What it is, in a word or two.
    pub(crate) name: &'static str,
    pub(crate) part: Part,
    /// What cargo is given.
    pub(crate) arguments: &'static [&'static str],
    /// What is set in the environment beside.
    pub(crate) environment: &'static [(&'static str, &'static str)],
}

/// What part a step plays, which decides what it means to leave it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// It needs nothing but the toolchain, and is never left out.
    Check,
    /// A cargo subcommand that need not be installed. Its absence is announced, also under CI.
    Tool {
        /// The crate that brings the subcommand.
        install: &'static str,
    },
    /// Tests. Where their server is not to be had they may be left out, but not under CI.
    Suite(Server),
}

/// The server that tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    None,
    Azurite,
    /// Azurite, and Python with packages that talk to it.
    AzuriteAndPython,
}

impl Step {
    /// Why the step cannot run here, if it cannot. A suite that needs a server looks for it here.
    pub(crate) fn obstacle(&self) -> Option<String> {
        match self.part {
            Part::Check | Part::Suite(Server::None) => None,
            Part::Suite(Server::Azurite) => azurite::installed().err(),
            Part::Suite(Server::AzuriteAndPython) => azurite::installed()
                .and_then(|()| python::installed())
                .err(),
            Part::Tool { install } => self.missing(install),
        }
    }

    fn missing(&self, install: &str) -> Option<String> {
        let found = cargo::command()
            .args([self.arguments[0], "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match found {
            Ok(status) if status.success() => None,
            _ => Some(format!(
                "{install} is not installed; `cargo install --locked {install}` brings it"
            )),
        }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = cargo::command();
        command
            .args(self.arguments)
            .envs(self.environment.iter().copied());
        command
    }

    /// The line to type to run the step alone.
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
        };
        let line = step.shell_line();
        assert_eq!(line, "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_tool_that_is_missing_is_an_obstacle_that_says_what_to_install() {
        let tool = Step {
            name: "made up",
            part: Part::Tool {
                install: "cargo-no-such-thing",
            },
            arguments: &["no-such-thing", "check"],
            environment: &[],
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

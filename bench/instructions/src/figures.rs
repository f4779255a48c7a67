use std::fmt;
use std::process::Command;
use std::str::FromStr;

use queue_instructions::Outcome;

/// By how many thousandths a count may be over its figure. With half of `ALLOWED`, one source has passed on a machine
/// and failed on another.
const ALLOWED: u64 = 10;

const HEAD: &str = "\
# The instructions of a message on memory in a release build, as valgrind counts them. The step
# `instructions of a message` of `cargo xtask test --all` fails if one is over by more than 1 %. To write new figures:
# `cargo run --release --package queue-instructions -- --write`. The commit that raises one says why.
";

/// Instructions for each kind of work, and where they were counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) place: String,
    pub(crate) counts: Vec<(String, u64)>,
}

impl Figures {
    /// Returns which counts are over, and by how much. Counts without a committed figure are over.
    pub(crate) fn over(&self, committed: &Self) -> Vec<String> {
        let over = |(name, count): &(String, u64)| {
            let known = committed.counts.iter().find(|(known, _)| known == name);
            let Some((_, figure)) = known else {
                return Some(format!("{name}: {count} instructions, and no figure"));
            };
            let is_over = count * 1000 > figure * (1000 + ALLOWED);
            let percent = 100.0 * (*count as f64 / *figure as f64 - 1.0);
            is_over.then(|| {
                format!("{name}: {count} instructions, {percent:.1} % over its figure of {figure}")
            })
        };
        self.counts.iter().filter_map(over).collect()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}place = {:?}", self.place)?;
        for (name, count) in &self.counts {
            writeln!(f, "{name} = {count}")?;
        }
        Ok(())
    }
}

impl FromStr for Figures {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut figures = Self {
            place: String::new(),
            counts: Vec::new(),
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let wrong = || format!("a line of the figures is not `name = value`: {line:?}");
            let (name, value) = line.split_once(" = ").ok_or_else(wrong)?;
            match name {
                "place" => figures.place = value.trim_matches('"').to_owned(),
                name => {
                    let count = value.parse().map_err(|_| wrong())?;
                    figures.counts.push((name.to_owned(), count));
                }
            }
        }
        Ok(figures)
    }
}

/// Returns what the counts depend on besides the code: the target, its C library, what that and `memchr` choose by the
/// processor, and the compiler.
pub(crate) fn place() -> Outcome<String> {
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    let libc = printed(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let compiler = printed(Command::new("rustc").arg("--version"))?;
    #[cfg(target_arch = "x86_64")]
    let has_avx2 = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let has_avx2 = false;
    let avx2 = if has_avx2 { "avx2" } else { "no avx2" };
    Ok(format!("{arch} {os}, {libc}, {avx2}, {compiler}"))
}

fn printed(command: &mut Command) -> Outcome<String> {
    let output = command.output();
    let output = output.map_err(|error| format!("{command:?} did not start: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(counts: &[(&str, u64)]) -> Figures {
        Figures {
            place: "x86_64 linux".to_owned(),
            counts: counts
                .iter()
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
        }
    }

    #[test]
    fn only_what_is_over_by_more_than_a_percent_is_told() {
        let committed = figures(&[("submit", 10_000), ("listener", 30_000)]);
        let counted = figures(&[("submit", 10_100), ("listener", 29_000)]);
        assert_eq!(counted.over(&committed), [""; 0]);
        let counted = figures(&[("submit", 10_101), ("listener", 33_000), ("new", 1)]);
        assert_eq!(
            counted.over(&committed),
            [
                "submit: 10101 instructions, 1.0 % over its figure of 10000",
                "listener: 33000 instructions, 10.0 % over its figure of 30000",
                "new: 1 instructions, and no figure",
            ]
        );
    }

    #[test]
    fn figures_are_read_as_they_are_written() {
        let written = figures(&[("submit", 10_000), ("envelope", 1)]);
        assert_eq!(written.to_string().parse(), Ok(written));
        let wrong = "submit: 7".parse::<Figures>();
        wrong.expect_err("no equals sign");
    }

    #[test]
    fn the_committed_figures_are_readable() {
        let committed: Figures = include_str!("../figures.toml").parse().expect("valid");
        assert_eq!(committed.counts.len(), 4);
        assert!(!committed.place.is_empty());
    }
}

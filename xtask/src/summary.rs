use std::fmt;
use std::time::Duration;

use crate::step::Step;

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ran,
    Failed(String),
    Skipped(String),
}

/// A step that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) step: Step,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// The processor time of the step's processes.
    pub(crate) worked: Duration,
}

/// The outcomes of all steps.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Under CI a skipped step is a failure, since nobody reads the summary.
    pub(crate) under_ci: bool,
    pub(crate) rows: Vec<Report>,
    /// The names of the steps that `--all` runs besides.
    pub(crate) left: Vec<&'static str>,
    /// The whole run's time: some steps run beside each other.
    pub(crate) took: Duration,
}

impl Summary {
    /// Returns whether the run passed.
    pub(crate) fn passed(&self) -> bool {
        !self.rows.iter().any(|row| match row.outcome {
            Outcome::Ran => false,
            Outcome::Failed(_) => true,
            Outcome::Skipped(_) => self.under_ci,
        })
    }

    fn skipped(&self) -> usize {
        let rows = self.rows.iter();
        rows.filter(|row| matches!(row.outcome, Outcome::Skipped(_)))
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, took, worked) = (self.step.name, seconds(self.took), seconds(self.worked));
        match &self.outcome {
            Outcome::Ran => writeln!(f, "   ok        {name} ({took}, processors {worked})"),
            Outcome::Failed(why) => {
                writeln!(
                    f,
                    "   FAILED    {name} ({took}, processors {worked}): {why}"
                )
            }
            Outcome::Skipped(why) => writeln!(f, "   SKIPPED   {name}: {why}"),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n── summary")?;
        for row in &self.rows {
            write!(f, "{row}")?;
        }
        if !self.left.is_empty() {
            let left = self.left.join(", ");
            writeln!(f, "\nleft to `cargo xtask test --all`: {left}")?;
        }
        let worked = self.rows.iter().map(|row| row.worked).sum();
        let total = format!(
            "{} ({} of processor time)",
            seconds(self.took),
            seconds(worked)
        );
        let skipped = match self.skipped() {
            0 => String::new(),
            1 => ", with 1 step SKIPPED (see above)".to_owned(),
            several => format!(", with {several} steps SKIPPED (see above)"),
        };
        let failed = |row: &&Report| matches!(row.outcome, Outcome::Failed(_));
        let failed: Vec<_> = self.rows.iter().filter(failed).collect();
        if self.passed() {
            return writeln!(f, "\npassed in {total}{skipped}");
        }
        if failed.is_empty() {
            let why = "under CI every step must run";
            return writeln!(f, "\nFAILED after {total}{skipped}: {why}");
        }
        let count = match failed.len() {
            1 => "1 step".to_owned(),
            several => format!("{several} steps"),
        };
        writeln!(f, "\nFAILED after {total}: {count}{skipped}; each alone:")?;
        let mut failed = failed.iter();
        failed.try_for_each(|row| writeln!(f, "   {}", row.step.shell_line()))
    }
}

pub(crate) fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        whole @ 60.. => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Need, Run};

    fn summary(under_ci: bool, outcome: Outcome) -> Summary {
        let step = Step {
            name: "the step",
            need: Need::Azurite,
            run: Run::Cargo("test --workspace"),
            environment: &[],
            waits: false,
            long: false,
        };
        let took = Duration::from_secs(61);
        Summary {
            left: Vec::new(),
            under_ci,
            rows: vec![Report {
                step,
                outcome,
                took,
                worked: Duration::from_millis(1500),
            }],
            took,
        }
    }

    #[test]
    fn a_skipped_step_is_a_failure_under_ci() {
        for under_ci in [false, true] {
            let summary = summary(under_ci, Outcome::Skipped("no server".to_owned()));
            assert_eq!(summary.passed(), !under_ci);
            let text = summary.to_string();
            assert!(text.contains("SKIPPED   the step: no server"), "{text}");
            assert_eq!(text.contains("FAILED after"), under_ci, "{text}");
            assert!(text.contains("with 1 step SKIPPED"), "{text}");
        }
    }

    #[test]
    fn each_failure_says_how_to_run_the_step_alone() {
        let mut summary = summary(false, Outcome::Failed("exit 101".to_owned()));
        let [mut other, mut ran] = [(); 2].map(|()| summary.rows[0].clone());
        other.step.run = Run::Cargo("fmt");
        ran.outcome = Outcome::Ran;
        summary.rows.extend([ran, other]);
        assert!(!summary.passed());
        let text = summary.to_string();
        assert!(
            text.contains("FAILED    the step (1 min 01 s, processors 1.5 s): exit 101"),
            "{text}"
        );
        assert!(
            text.ends_with(": 2 steps; each alone:\n   cargo test --workspace\n   cargo fmt\n"),
            "{text}"
        );
    }
}

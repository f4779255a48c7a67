use std::fmt;
use std::time::Duration;

use crate::step::{Part, Step};

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ran,
    Failed(String),
    Skipped(String),
    /// An earlier step failed.
    NotRun,
}

/// The outcomes of all steps.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Under CI a skipped suite is a failure, since nobody reads the summary.
    pub(crate) under_ci: bool,
    pub(crate) rows: Vec<(Step, Outcome, Duration)>,
    /// Of the whole run, in which some steps run beside each other.
    pub(crate) took: Duration,
}

impl Summary {
    /// Returns whether the run passed.
    pub(crate) fn passed(&self) -> bool {
        !self.rows.iter().any(|(step, outcome, _)| match outcome {
            Outcome::Ran => false,
            Outcome::Failed(_) | Outcome::NotRun => true,
            Outcome::Skipped(_) => self.forbids_skipping(step),
        })
    }

    pub(crate) fn has_failed(&self) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
    }

    fn forbids_skipping(&self, step: &Step) -> bool {
        self.under_ci && matches!(step.part, Part::Suite(_))
    }

    fn skipped(&self) -> usize {
        let rows = self.rows.iter();
        rows.filter(|(_, outcome, _)| matches!(outcome, Outcome::Skipped(_)))
            .count()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n── summary")?;
        for (step, outcome, took) in &self.rows {
            let name = step.name;
            match outcome {
                Outcome::Ran => writeln!(f, "   ok        {name} ({})", seconds(*took))?,
                Outcome::Failed(why) => {
                    writeln!(f, "   FAILED    {name} ({}): {why}", seconds(*took))?;
                }
                Outcome::Skipped(why) => writeln!(f, "   SKIPPED   {name}: {why}")?,
                Outcome::NotRun => writeln!(f, "   not run   {name}")?,
            }
        }
        let total = seconds(self.took);
        let failed = self
            .rows
            .iter()
            .find(|row| matches!(row.1, Outcome::Failed(_)));
        if let Some((step, ..)) = failed {
            writeln!(f, "\nFAILED after {total}, at: {}", step.name)?;
            return writeln!(f, "to run it alone: {}", step.shell_line());
        }
        let skipped = match self.skipped() {
            0 => String::new(),
            1 => ", with 1 step SKIPPED (see above)".to_owned(),
            several => format!(", with {several} steps SKIPPED (see above)"),
        };
        if self.passed() {
            writeln!(f, "\npassed in {total}{skipped}")
        } else {
            writeln!(
                f,
                "\nFAILED after {total}{skipped}: under CI every suite must run"
            )
        }
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
    use crate::step::Need;

    fn summary(under_ci: bool, part: Part, outcome: Outcome) -> Summary {
        let step = Step {
            name: "the step",
            part,
            arguments: &["test", "--workspace"],
            environment: &[],
            waits: false,
        };
        let took = Duration::from_secs(61);
        Summary {
            under_ci,
            rows: vec![(step, outcome, took)],
            took,
        }
    }

    const TOOL: Part = Part::Tool { install: "a-tool" };

    #[test]
    fn under_ci_a_skipped_suite_is_a_failure_and_a_skipped_tool_is_not() {
        for (under_ci, part, passes) in [
            (false, Part::Suite(Need::Azurite), true),
            (true, Part::Suite(Need::Azurite), false),
            (false, TOOL, true),
            (true, TOOL, true),
        ] {
            let summary = summary(under_ci, part, Outcome::Skipped("no server".to_owned()));
            assert_eq!(summary.passed(), passes, "{under_ci} {part:?}");
            let text = summary.to_string();
            assert!(text.contains("SKIPPED   the step: no server"), "{text}");
            assert_eq!(text.contains("FAILED after"), !passes, "{text}");
            assert!(text.contains("with 1 step SKIPPED"), "{text}");
        }
    }

    #[test]
    fn a_failure_says_how_to_run_the_step_alone() {
        let summary = summary(false, Part::Check, Outcome::Failed("exit 101".to_owned()));
        assert!(!summary.passed());
        let text = summary.to_string();
        assert!(
            text.contains("FAILED    the step (1 min 01 s): exit 101"),
            "{text}"
        );
        assert!(
            text.ends_with("to run it alone: cargo test --workspace\n"),
            "{text}"
        );
    }

    #[test]
    fn a_step_that_was_not_run_has_not_passed() {
        assert!(!summary(false, Part::Check, Outcome::NotRun).passed());
    }
}

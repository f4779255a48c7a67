use std::fmt;
use std::time::Duration;

use crate::step::{Part, Step};

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ran,
    Failed(String),
    LeftOut(String),
    /// A step before it failed.
    NotReached,
}

/// What all steps came to.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Under CI a suite that is left out is a failure: nobody is there to read that it was.
    pub(crate) under_ci: bool,
    pub(crate) rows: Vec<(Step, Outcome, Duration)>,
}

impl Summary {
    /// Whether everything is well.
    pub(crate) fn passed(&self) -> bool {
        !self.rows.iter().any(|(step, outcome, _)| match outcome {
            Outcome::Ran => false,
            Outcome::Failed(_) | Outcome::NotReached => true,
            Outcome::LeftOut(_) => self.forbids_leaving_out(step),
        })
    }

    fn forbids_leaving_out(&self, step: &Step) -> bool {
        self.under_ci && matches!(step.part, Part::Suite(_))
    }

    fn left_out(&self) -> usize {
        let rows = self.rows.iter();
        rows.filter(|(_, outcome, _)| matches!(outcome, Outcome::LeftOut(_)))
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
                Outcome::LeftOut(why) => writeln!(f, "   LEFT OUT  {name}: {why}")?,
                Outcome::NotReached => writeln!(f, "   not run   {name}")?,
            }
        }
        let total: Duration = self.rows.iter().map(|(_, _, took)| *took).sum();
        let total = seconds(total);
        let failed = self
            .rows
            .iter()
            .find(|row| matches!(row.1, Outcome::Failed(_)));
        if let Some((step, ..)) = failed {
            writeln!(f, "\nFAILED after {total}, at: {}", step.name)?;
            return writeln!(f, "to run it alone: {}", step.shell_line());
        }
        let left_out = match self.left_out() {
            0 => String::new(),
            1 => ", with 1 step LEFT OUT (see above)".to_owned(),
            several => format!(", with {several} steps LEFT OUT (see above)"),
        };
        if self.passed() {
            writeln!(f, "\npassed in {total}{left_out}")
        } else {
            writeln!(
                f,
                "\nFAILED after {total}{left_out}: under CI every suite must run"
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
    use crate::step::Server;

    fn summary(under_ci: bool, part: Part, outcome: Outcome) -> Summary {
        let step = Step {
            name: "the step",
            part,
            arguments: &["test", "--workspace"],
            environment: &[],
        };
        Summary {
            under_ci,
            rows: vec![(step, outcome, Duration::from_secs(61))],
        }
    }

    const TOOL: Part = Part::Tool { install: "a-tool" };

    #[test]
    fn under_ci_a_suite_that_is_left_out_is_a_failure_and_a_tool_is_not() {
        for (under_ci, part, passes) in [
            (false, Part::Suite(Server::Azurite), true),
            (true, Part::Suite(Server::Azurite), false),
            (false, TOOL, true),
            (true, TOOL, true),
        ] {
            let summary = summary(under_ci, part, Outcome::LeftOut("no server".to_owned()));
            assert_eq!(summary.passed(), passes, "{under_ci} {part:?}");
            let text = summary.to_string();
            assert!(text.contains("LEFT OUT  the step: no server"), "{text}");
            assert_eq!(text.contains("FAILED after"), !passes, "{text}");
            assert!(text.contains("with 1 step LEFT OUT"), "{text}");
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
    fn what_was_not_reached_has_not_passed() {
        assert!(!summary(false, Part::Check, Outcome::NotReached).passed());
    }
}

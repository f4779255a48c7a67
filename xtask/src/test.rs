//! Runs steps: one after another those that do not wait, and beside them those that wait, once their programs are built.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::built::{Built, Program};
use crate::cargo::is_set;
use crate::program::{Ended, Kept, measure};
use crate::step::{Run, Step};
use crate::steps::TEST;
use crate::summary::{Outcome, Report, Summary, seconds};

/// How many steps that wait run beside each other.
const WAITING: usize = 4;

/// How many programs of one step run beside each other. Tests wait more than they work.
const PROGRAMS: usize = 3;

/// Which steps to run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Choice<'a> {
    All,
    /// Steps that do not take long.
    Short,
    /// Steps whose names contain this text, and what they need.
    Named(&'a str),
}

/// Runs steps to the end, also after one that failed, and reports.
pub(crate) fn run(steps: &[Step], choice: Choice<'_>) -> ExitCode {
    let started = Instant::now();
    let chosen = chosen(steps, choice);
    if chosen.is_empty() {
        eprintln!("no step is {choice:?}; the steps are:");
        steps.iter().for_each(|step| eprintln!("   {}", step.name));
        return ExitCode::FAILURE;
    }
    let rows = run_steps(&chosen);
    let summary = Summary {
        under_ci: is_set("CI"),
        rows,
        left: match choice {
            Choice::Short => steps
                .iter()
                .filter(|step| step.long)
                .map(|step| step.name)
                .collect(),
            Choice::All | Choice::Named(_) => Vec::new(),
        },
        took: started.elapsed(),
    };
    eprint!("{summary}");
    if summary.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the chosen steps, and the build if one of them needs that.
fn chosen(steps: &[Step], choice: Choice<'_>) -> Vec<Step> {
    let wanted = |step: &Step| match choice {
        Choice::All => true,
        Choice::Short => !step.long,
        Choice::Named(only) => step.name.contains(only),
    };
    let built = steps
        .iter()
        .any(|step| wanted(step) && step.needs_the_build());
    let wanted = |step: &&Step| wanted(step) || built && matches!(step.run, Run::Build);
    steps.iter().filter(wanted).copied().collect()
}

fn run_steps(steps: &[Step]) -> Vec<Report> {
    let built = OnceLock::new();
    let rows = Mutex::new(vec![None; steps.len()]);
    let each = |(at, step): (usize, &Step)| {
        let row = run_step(step, &built);
        lock(&rows)[at] = Some(row);
    };
    let (waiting, others): (Vec<_>, Vec<_>) = (0..).zip(steps).partition(|(_, step)| step.waits);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _nobody_waits = Given(&built);
            at_once(1, others, each);
        });
        scope.spawn(|| at_once(WAITING, waiting, each));
    });
    let rows = std::mem::take(&mut *lock(&rows));
    let ended = rows.into_iter().map(|row| row.expect("it has ended"));
    ended.collect()
}

/// Has steps that wait for the programs go on without any, if there is no build or it has panicked.
struct Given<'a>(&'a OnceLock<Built>);

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.0.get_or_init(Built::default);
    }
}

/// Handles the items in order, this many at once.
fn at_once<T: Send>(limit: usize, items: Vec<T>, each: impl Fn(T) + Sync) {
    let items = Mutex::new(items.into_iter());
    let next = || lock(&items).next();
    let work = || {
        while let Some(item) = next() {
            each(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..limit {
            scope.spawn(work);
        }
    });
}

fn run_step(step: &Step, built: &OnceLock<Built>) -> Report {
    let obstacle = step.obstacle();
    if step.needs_the_build() {
        built.wait();
    }
    let started = Instant::now();
    let (outcome, worked) = if let Some(why) = obstacle {
        (Outcome::Skipped(why), Duration::ZERO)
    } else {
        eprintln!("── {} ── {}", step.name, step.shell_line());
        match step.run {
            Run::Cargo(_) | Run::Lint(_) => outcome(&measure(step.command(), Kept::Nothing)),
            Run::Build => build(step, built),
            Run::Tests(first) => run_programs(step, built.wait().unnamed(first), ""),
            Run::Suites(names, arguments) => {
                let programs = names.iter().map(|name| built.wait().named(name));
                let programs: Vec<_> = programs.collect();
                if programs.iter().any(Vec::is_empty) {
                    let why = "a program was not built".to_owned();
                    (Outcome::Failed(why), Duration::ZERO)
                } else {
                    run_programs(step, programs.concat(), arguments)
                }
            }
        }
    };
    let row = Report {
        step: *step,
        outcome,
        took: started.elapsed(),
        worked,
    };
    eprint!("{row}");
    row
}

/// Builds the programs of tests, and fails if there is one that no step runs.
fn build(step: &Step, built: &OnceLock<Built>) -> (Outcome, Duration) {
    let (programs, wrong, worked) = Built::build(|| step.command());
    let run: Vec<&str> = TEST.iter().flat_map(Step::suites).copied().collect();
    let only_named = programs.only_named().into_iter();
    let names = only_named.map(|(_, program)| program.name.as_str());
    let lost: Vec<_> = names.filter(|name| !run.contains(name)).collect();
    let outcome = match wrong {
        Some(why) => Outcome::Failed(why),
        None if lost.is_empty() => Outcome::Ran,
        None => Outcome::Failed(format!("no step runs {}", lost.join(", "))),
    };
    built.get_or_init(|| programs);
    (outcome, worked)
}

/// Runs programs with these arguments, and prints what each has written when it has ended.
fn run_programs(
    step: &Step,
    programs: Vec<(&Path, &Program)>,
    arguments: &str,
) -> (Outcome, Duration) {
    let state = Mutex::new(Ran::default());
    at_once(PROGRAMS, programs, |(path, program)| {
        let mut command = program.command(path);
        command
            .args(arguments.split_ascii_whitespace())
            .envs(step.environment.iter().copied());
        let started = Instant::now();
        let ended = measure(command, Kept::All);
        let (outcome, worked) = outcome(&ended);
        let took = seconds(started.elapsed());
        let mut state = lock(&state);
        state.worked += worked;
        eprintln!("   {} in {took}", path.display());
        if let Ok(ended) = ended {
            state.passed += passed(&String::from_utf8_lossy(&ended.output));
            // The program has failed or not, whether or not anybody reads this.
            let _ = std::io::stderr().write_all(&ended.output);
        }
        if let Outcome::Failed(why) = outcome {
            state.failed.push(format!("{} ({why})", program.name));
        }
    });
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let outcome = if !state.failed.is_empty() {
        Outcome::Failed(state.failed.join(", "))
    } else if state.passed == 0 {
        // Of an argument that names no test, a program says nothing.
        Outcome::Failed("no test ran".to_owned())
    } else {
        Outcome::Ran
    };
    (outcome, state.worked)
}

/// What the programs of a step have done so far.
#[derive(Debug, Default)]
struct Ran {
    passed: u64,
    failed: Vec<String>,
    worked: Duration,
}

/// Returns how many tests have passed, as a program of tests says at its end.
fn passed(output: &str) -> u64 {
    let results = output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "));
    let counts = results.filter_map(|result| {
        result
            .split(' ')
            .zip(result.split(' ').skip(1))
            .find(|(_, word)| *word == "passed;")
    });
    counts
        .filter_map(|(count, _)| count.parse::<u64>().ok())
        .sum()
}

fn outcome(ended: &std::io::Result<Ended>) -> (Outcome, Duration) {
    match ended {
        Ok(ended) if ended.status.success() => (Outcome::Ran, ended.worked),
        Ok(ended) => (Outcome::Failed(ended.status.to_string()), ended.worked),
        Err(error) => {
            let why = format!("it did not start: {error}");
            (Outcome::Failed(why), Duration::ZERO)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Need;

    fn step(name: &'static str, run: Run, waits: bool) -> Step {
        Step {
            name,
            need: Need::Nothing,
            run,
            environment: &[],
            waits,
            long: false,
        }
    }

    #[test]
    fn a_step_that_is_run_alone_has_what_it_needs() {
        let names =
            |choice| -> Vec<_> { chosen(TEST, choice).iter().map(|step| step.name).collect() };
        let named = |only| names(Choice::Named(only));
        assert_eq!(named("crashes"), ["build", "crashes"]);
        assert_eq!(named("format"), ["format"]);
        assert!(named("no such step").is_empty());
    }

    #[test]
    fn all_but_the_long_steps_are_run_unless_all_are_asked_for() {
        let names =
            |choice| -> Vec<_> { chosen(TEST, choice).iter().map(|step| step.name).collect() };
        assert_eq!(names(Choice::All).len(), TEST.len());
        let short = names(Choice::Short);
        assert!(
            short.contains(&"tests") && !short.contains(&"crashes"),
            "{short:?}"
        );
    }

    #[test]
    fn all_steps_run_and_say_how_they_ended() {
        for waits in [false, true] {
            let steps = [
                step("one", Run::Cargo("--version"), waits),
                step("two", Run::Cargo("no-such-subcommand"), waits),
                step("three", Run::Cargo("--version"), waits),
            ];
            let ended = run_steps(&steps);
            let ended: Vec<_> = ended.into_iter().map(|row| row.outcome).collect();
            assert_eq!([&ended[0], &ended[2]], [&Outcome::Ran, &Outcome::Ran]);
            assert!(matches!(ended[1], Outcome::Failed(_)), "{ended:?}");
        }
    }
}

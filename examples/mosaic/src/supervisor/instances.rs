//! Processes that run beside this one, as many as its listener advises.
//!
//! Each is started with a pipe as its standard input, and stops when that ends: also when this process is killed.

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The pause between two looks at the advice and the processes.
const INTERVAL: Duration = Duration::from_millis(250);

/// The first and the longest pause before a process that has died is replaced.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The age from which the death of a process is not one of a series.
const STABLE: Duration = Duration::from_secs(60);

/// The time that other processes have to end, which is longer than that of their handlers.
pub(crate) const GRACE: Duration = Duration::from_secs(30);

/// The greatest number of instances.
const MAX_INSTANCES: usize = 64;

/// The instances of a role, except the one in this process. Dropping this has them stop, and does not wait.
pub(crate) struct Instances {
    command: Command,
    running: Vec<Instance>,
    /// Told to stop.
    stopping: Vec<Instance>,
    /// Deaths in a row.
    deaths: u32,
    /// When the last one died or could not be started, and the pause after that.
    died: Option<(Instant, Duration)>,
}

struct Instance {
    child: Child,
    started: Instant,
}

impl Instances {
    /// Has not started any yet. The command ends at the end of its standard input.
    pub(crate) fn new(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        Self {
            command,
            running: Vec::new(),
            stopping: Vec::new(),
            deaths: 0,
            died: None,
        }
    }

    /// Starts and stops processes so that there are as many as wanted, with this one.
    ///
    /// # Cancel safety
    /// If the future is dropped, the processes go on.
    pub(crate) async fn keep(&mut self, wanted: impl Fn() -> usize) -> Infallible {
        loop {
            self.reap();
            self.adjust(wanted().saturating_sub(1));
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Has all processes stop, and waits until they have finished what they have. Those that have not within `grace`
    /// are killed.
    pub(crate) async fn stop(mut self, grace: Duration) {
        let begun = Instant::now();
        self.adjust(0);
        while !self.stopping.is_empty() {
            self.reap();
            if begun.elapsed() >= grace {
                for instance in &mut self.stopping {
                    let pid = instance.child.id();
                    tracing::warn!(pid, "killing an instance that does not stop");
                    if let Err(error) = instance.child.kill() {
                        tracing::warn!(pid, %error, "failed to kill an instance");
                    }
                }
                return;
            }
            tokio::time::sleep(INTERVAL / 5).await;
        }
    }

    fn adjust(&mut self, wanted: usize) {
        while self.running.len() > wanted
            && let Some(mut last) = self.running.pop()
        {
            tracing::info!(pid = last.child.id(), "stopping an instance");
            drop(last.child.stdin.take());
            self.stopping.push(last);
        }
        let pauses = |(at, pause): (Instant, Duration)| at.elapsed() < pause;
        while self.running.len() < wanted && !self.died.is_some_and(pauses) {
            match self.command.spawn() {
                Ok(child) => {
                    tracing::info!(pid = child.id(), "started an instance");
                    let started = Instant::now();
                    self.running.push(Instance { child, started });
                }
                Err(error) => {
                    let pause = self.pause(Duration::ZERO);
                    tracing::warn!(%error, ?pause, "failed to start an instance; will retry");
                }
            }
        }
    }

    /// Notes which processes have ended.
    fn reap(&mut self) {
        for instance in ended(&mut self.stopping) {
            let (pid, status) = (instance.0.child.id(), instance.1);
            if status.success() {
                tracing::info!(pid, "an instance has stopped")
            } else {
                tracing::warn!(pid, %status, "an instance has died while it stopped")
            }
        }
        for (instance, status) in ended(&mut self.running) {
            let (pid, pause) = (instance.child.id(), self.pause(instance.started.elapsed()));
            tracing::warn!(pid, %status, ?pause, "an instance has died; will replace it");
        }
    }

    /// Returns the pause before the replacement of a process that has died at this age.
    fn pause(&mut self, age: Duration) -> Duration {
        self.deaths = if age >= STABLE {
            0
        } else {
            self.deaths.saturating_add(1)
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << self.deaths.saturating_sub(1).min(16));
        let pause = pause.min(LONGEST_PAUSE);
        self.died = Some((Instant::now(), pause));
        pause
    }
}

/// Takes out the processes that have ended.
fn ended(instances: &mut Vec<Instance>) -> Vec<(Instance, std::process::ExitStatus)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < instances.len() {
        match instances[at].child.try_wait() {
            Ok(Some(status)) => found.push((instances.swap_remove(at), status)),
            Ok(None) => at += 1,
            Err(error) => {
                let pid = instances[at].child.id();
                tracing::warn!(pid, %error, "failed to look whether an instance has ended");
                at += 1;
            }
        }
    }
    found
}

/// Parses `MIN..MAX`.
pub(crate) fn parse_range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let range = text.split_once("..").and_then(|(min, max)| {
        let (min, max): (usize, usize) = (min.parse().ok()?, max.parse().ok()?);
        (1 <= min && min <= max && max <= MAX_INSTANCES).then_some(min..=max)
    });
    range.ok_or_else(|| {
        format!("MIN..MAX is allowed, with both from 1 to {MAX_INSTANCES}, such as 1..4")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("1..4"), Ok(1..=4));
        assert_eq!(parse_range("2..2"), Ok(2..=2));
        for text in ["", "3", "0..4", "4..1", "1..65", "1..", "1..=4", "a..b"] {
            parse_range(text).expect_err(text);
        }
    }

    #[test]
    fn pauses_grow_while_processes_die_young() {
        let mut instances = Instances::new(Command::new("none"));
        let young: Vec<_> = (0..20).map(|_| instances.pause(Duration::ZERO)).collect();
        assert_eq!(young[..3], [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]);
        assert_eq!(young[19], LONGEST_PAUSE);
        assert_eq!(instances.pause(STABLE), FIRST_PAUSE);
        assert_eq!(instances.pause(Duration::ZERO), FIRST_PAUSE);
    }

    #[test]
    fn a_program_that_does_not_start_is_not_tried_again_at_once() {
        let mut instances = Instances::new(Command::new("/no/such/program"));
        for _ in 0..3 {
            instances.adjust(3);
        }
        assert_eq!((instances.deaths, instances.running.len()), (1, 0));
    }
}

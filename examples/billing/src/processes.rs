//! The processes of a run, which end by themselves at the end of their input, so that none outlives its parent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use queue_runtime::Failure;
use rand::rngs::SmallRng;
use rand::seq::{IteratorRandom as _, SliceRandom as _};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Kind, Place};

/// Returns the command of a role.
pub(crate) fn command(kind: Kind, place: &Place) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["role", &kind.name(), "--url", &place.url]);
    command.args(["--workers", &place.workers.to_string(), "--data"]);
    command.arg(&place.data);
    Ok(command)
}

/// The processes that the run starts itself, and the workers that the agent has told of, killed on drop.
#[derive(Debug)]
pub(crate) struct Processes {
    place: Place,
    own: BTreeMap<Kind, Child>,
    workers: BTreeSet<i32>,
    /// What the agent prints.
    lines: Receiver<String>,
}

impl Processes {
    /// Starts initiator, controller and agent.
    pub(crate) fn start(place: Place) -> Result<Self, Failure> {
        let mut processes = Self {
            place,
            own: BTreeMap::new(),
            workers: BTreeSet::new(),
            lines: channel().1,
        };
        for kind in [Kind::Initiator, Kind::Controller, Kind::Agent] {
            processes.replace(kind)?;
        }
        Ok(processes)
    }

    /// Returns the number of workers that run.
    pub(crate) fn workers(&self) -> f64 {
        self.workers.len() as f64
    }

    /// Reads what the agent has printed, and fails if a process has ended that was not killed.
    pub(crate) fn look(&mut self) -> Result<(), Failure> {
        for (kind, child) in &mut self.own {
            if let Some(status) = child.try_wait()? {
                return Err(format!("the {} ended with {status}", kind.name()).into());
            }
        }
        for line in self.lines.try_iter() {
            match line.split_once(' ').map(|(what, id)| (what, id.parse())) {
                Some(("started", Ok(id))) => drop(self.workers.insert(id)),
                Some(("died" | "stopped", Ok(id))) => drop(self.workers.remove(&id)),
                _ => return Err(format!("the agent printed `{line}`").into()),
            }
        }
        Ok(())
    }

    /// Kills a process of a kind, and starts another one unless the agent does. Returns false if there is no process to
    /// kill.
    pub(crate) fn kill(&mut self, kind: Kind, random: &mut SmallRng) -> Result<bool, Failure> {
        if kind != Kind::Worker {
            return self.replace(kind).map(|()| true);
        }
        let chosen = self.workers.iter().copied().choose(random);
        let Some((id, process)) = chosen.and_then(|id| Some((id, Pid::from_raw(id)?))) else {
            return Ok(false);
        };
        self.workers.remove(&id);
        // A kill fails only if the worker has died by itself, which the agent tells.
        let _ = kill_process(process, Signal::KILL);
        Ok(true)
    }

    /// Kills the process of a kind, if there is one, and starts another.
    fn replace(&mut self, kind: Kind) -> Result<(), Failure> {
        if let Some(mut child) = self.own.remove(&kind) {
            child.kill()?;
            child.wait()?;
        }
        let is_agent = kind == Kind::Agent;
        let output = is_agent.then(Stdio::piped).unwrap_or_else(Stdio::null);
        let mut command = command(kind, &self.place)?;
        let mut child = command.stdin(Stdio::piped()).stdout(output).spawn()?;
        if let Some(output) = child.stdout.take() {
            let (sender, lines) = channel();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(output).lines().map_while(Result::ok);
                // The run may have ended.
                lines.try_for_each(|line| sender.send(line))
            });
            // The workers of an agent that was killed end by themselves.
            (self.lines, self.workers) = (lines, BTreeSet::new());
        }
        self.own.insert(kind, child);
        Ok(())
    }

    /// Ends all processes in order.
    pub(crate) fn end(mut self) -> Result<(), Failure> {
        for child in self.own.values_mut() {
            drop(child.stdin.take());
        }
        for (kind, child) in &mut self.own {
            let status = child.wait()?;
            if !status.success() {
                return Err(format!("the {} ended with {status}", kind.name()).into());
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.own.values_mut() {
            // `kill` and `wait` fail only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Chooses whom to kill: the initiator first, while it has something to do; once the controller and the agent; and workers.
pub(crate) fn victims(kills: usize, random: &mut SmallRng) -> Vec<Kind> {
    let mut victims = vec![Kind::Worker; kills];
    if kills > 3 {
        victims[..3].copy_from_slice(&[Kind::Initiator, Kind::Controller, Kind::Agent]);
        victims[1..].shuffle(random);
    }
    victims
}

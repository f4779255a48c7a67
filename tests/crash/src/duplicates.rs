//! Processes that are asked for the same work many times at once are killed at random. Then each work must have been
//! done once, but for what was done between an effect and its record by a process that was killed.
//!
//! A second claim, and with it a second effect, is right only if the lease of the first may have ended, by the moments
//! that the processes have logged. So the judgement does not depend on the machine's speed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::messages::LEASE;
use crate::process::{GUARD, Process};
use crate::sabotage::Bug;
use crate::worker::{Arguments, Kept, Role, Step};

/// Calls for one key in each process.
pub const CALLS: usize = 25;

/// The line that a process prints, with the key, once all its calls have returned.
pub const DONE: &str = "done";

/// Processes that run at a time: together they make a hundred calls for a key.
const PROCESSES: usize = 4;

/// The largest number of lines that the processes print before one of them is killed from outside.
const BEFORE_KILL: usize = 40;

/// One line of a process's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When it was written, on the clock of [`moment`](crate::ledger::moment).
    pub at: u64,
    /// The call, among those of all processes.
    pub call: u64,
    /// The key of the work.
    pub key: String,
    /// What happened.
    pub event: Event,
}

/// What a line records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The call has claimed the key.
    Claimed {
        /// The moment before it asked for that.
        asked: u64,
    },
    /// The call has done the work.
    Effect,
    /// The call has returned the result: the call that did the work.
    Returned {
        /// That call.
        call: u64,
    },
}

/// What a run does. It ends by count.
#[derive(Debug, Clone)]
pub struct Duplicates<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Of its random choices.
    pub seed: u64,
    /// Where results are kept.
    pub kept: Kept,
    /// The number of keys.
    pub keys: usize,
    /// The planted bug.
    pub bug: Option<Bug>,
}

/// What a run has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Keys whose work was done.
    pub keys: usize,
    /// Processes that were killed.
    pub kills: usize,
    /// Claims of all keys.
    pub claims: usize,
    /// Effects of all keys.
    pub effects: usize,
}

struct Run<'a> {
    duplicates: &'a Duplicates<'a>,
    folder: TempDir,
    random: SmallRng,
    processes: Vec<Process>,
    lines: Receiver<(u64, String)>,
    sender: Sender<(u64, String)>,
    started: u64,
    kills: usize,
    wrong: Vec<String>,
}

impl Duplicates<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub fn run(&self) -> Result<Figures, Vec<String>> {
        let (sender, lines) = channel();
        let folder = TempDir::new().expect("a folder");
        std::fs::create_dir(folder.path().join(Kept::FOLDER)).expect("made");
        let mut run = Run {
            duplicates: self,
            folder,
            random: SmallRng::seed_from_u64(self.seed),
            processes: Vec::new(),
            lines,
            sender,
            started: 0,
            kills: 0,
            wrong: Vec::new(),
        };
        for _ in 0..PROCESSES {
            run.start();
        }
        for key in 0..self.keys {
            run.work_on(&format!("key{key}"));
        }
        run.judge()
    }
}

impl Run<'_> {
    fn start(&mut self) -> &mut Process {
        self.started += 1;
        let number = self.started;
        let arguments = Arguments {
            role: Role::Once(self.duplicates.kept),
            file: self.folder.path().join("queues.db"),
            ledger: self.folder.path().join(format!("{number}.ledger")),
            number,
            seed: self.duplicates.seed,
            bug: self.duplicates.bug,
            environment: Vec::new(),
        };
        let process = Process::start(self.duplicates.program, &arguments, self.sender.clone());
        self.processes.push(process);
        self.processes.last_mut().expect("it was added")
    }

    /// Has all processes do the work of a key, and kills some: one at a step, and perhaps one at any moment.
    fn work_on(&mut self, key: &str) {
        let step = Step::ALL[self.random.random_range(0..Step::ALL.len())];
        let mut until_kill = self
            .random
            .random_bool(0.5)
            .then(|| self.random.random_range(1..=BEFORE_KILL));
        for process in &mut self.processes {
            process.tell(&format!("{key} {step}"));
        }
        let mut done = BTreeSet::new();
        let mut last = Instant::now();
        while !self.processes.iter().all(|one| done.contains(&one.number)) {
            if let Ok((number, line)) = self.lines.recv_timeout(LEASE / 20) {
                last = Instant::now();
                until_kill = until_kill.map(|left: usize| left.saturating_sub(1));
                if line == format!("{DONE} {key}") {
                    done.insert(number);
                }
            }
            assert!(last.elapsed() < GUARD, "{key}: nothing happens");
            if until_kill == Some(0) {
                until_kill = None;
                let victim = self.random.random_range(0..self.processes.len());
                let process = self.processes.swap_remove(victim);
                let complaints = process.kill();
                self.replace(key, &complaints);
            }
            while let Some(ended) = self.processes.iter_mut().position(Process::has_ended) {
                let (_, complaints) = self.processes.swap_remove(ended).wait();
                self.replace(key, &complaints);
            }
        }
    }

    /// Replaces a process that was killed.
    fn replace(&mut self, key: &str, complaints: &str) {
        self.kills += 1;
        self.note(complaints);
        self.start().tell(&format!("{key} -"));
    }

    /// Processes print to the standard error only when they panic.
    fn note(&mut self, complaints: &str) {
        if !complaints.is_empty() {
            self.wrong.push(complaints.to_owned());
        }
    }

    fn judge(mut self) -> Result<Figures, Vec<String>> {
        for process in std::mem::take(&mut self.processes) {
            let (status, complaints) = process.finish();
            self.note(&complaints);
            if !status.success() {
                self.wrong.push(format!("a process ended with {status}"));
            }
        }
        let mut keys: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for number in 1..=self.started {
            let path = self.folder.path().join(format!("{number}.claims"));
            // A process may have been killed before it created its log.
            let text = std::fs::read_to_string(path).unwrap_or_default();
            for line in text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
            {
                let entry: Entry = serde_json::from_str(line).expect("an entry");
                keys.entry(entry.key.clone()).or_default().push(entry);
            }
        }
        let mut figures = Figures {
            keys: keys.len(),
            kills: self.kills,
            ..Figures::default()
        };
        for entries in keys.values() {
            self.wrong.extend(judge(entries));
            let count = |is: fn(&Event) -> bool| entries.iter().filter(|e| is(&e.event)).count();
            figures.claims += count(|event| matches!(event, Event::Claimed { .. }));
            figures.effects += count(|event| *event == Event::Effect);
        }
        if self.wrong.is_empty() {
            return Ok(figures);
        }
        Err(self.wrong)
    }
}

/// Returns what is wrong with the entries of one key.
fn judge(entries: &[Entry]) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(key) = entries.first().map(|entry| &entry.key) else {
        return vec!["nothing was logged".to_owned()];
    };
    let lease = u64::try_from(LEASE.as_nanos()).expect("short");
    let claims: Vec<(&Entry, u64)> = entries
        .iter()
        .filter_map(|entry| match entry.event {
            Event::Claimed { asked } => Some((entry, asked)),
            _ => None,
        })
        .collect();
    // The one may have ended before the other began.
    let precedes = |(_, asked): &(&Entry, u64), later: &(&Entry, u64)| {
        later.0.at >= asked.saturating_add(lease)
    };
    for (at, one) in claims.iter().enumerate() {
        for other in &claims[..at] {
            if !precedes(one, other) && !precedes(other, one) {
                let (one, other) = (one.0.call, other.0.call);
                wrong.push(format!("{key}: {one} and {other} held it at a time"));
            }
        }
    }
    let results: BTreeSet<u64> = entries
        .iter()
        .filter_map(|entry| match entry.event {
            Event::Returned { call } => Some(call),
            _ => None,
        })
        .collect();
    if results.len() != 1 {
        wrong.push(format!("{key}: the results are of the calls {results:?}"));
    }
    let effects = entries.iter().filter(|entry| entry.event == Event::Effect);
    let effects: Vec<u64> = effects.map(|entry| entry.call).collect();
    for call in results {
        if !effects.contains(&call) {
            wrong.push(format!("{key}: the result of {call}, which has no effect"));
        }
        let recorded = claims.iter().rev().find(|(entry, _)| entry.call == call);
        let Some(recorded) = recorded else {
            wrong.push(format!(
                "{key}: {call} has recorded a result without a claim"
            ));
            continue;
        };
        for other in claims.iter().filter(|other| other.0.call != call) {
            if !precedes(other, recorded) {
                let other = other.0.call;
                wrong.push(format!(
                    "{key}: {other} held it after {call} recorded the result"
                ));
            }
        }
    }
    for call in effects.iter().collect::<BTreeSet<_>>() {
        let effects = effects.iter().filter(|other| *other == call).count();
        let claims = claims
            .iter()
            .filter(|(entry, _)| entry.call == *call)
            .count();
        if effects > claims {
            wrong.push(format!(
                "{key}: {effects} effects of {call}, and {claims} claims"
            ));
        }
    }
    wrong
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            keys,
            kills,
            claims,
            effects,
        } = self;
        write!(
            f,
            "{keys} keys, {kills} kills, {claims} claims, {effects} effects"
        )
    }
}

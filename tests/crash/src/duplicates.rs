//! Processes that are asked for the same work many times at once are killed at random; then each work must have been
//! done once, but for what was done between an effect and its record by a process that was killed.
//!
//! A second claim, and with it a second effect, is right only if the lease of the first may have ended, by the moments
//! that the processes have logged. So the judgement does not depend on the machine's speed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};

use crate::crew::Crew;
use crate::messages::LEASE;
use crate::sabotage::Bug;
use crate::worker::{Kept, Role, Step};

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
pub struct CallEntry {
    /// When the line was written, on the clock of [`moment`](crate::ledger::moment).
    pub at: u64,
    /// The call, among those of all processes.
    pub call: u64,
    /// The key of the work.
    pub key: String,
    /// What happened.
    pub event: CallEvent,
}

/// What a line records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallEvent {
    /// The call has claimed the key.
    Claimed {
        /// The moment before the claim.
        asked: u64,
    },
    /// The call has done the work.
    Effect,
    /// The call has returned the result.
    Returned {
        /// The call that did the work.
        call: u64,
    },
}

/// What a run does, ending by count.
#[derive(Debug, Clone)]
pub struct Duplicates<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Seed of random choices.
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
pub struct DuplicateFigures {
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
    crew: Crew<'a>,
    role: Role,
    bug: Option<Bug>,
    kills: usize,
}

impl Duplicates<'_> {
    /// Performs the run.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub fn run(&self) -> Result<DuplicateFigures, Vec<String>> {
        let mut run = Run {
            crew: Crew::new(self.program, self.seed),
            role: Role::Once(self.kept),
            bug: self.bug,
            kills: 0,
        };
        for _ in 0..PROCESSES {
            run.crew.start(run.role, run.bug);
        }
        for key in 0..self.keys {
            run.work_on(&format!("key{key}"));
        }
        run.judge()
    }
}

impl Run<'_> {
    /// Has all processes do the work of a key, and kills some: one at a step, and perhaps one at any moment.
    fn work_on(&mut self, key: &str) {
        let random = &mut self.crew.random;
        let step = Step::ALL[random.random_range(0..Step::ALL.len())];
        let kill_one = random.random_bool(0.5);
        let mut until_kill = kill_one.then(|| random.random_range(1..=BEFORE_KILL));
        self.crew.tell(&format!("{key} {step}"));
        let (line, mut done) = (format!("{DONE} {key}"), BTreeSet::new());
        while !self.crew.all_are_in(&done) {
            if let Some((number, printed)) = self.crew.line() {
                until_kill = until_kill.map(|left: usize| left.saturating_sub(1));
                if printed == line {
                    done.insert(number);
                }
            }
            if until_kill == Some(0) {
                until_kill = None;
                self.crew.kill_any();
                self.replace(key);
            }
            while self.crew.ended().is_some() {
                self.replace(key);
            }
        }
    }

    /// Starts a process in place of one that was killed.
    fn replace(&mut self, key: &str) {
        self.kills += 1;
        self.crew
            .start(self.role, self.bug)
            .tell(&format!("{key} -"));
    }

    fn judge(mut self) -> Result<DuplicateFigures, Vec<String>> {
        self.crew.end(self.role);
        let mut keys: BTreeMap<String, Vec<CallEntry>> = BTreeMap::new();
        for number in 1..=self.crew.started {
            let path = self.crew.folder().join(format!("{number}.claims"));
            // A process may have been killed before it created its log.
            let text = std::fs::read_to_string(path).unwrap_or_default();
            for line in text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
            {
                let entry: CallEntry = serde_json::from_str(line).expect("an entry");
                keys.entry(entry.key.clone()).or_default().push(entry);
            }
        }
        let mut figures = DuplicateFigures {
            keys: keys.len(),
            kills: self.kills,
            ..DuplicateFigures::default()
        };
        for entries in keys.values() {
            self.crew.wrong.extend(judge(entries));
            let count =
                |is: fn(&CallEvent) -> bool| entries.iter().filter(|e| is(&e.event)).count();
            figures.claims += count(|event| matches!(event, CallEvent::Claimed { .. }));
            figures.effects += count(|event| *event == CallEvent::Effect);
        }
        self.crew.judge(figures)
    }
}

/// Returns what is wrong with the entries of one key.
fn judge(entries: &[CallEntry]) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(key) = entries.first().map(|entry| &entry.key) else {
        return vec!["nothing was logged".to_owned()];
    };
    let lease = u64::try_from(LEASE.as_nanos()).expect("short");
    let claims: Vec<(&CallEntry, u64)> = entries
        .iter()
        .filter_map(|entry| match entry.event {
            CallEvent::Claimed { asked } => Some((entry, asked)),
            _ => None,
        })
        .collect();
    // The one may have ended before the other began.
    let precedes = |(_, asked): &(&CallEntry, u64), later: &(&CallEntry, u64)| {
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
            CallEvent::Returned { call } => Some(call),
            _ => None,
        })
        .collect();
    if results.len() != 1 {
        wrong.push(format!("{key}: the results are of the calls {results:?}"));
    }
    let effects = entries
        .iter()
        .filter(|entry| entry.event == CallEvent::Effect);
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

impl fmt::Display for DuplicateFigures {
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

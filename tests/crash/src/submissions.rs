//! Processes that submit the same keys at the same time are killed at random, and others repeat what they were told.
//! Then each key must have one message, whose id all of them were told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use queue_runtime::QueueService;
use rand::RngExt as _;

use crate::crew::{Crew, take};
use crate::duplicates::DONE;
use crate::messages::Reminder;
use crate::sabotage::{Bug, Point};
use crate::worker::{ANSWERED, Kept, Role, SUBMITTED_AT_ONCE};

/// The processes that submit at a time.
const PROCESSES: usize = 4;

/// The keys that they submit at a time. The first half of them was submitted before, except for the first time.
const KEYS: u64 = 16;

/// The keys of the processes that abort first.
const ABORTED: u64 = 4;

/// The largest number of lines that are read before a process is killed: about as many as there are new keys.
const BEFORE_KILL: usize = 24;

/// What a run does. It ends by count.
#[derive(Debug, Clone)]
pub struct Submissions<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Of its random choices.
    pub seed: u64,
    /// Where keys are recorded: in the file in one step with the messages, or in a folder after them.
    pub kept: Kept,
    /// How often the processes are told to submit keys.
    pub rounds: usize,
    /// The bug of the first process, which aborts.
    pub bug: Option<Bug>,
}

/// What a run has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Keys.
    pub keys: usize,
    /// Answers that processes have got.
    pub answers: usize,
    /// Processes that were killed or have aborted.
    pub kills: usize,
    /// Keys whose message was put by a process that was killed before it had the answer.
    pub orphans: usize,
    /// Messages in excess of one for each key.
    pub copies: usize,
}

struct Run<'a> {
    crew: Crew<'a>,
    role: Role,
    kills: usize,
    keys: BTreeMap<u64, Key>,
}

/// What is known of a key.
#[derive(Debug, Default)]
struct Key {
    /// The ids that processes were told.
    told: BTreeSet<String>,
    /// Processes that were told that their message was put, and those that were told that it was a duplicate.
    first: usize,
    duplicates: usize,
    /// The ids of its messages.
    messages: Vec<String>,
}

impl Submissions<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub async fn run(&self) -> Result<Figures, Vec<String>> {
        let mut run = Run {
            crew: Crew::new(self.program, self.seed),
            role: Role::Submit(self.kept),
            kills: 0,
            keys: BTreeMap::new(),
        };
        std::fs::create_dir(run.crew.folder().join(Kept::FOLDER)).expect("made");
        let service = run.crew.connect().await;
        let created = service.queue::<Reminder>().any().create().await;
        created.expect("created");
        let points = [Point::BeforePut, Point::AfterPut].map(Bug::Aborts);
        let aborts = self.bug.as_ref().map_or(&points[..], std::slice::from_ref);
        for (first, bug) in (0..).step_by(ABORTED as usize).zip(aborts) {
            run.crew
                .abort(run.role, *bug, &format!("{first} {ABORTED}"));
            run.kills += 1;
        }
        for _ in 0..PROCESSES {
            run.crew.start(run.role, None);
        }
        for round in 0..self.rounds as u64 {
            run.submit(&format!("{} {KEYS}", round * KEYS / 2));
            run.take(&service).await;
        }
        run.crew.end(run.role);
        run.judge(self.kept)
    }
}

impl Run<'_> {
    /// Has all processes submit these keys, and kills one of them.
    fn submit(&mut self, line: &str) {
        self.crew.tell(line);
        let mut until_kill = Some(self.crew.random.random_range(0..=BEFORE_KILL));
        let (done, mut ready) = (format!("{DONE} {line}"), BTreeSet::new());
        while !self.crew.all_are_in(&ready) {
            if until_kill == Some(0) {
                until_kill = None;
                self.crew.kill_any();
                self.crew.start(self.role, None).tell(line);
                self.kills += 1;
            }
            if let Some((process, printed)) = self.crew.line() {
                until_kill = until_kill.map(|left| left - 1);
                match printed == done {
                    true => drop(ready.insert(process)),
                    false => self.note(&printed),
                }
            }
            let ended = self.crew.ended();
            assert_eq!(ended, None, "{:?}", self.crew.wrong);
        }
        // Of the process that was killed.
        for (_, printed) in self.crew.unread() {
            self.note(&printed);
        }
    }

    /// Notes an answer.
    fn note(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let [ANSWERED, key, id, duplicate] = words[..] else {
            panic!("no answer: {line}")
        };
        let key = key.parse().expect("a number");
        let key = self.keys.entry(key).or_default();
        key.told.insert(id.to_owned());
        match duplicate == "true" {
            true => key.duplicates += 1,
            false => key.first += 1,
        }
    }

    /// Takes the messages off the queue, as consumers would do before a key is submitted again.
    async fn take(&mut self, service: &QueueService) {
        for (id, Reminder { number }) in take(service).await {
            self.keys.entry(number).or_default().messages.push(id);
        }
    }

    fn judge(mut self, kept: Kept) -> Result<Figures, Vec<String>> {
        let mut figures = Figures {
            keys: self.keys.len(),
            kills: self.kills,
            ..Figures::default()
        };
        for (number, key) in &self.keys {
            self.crew.wrong.extend(key.judge(*number, kept));
            figures.answers += key.first + key.duplicates;
            figures.orphans += usize::from(key.first == 0);
            figures.copies += key.messages.len().saturating_sub(1);
        }
        let unanswered = self.kills * SUBMITTED_AT_ONCE;
        if figures.orphans.max(figures.copies) > unanswered {
            let wrong = format!("{figures}: more than the {unanswered} without an answer");
            self.crew.wrong.push(wrong);
        }
        self.crew.judge(figures)
    }
}

impl Key {
    /// Returns what is wrong with a key.
    fn judge(&self, number: u64, kept: Kept) -> Option<String> {
        let messages: BTreeSet<_> = self.messages.iter().cloned().collect();
        let is_one = match kept {
            Kept::File => self.messages.len() == 1 && self.first <= 1,
            Kept::Folder => messages.len() == 1,
        };
        let is_right = is_one && messages == self.told;
        (!is_right).then(|| {
            format!(
                "key {number} has {} messages: {self:?}",
                self.messages.len()
            )
        })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            keys,
            answers,
            kills,
            orphans,
            copies,
        } = self;
        write!(
            f,
            "{keys} keys, {answers} answers, {kills} kills, {orphans} keys put by a process that was killed, \
             {copies} copies"
        )
    }
}

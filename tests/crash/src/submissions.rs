//! Processes that submit the same keys at the same time are killed at random, and others repeat what they were told;
//! then each key must have one message, whose id all processes were told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use queue_runtime::QueueService;
use rand::RngExt as _;

use crate::crew::{Crew, take};
use crate::duplicates::DONE;
use crate::messages::Reminder;
use crate::sabotage::{Bug, Point};
use crate::worker::{ANSWERED, BEGUN, Kept, Role, UNKNOWN};

/// The processes that submit at a time.
const PROCESSES: usize = 4;

/// The keys that processes submit at a time, of which the first half was submitted before, except for the first time.
const KEYS: u64 = 16;

/// The keys of the processes that abort first.
const ABORTED: u64 = 4;

/// The largest number of answers that are read before a process is killed.
const BEFORE_KILL: usize = 24;

/// What a run does, ending by count.
#[derive(Debug, Clone)]
pub struct Submissions<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Seed of random choices.
    pub seed: u64,
    /// Where keys are recorded: in the file in one step with the messages, or in a folder after them.
    pub kept: Kept,
    /// How often the processes are told to submit keys.
    pub rounds: usize,
    /// The bug of the first process, which aborts, or of all if it is [`Bug::BeginsAlways`].
    pub bug: Option<Bug>,
}

/// What a run has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubmissionFigures {
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
    /// The bug of the processes that do not abort.
    bug: Option<Bug>,
    kills: usize,
    /// The processes and keys of submissions that are begun and not answered.
    in_flight: BTreeSet<(u64, u64)>,
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
    /// Submissions that may have put a message of which nobody was told: their process was killed, or the outcome is
    /// unknown.
    unknown: usize,
    /// The ids of the key's messages.
    messages: Vec<String>,
}

impl Submissions<'_> {
    /// Performs the run.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub async fn run(&self) -> Result<SubmissionFigures, Vec<String>> {
        let points = [Point::BeforePut, Point::AfterPut].map(Bug::Aborts);
        let (aborts, bug) = match &self.bug {
            None => (&points[..], None),
            Some(Bug::BeginsAlways) => (&points[..0], self.bug),
            Some(bug) => (std::slice::from_ref(bug), None),
        };
        let mut run = Run {
            crew: Crew::new(self.program, self.seed),
            role: Role::Submit(self.kept),
            bug,
            kills: 0,
            in_flight: BTreeSet::new(),
            keys: BTreeMap::new(),
        };
        let service = run.crew.connect().await;
        let created = service.queue::<Reminder>().any().create().await;
        created.expect("created");
        for (first, bug) in (0..).step_by(ABORTED as usize).zip(aborts) {
            run.crew
                .abort(run.role, *bug, &format!("{first} {ABORTED}"));
            run.kills += 1;
        }
        for _ in 0..PROCESSES {
            run.crew.start(run.role, run.bug);
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
                self.crew.start(self.role, self.bug).tell(line);
                self.kills += 1;
            }
            if let Some((process, printed)) = self.crew.line() {
                if printed == done {
                    ready.insert(process);
                } else if self.note(process, &printed) {
                    until_kill = until_kill.map(|left| left - 1);
                }
            }
            let ended = self.crew.ended();
            assert_eq!(ended, None, "{:?}", self.crew.wrong);
        }
        // What a killed process printed was there before its replacement started.
        assert_eq!(
            self.crew.unread(),
            [],
            "the last line is of a process that is done"
        );
        // The others have all their answers.
        for (_, key) in std::mem::take(&mut self.in_flight) {
            self.keys.entry(key).or_default().unknown += 1;
        }
    }

    /// Notes a line of a process; returns whether it is an answer.
    fn note(&mut self, process: u64, line: &str) -> bool {
        let words: Vec<_> = line.split(' ').collect();
        let number = words.get(1).and_then(|number| number.parse().ok());
        let number = number.unwrap_or_else(|| panic!("no key: {line}"));
        let key = self.keys.entry(number).or_default();
        match words[..] {
            [BEGUN, _] => drop(self.in_flight.insert((process, number))),
            [UNKNOWN, _] => key.unknown += 1,
            [ANSWERED, _, id, duplicate] => {
                self.in_flight.remove(&(process, number));
                key.told.insert(id.to_owned());
                if duplicate == "true" {
                    key.duplicates += 1
                } else {
                    key.first += 1
                }
                return true;
            }
            _ => panic!("no answer: {line}"),
        }
        false
    }

    /// Takes the messages off the queue, as consumers would do before a key is submitted again.
    async fn take(&mut self, service: &QueueService) {
        for (id, Reminder { number }) in take(service).await {
            self.keys.entry(number).or_default().messages.push(id);
        }
    }

    fn judge(mut self, kept: Kept) -> Result<SubmissionFigures, Vec<String>> {
        let mut figures = SubmissionFigures {
            keys: self.keys.len(),
            kills: self.kills,
            ..SubmissionFigures::default()
        };
        for (number, key) in &self.keys {
            self.crew.wrong.extend(key.judge(*number, kept));
            figures.answers += key.first + key.duplicates;
            figures.orphans += usize::from(key.first == 0);
            figures.copies += key.messages.len().saturating_sub(1);
        }
        self.crew.judge(figures)
    }
}

impl Key {
    /// Returns what is wrong with a key.
    fn judge(&self, number: u64, kept: Kept) -> Option<String> {
        let ids: BTreeSet<_> = self.messages.iter().cloned().collect();
        let messages = self.messages.len();
        let most = match kept {
            Kept::File => 1,
            Kept::Folder => 1 + self.unknown,
        };
        // Each message has a submission that put it, and each that was told so has a message.
        let are_put = (self.first..=self.first + self.unknown).contains(&messages);
        let is_right = are_put && messages <= most && ids.len() == 1 && ids == self.told;
        (!is_right).then(|| format!("key {number} has {messages} messages: {self:?}"))
    }
}

impl fmt::Display for SubmissionFigures {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether these numbers are right in the file, and in the folder.
    fn is_right(first: usize, unknown: usize, ids: &[&str]) -> [bool; 2] {
        let key = Key {
            told: BTreeSet::from(["a".to_owned()]),
            first,
            duplicates: 1,
            unknown,
            messages: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        [Kept::File, Kept::Folder].map(|kept| key.judge(0, kept).is_none())
    }

    #[test]
    fn a_key_has_a_message_of_one_submission() {
        assert_eq!(is_right(1, 0, &["a"]), [true, true]);
        assert_eq!(
            is_right(0, 1, &["a"]),
            [true, true],
            "of one that was killed"
        );
        assert_eq!(is_right(0, 0, &["a"]), [false, false], "of nobody");
        assert_eq!(is_right(1, 0, &[]), [false, false], "lost");
        assert_eq!(is_right(1, 0, &["b"]), [false, false], "another");
    }

    #[test]
    fn only_in_the_folder_a_submission_without_an_answer_may_add_a_copy() {
        assert_eq!(is_right(1, 1, &["a", "a"]), [false, true]);
        assert_eq!(
            is_right(1, 1, &["a", "b"]),
            [false, false],
            "with another id"
        );
        assert_eq!(is_right(1, 0, &["a", "a"]), [false, false], "of nobody");
        assert_eq!(
            is_right(2, 0, &["a", "a"]),
            [false, false],
            "of an answered one"
        );
        assert_eq!(is_right(2, 1, &["a"]), [false, false], "lost");
    }
}

//! Processes that ask and answer on one SQLite file are killed at random. Every request of a process that lives is
//! answered, and no reply queue is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use queue_crash::messages::Question;
use queue_crash::plan;
use queue_crash::process::{GUARD, Process};
use queue_crash::sabotage::Bug;
use queue_crash::worker::{ASKED, AT_ONCE, Arguments, End, REPLY_LEASE, Role};
use queue_runtime::{QueueName, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

struct Exchange {
    folder: TempDir,
    seed: u64,
    random: SmallRng,
    bug: Option<Bug>,
    processes: Vec<Process>,
    started: u64,
    /// The number of processes that ask at a time.
    asking: usize,
    lines: Receiver<(u64, String)>,
    sender: Sender<(u64, String)>,
    asked: BTreeMap<u64, BTreeSet<u64>>,
    ends: BTreeMap<u64, Vec<End>>,
    killed: BTreeSet<u64>,
}

/// What has become of the requests.
#[derive(Debug, Default)]
struct Figures {
    ends: BTreeMap<End, usize>,
    /// The requests of processes that were killed before they ended.
    abandoned: usize,
    /// The violations of what is promised.
    violations: Vec<String>,
}

impl Exchange {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let (sender, lines) = channel();
        Self {
            folder: TempDir::new().expect("a folder"),
            seed,
            random: SmallRng::seed_from_u64(seed),
            bug,
            processes: Vec::new(),
            started: 0,
            asking: 0,
            lines,
            sender,
            asked: BTreeMap::new(),
            ends: BTreeMap::new(),
            killed: BTreeSet::new(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("queues.db")
    }

    fn start(&mut self, role: Role) {
        self.started += 1;
        let number = self.started;
        let arguments = Arguments {
            role,
            file: self.file(),
            ledger: self.folder.path().join(format!("{number}.ledger")),
            number,
            seed: self.seed,
            // Only those who answer have the bug.
            bug: self.bug.filter(|_| role == Role::Answer),
            environment: Vec::new(),
        };
        let program = Path::new(env!("CARGO_BIN_EXE_crash-worker"));
        let process = Process::start(program, &arguments, self.sender.clone());
        self.processes.push(process);
    }

    /// Lets processes ask until they have asked so often, and kills so many meanwhile.
    fn run(&mut self, requests: usize, kills: usize) {
        let asking = self.processes.iter();
        self.asking = asking
            .filter(|process| matches!(process.role, Role::Ask(_)))
            .count();
        let between = requests / (kills + 1);
        let mut next = between;
        let mut left = kills;
        while self.asked() < requests || left > 0 {
            self.note_one();
            if left > 0 && self.asked() >= next {
                self.kill_one();
                left -= 1;
                next += self.random.random_range(1..=2 * between);
            }
        }
    }

    fn asked(&self) -> usize {
        self.asked.values().map(BTreeSet::len).sum()
    }

    fn note_one(&mut self) {
        let line = self.lines.recv_timeout(GUARD);
        let (process, line) = line.unwrap_or_else(|error| panic!("nothing happens: {error}"));
        self.note(process, &line);
    }

    fn note(&mut self, process: u64, line: &str) {
        let (what, number) = line.split_once(' ').expect("two words");
        let number = number.parse().expect("a number");
        if what == ASKED {
            self.asked.entry(process).or_default().insert(number);
            return;
        }
        let end = End::ALL.iter().find(|(_, name)| *name == what);
        let end = end.expect("the end of a request").0;
        self.ends.entry(number).or_default().push(end);
    }

    fn kill_one(&mut self) {
        let victim = self.random.random_range(0..self.processes.len());
        let process = self.processes.swap_remove(victim);
        let (role, number) = (process.role, process.number);
        let complaints = process.kill();
        assert!(complaints.is_empty(), "the {role} said: {complaints}");
        self.killed.insert(number);
        self.start(role);
    }

    /// Ends the processes of this role, which end their requests first.
    fn end(&mut self, is_role: impl Fn(Role) -> bool) {
        let processes = std::mem::take(&mut self.processes);
        let (ending, staying): (Vec<_>, Vec<_>) = processes
            .into_iter()
            .partition(|process| is_role(process.role));
        self.processes = staying;
        for process in ending {
            let role = process.role;
            let (status, complaints) = process.finish();
            let is_fine = status.success() && complaints.is_empty();
            assert!(is_fine, "the {role} ended with {status}: {complaints}");
        }
        while let Ok((process, line)) = self.lines.try_recv() {
            self.note(process, &line);
        }
    }

    /// Waits until the questions of processes that were killed are answered, too. Then cleans up after these processes.
    /// Returns the number of reply queues before that, and after it.
    async fn settle(&mut self) -> (usize, usize) {
        let url = format!("sqlite:{}", self.file().display());
        let service = QueueService::connect(&url).await.expect("the file opens");
        let questions = service.queue::<Question>().any();
        let empty = async {
            while questions
                .properties()
                .await
                .expect("it exists")
                .approximate_count
                > 0
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let emptied = tokio::time::timeout(GUARD, empty).await;
        emptied.expect("all questions are answered");
        self.end(|role| role == Role::Answer);
        let before = reply_queues(&service).await;
        // A round looks at some only.
        for _ in 0..=before / 16 {
            service.sweep_reply_queues().await.expect("no error");
        }
        (before, reply_queues(&service).await)
    }

    fn judge(&self) -> Figures {
        let mut figures = Figures::default();
        for (process, asked) in &self.asked {
            for number in asked {
                match self.ends.get(number).map(Vec::as_slice) {
                    Some([end]) => *figures.ends.entry(*end).or_default() += 1,
                    None if self.killed.contains(process) => figures.abandoned += 1,
                    ends => figures
                        .violations
                        .push(format!("request {number} ended {ends:?} times")),
                }
            }
        }
        for end in [End::Mistaken, End::NoReply, End::Deleted] {
            let count = figures.ends.get(&end).copied().unwrap_or_default();
            if count > 0 {
                figures.violations.push(format!("{end:?}: {count}"));
            }
        }
        // A kill harms at most the requests that are in flight.
        let failed = figures.ends.get(&End::Failed).copied().unwrap_or_default();
        let most = self.killed.len() * self.asking * AT_ONCE;
        if failed > most {
            let violation = format!("{:?}: {failed}, at most {most} are explained", End::Failed);
            figures.violations.push(violation);
        }
        figures
    }
}

async fn reply_queues(service: &QueueService) -> usize {
    let queues = service.queues().await.expect("lists");
    queues
        .iter()
        .filter(|queue| QueueName::is_reply_queue(queue))
        .count()
}

#[tokio::test]
async fn every_request_is_answered_and_no_reply_queue_is_left() {
    let (requests, kills) = (plan::times(400), plan::times(8));
    let mut exchange = Exchange::new(plan::seed(), None);
    let asking = Role::Ask(GUARD.as_secs());
    for role in [asking, asking, Role::Answer, Role::Answer] {
        exchange.start(role);
    }
    exchange.run(requests, kills);
    exchange.end(|role| role == asking);
    let (before, after) = exchange.settle().await;
    let figures = exchange.judge();
    println!(
        "{requests} requests, {kills} kills, {before} reply queues of killed processes: {figures:?}"
    );
    assert!(figures.violations.is_empty(), "{figures:?}");
    assert!(figures.ends[&End::Answered] > 4 * kills, "{figures:?}");
    assert!(before <= kills, "those that ended have deleted theirs");
    assert_eq!(after, 0, "after {REPLY_LEASE:?}");
}

#[test]
fn requests_that_end_without_a_kill_to_explain_it_are_violations() {
    let violations = |lines: &[&str], killed: &[u64]| {
        let mut exchange = Exchange::new(0, None);
        exchange.asking = 1;
        exchange.killed.extend(killed);
        for line in lines {
            exchange.note(1, line);
        }
        exchange.judge().violations
    };
    assert!(violations(&["asked 1", "answered 1"], &[]).is_empty());
    for end in ["mistaken", "no-reply", "deleted", "failed"] {
        let found = violations(&["asked 1", &format!("{end} 1")], &[]);
        assert_eq!(found.len(), 1, "{end}: {found:?}");
    }
    assert!(violations(&["asked 1", "failed 1"], &[2]).is_empty());
    assert_eq!(violations(&["asked 1"], &[]).len(), 1, "it has no end");
    assert!(violations(&["asked 1"], &[1]).is_empty());
}

/// A request whose handler is killed is lost, and its sender waits in vain.
#[tokio::test]
async fn a_request_deleted_before_it_is_answered_is_detected() {
    let mut exchange = Exchange::new(plan::seed(), Some(Bug::DeletesEarly));
    let asking = Role::Ask(2);
    for role in [asking, Role::Answer] {
        exchange.start(role);
    }
    exchange.run(100, 8);
    exchange.end(|role| role == asking);
    let figures = exchange.judge();
    let lost = figures.ends.get(&End::NoReply).copied();
    assert!(lost.is_some_and(|lost| lost > 0), "{figures:?}");
}

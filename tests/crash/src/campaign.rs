//! A campaign: processes that share one file are killed and stopped at random; then the queues are drained and the
//! ledgers checked.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use queue_runtime::{ErrorKind, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::database::Database;
use crate::history::{Figures, History, Promise, Violation};
use crate::ledger::{self, Entry, moment};
use crate::messages::LEASE;
use crate::packs::{Marks, explain};
use crate::process::{GUARD, Process};
use crate::sabotage::{Bug, Point};
use crate::worker::{Arguments, DATABASE, PAYLOADS, Role, in_folder};

/// What a campaign does, ending by count.
#[derive(Debug, Clone)]
pub struct Campaign<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Seed of random choices.
    pub seed: u64,
    /// The roles that run all the time.
    pub roles: &'a [Role],
    /// The largest number of lines that the processes print between two actions.
    pub between: usize,
    /// The number of processes that are killed.
    pub kills: usize,
    /// The number of processes that are stopped for two leases.
    pub stops: usize,
    /// The number of processes that are told to end.
    pub ends: usize,
    /// Points at which processes of a role abort, one after the other, before the other actions.
    pub aborts: &'a [(Point, Role)],
    /// The number of lines that the processes print before the first of `aborts`, of which each is the only consumer;
    /// `None` if all other processes run meanwhile.
    pub alone_after: Option<usize>,
    /// The bug planted in the storage of every other process.
    pub bug: Option<Bug>,
    /// Where payloads are that do not fit their messages.
    pub payloads: Payloads,
    /// The database of the queues, if they are not in a file.
    pub database: Option<&'a Database>,
}

/// Where payloads are that do not fit their messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payloads {
    /// In the file of the queues.
    InFile,
    /// In a folder beside the queues' file.
    InFolder,
}

/// The messages flow in this order, so that a queue that is empty after those before it stays empty while
/// nothing is redriven.
const QUEUES: [&str; 4] = ["orders", "receipts", "orders-poison", "receipts-poison"];

/// The number of campaigns after which a planted bug counts as missed.
const MOST_CAMPAIGNS: u64 = 12;

/// Processes that are stopped at the same time.
const STOPPED: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Kill,
    Stop,
    End,
}

struct Run<'a> {
    campaign: &'a Campaign<'a>,
    folder: TempDir,
    random: SmallRng,
    processes: Vec<Process>,
    lines: Receiver<(u64, String)>,
    sender: Sender<(u64, String)>,
    started: u64,
    /// Processes that were killed or aborted.
    killed: BTreeSet<u64>,
    violations: Vec<Violation>,
}

impl Campaign<'_> {
    /// Runs the campaign.
    ///
    /// # Errors
    /// All promises that were broken.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub fn run(&self) -> Result<Figures, Vec<Violation>> {
        if let Some(database) = self.database {
            database.begin();
        }
        let (sender, lines) = channel();
        let mut run = Run {
            campaign: self,
            folder: TempDir::new().expect("a folder"),
            random: SmallRng::seed_from_u64(self.seed),
            processes: Vec::new(),
            lines,
            sender,
            started: 0,
            killed: BTreeSet::new(),
            violations: Vec::new(),
        };
        let waits = |role: &Role| self.alone_after.is_some() && role.consumes();
        let (later, first): (Vec<Role>, Vec<Role>) =
            self.roles.iter().partition(|role| waits(role));
        first.into_iter().for_each(|role| run.start(role));
        run.wait(self.alone_after.unwrap_or_default());
        for (point, role) in self.aborts {
            run.abort(*point, *role);
        }
        later.into_iter().for_each(|role| run.start(role));
        for action in run.actions() {
            let lines = run.random.random_range(1..=self.between);
            run.wait(lines);
            run.act(action);
            if let Some(database) = self.database {
                database.strike(&mut run.random);
            }
        }
        if let Some(database) = self.database {
            database.end();
        }
        run.end(|role| !role.consumes());
        run.drain();
        run.end(Role::consumes);
        run.judge()
    }

    /// Checks that campaigns like this one find the planted bug. How often one campaign comes to the place where the bug
    /// shows is up to the scheduling of its processes, so several are run, until one finds it.
    ///
    /// # Panics
    /// If no campaign finds the bug.
    pub fn detects(&self, is_of_bug: impl Fn(&Violation) -> bool) {
        let mut others = Vec::new();
        for seed in (0..MOST_CAMPAIGNS).map(|more| self.seed.wrapping_add(more)) {
            let violations = Self { seed, ..*self }.run().err().unwrap_or_default();
            if violations.iter().any(&is_of_bug) {
                return;
            }
            others.extend(violations);
        }
        panic!("{MOST_CAMPAIGNS} campaigns miss the bug: {others:#?}");
    }
}

impl Run<'_> {
    fn file(&self) -> PathBuf {
        self.folder.path().join("queues.db")
    }

    /// The folder of payloads, if there is one.
    fn payloads(&self) -> Option<PathBuf> {
        let is_used = self.campaign.payloads == Payloads::InFolder;
        is_used.then(|| self.folder.path().join("payloads"))
    }

    fn start(&mut self, role: Role) {
        let process = self.start_with(role, self.campaign.bug);
        self.processes.push(process);
    }

    /// Starts a process that aborts at a point, and waits until it has.
    fn abort(&mut self, point: Point, role: Role) {
        let process = self.start_with(role, Some(Bug::Aborts(point)));
        self.killed.insert(process.number);
        let (status, complaints) = process.wait();
        self.note(role, &complaints);
        if status.signal() != Some(Signal::ABORT.as_raw()) {
            let what = format!("the {role} did not abort at {point:?}: {status}");
            self.violations.push(Violation::Other(what));
        }
    }

    fn start_with(&mut self, role: Role, bug: Option<Bug>) -> Process {
        self.started += 1;
        let number = self.started;
        let arguments = Arguments {
            role,
            file: self.file(),
            ledger: self.folder.path().join(format!("{number}.ledger")),
            number,
            seed: self.campaign.seed,
            bug,
            environment: {
                let payloads = self.payloads();
                let payloads = payloads.map(|folder| (PAYLOADS, folder.into()));
                let database = self.campaign.database;
                let database = database.map(|database| (DATABASE, database.url().into()));
                payloads.into_iter().chain(database).collect()
            },
        };
        Process::start(self.campaign.program, &arguments, self.sender.clone())
    }

    /// The actions in a random order.
    fn actions(&mut self) -> Vec<Action> {
        let Campaign {
            kills, stops, ends, ..
        } = *self.campaign;
        let counts = [
            (Action::Kill, kills),
            (Action::Stop, stops),
            (Action::End, ends),
        ];
        let mut actions: Vec<_> = counts
            .into_iter()
            .flat_map(|(action, count)| vec![action; count])
            .collect();
        for at in (1..actions.len()).rev() {
            actions.swap(at, self.random.random_range(0..=at));
        }
        actions
    }

    /// Waits until the processes have printed so many lines.
    fn wait(&mut self, mut lines: usize) {
        let mut last = Instant::now();
        while lines > 0 {
            match self.lines.recv_timeout(LEASE / 10) {
                Ok(_) => (lines, last) = (lines - 1, Instant::now()),
                Err(RecvTimeoutError::Timeout) => {
                    assert!(
                        last.elapsed() < GUARD,
                        "nothing happens: {:?}",
                        self.processes
                    );
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("this run has a sender"),
            }
            self.resume(2 * LEASE);
        }
    }

    /// Lets processes go on that were stopped for so long.
    fn resume(&mut self, after: Duration) {
        let now = moment();
        for process in &mut self.processes {
            let since = process
                .stopped
                .map(|since| Duration::from_nanos(now - since));
            if since.is_some_and(|since| since >= after) {
                process.resume();
            }
        }
    }

    fn act(&mut self, action: Action) {
        let running = |process: &Process| process.stopped.is_none();
        if action == Action::Stop {
            // Ends, since `wait` resumes them.
            while self
                .processes
                .iter()
                .filter(|process| !running(process))
                .count()
                >= STOPPED
            {
                self.resume(2 * LEASE);
                std::thread::sleep(LEASE / 100);
            }
        }
        let mut candidates: Vec<_> = (0..self.processes.len()).collect();
        candidates.retain(|at| running(&self.processes[*at]));
        let victim = candidates[self.random.random_range(0..candidates.len())];
        if action == Action::Stop {
            return self.processes[victim].stop();
        }
        let process = self.processes.swap_remove(victim);
        let role = process.role;
        match action {
            Action::Kill => {
                self.killed.insert(process.number);
                let complaints = process.kill();
                self.note(role, &complaints);
            }
            _ => self.finish(process),
        }
        self.start(role);
    }

    /// Ends the processes of these roles.
    fn end(&mut self, ends: impl Fn(Role) -> bool) {
        self.resume(Duration::ZERO);
        let processes = std::mem::take(&mut self.processes);
        let (ending, others) = processes
            .into_iter()
            .partition(|process| ends(process.role));
        self.processes = others;
        let ending: Vec<Process> = ending;
        ending.into_iter().for_each(|process| self.finish(process));
    }

    fn finish(&mut self, process: Process) {
        let role = process.role;
        let (status, complaints) = process.finish();
        self.note(role, &complaints);
        if !status.success() {
            let what = format!("the {role} ended with {status}: {complaints}");
            self.violations.push(Violation::Other(what));
        }
    }

    /// Processes print to the standard error only when they panic.
    fn note(&mut self, role: Role, complaints: &str) {
        if !complaints.is_empty() {
            let what = format!("the {role} said: {complaints}");
            self.violations.push(Violation::Other(what));
        }
    }

    /// Redrives all poison messages until the consumers have emptied all queues.
    fn drain(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let url = match self.campaign.database {
            Some(database) => database.url(),
            None => format!("sqlite:{}", self.file().display()),
        };
        runtime.expect("a runtime").block_on(async {
            let mut builder = QueueService::builder(&url);
            if let Some(folder) = self.payloads() {
                builder = builder.payloads(in_folder(&folder));
            }
            let service = builder.connect().await.expect("the file opens");
            let started = Instant::now();
            loop {
                let mut left = 0;
                for name in QUEUES {
                    let queue = service.any_queue(name).expect("a name");
                    left += match queue.properties().await {
                        Ok(properties) => properties.approximate_count,
                        Err(error) if error.kind() == ErrorKind::QueueNotFound => 0,
                        // The server has crashed.
                        Err(error) if error.kind() == ErrorKind::Unreachable => 1,
                        Err(error) => panic!("{error}"),
                    };
                }
                if left == 0 {
                    return self.sweep(&service).await;
                }
                assert!(started.elapsed() < GUARD, "{left} messages remain");
                for name in &QUEUES[2..] {
                    let poison = service.any_queue(*name).expect("a name");
                    match poison.redrive().run().await {
                        Ok(_) => {}
                        Err(error) if error.error.kind() == ErrorKind::QueueNotFound => {}
                        Err(error)
                            if matches!(
                                error.error.kind(),
                                ErrorKind::Timeout | ErrorKind::Unreachable
                            ) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }

    /// Deletes the payloads that nobody needs, of which none may be left.
    async fn sweep(&mut self, service: &QueueService) {
        let (Some(payloads), Some(folder)) = (service.payloads(), self.payloads()) else {
            return;
        };
        let swept = payloads.sweep().run().await.expect("it can be reached");
        println!("{} payloads were left and are swept", swept.payloads);
        let left = in_folder(&folder).list("data/", None).await;
        let left = left.expect("it can be reached").objects;
        if !left.is_empty() {
            let what = format!("payloads are left that no message refers to: {left:?}");
            self.violations.push(Violation::Other(what));
        }
    }

    fn judge(mut self) -> Result<Figures, Vec<Violation>> {
        let (mut history, mut ledgers) = (History::default(), BTreeMap::new());
        for number in 1..=self.started {
            let path = self.folder.path().join(format!("{number}.ledger"));
            // A process may have been killed before it created its ledger.
            if path.exists() {
                let entries = ledger::read(&path);
                history.add(entries.clone());
                ledgers.insert(number, entries);
            }
        }
        let (checked, attached) = match self.campaign.database {
            Some(database) => ("ok".to_owned(), database.left_attached()),
            None => (integrity(&self.file()), left_attached(&self.file())),
        };
        if checked != "ok" {
            self.violations.push(Violation::Other(checked));
        }
        if attached > 0 {
            let what = format!("{attached} attachments are of messages that are gone");
            self.violations.push(Violation::Other(what));
        }
        let steps = |(point, _): &(Point, Role)| point.is_between();
        let is_atomic = self.campaign.payloads == Payloads::InFile;
        let promise = if !is_atomic || self.campaign.aborts.iter().any(steps) {
            Promise::AtLeastOnce
        } else {
            Promise::OneCopy
        };
        let marks = match self.campaign.payloads {
            Payloads::InFile => Marks::Beside,
            Payloads::InFolder => Marks::InHeader,
        };
        let causes = self.campaign.roles.contains(&Role::Pack);
        let causes = causes.then(|| explain(&ledgers, &self.killed, marks));
        let causes = causes.transpose().unwrap_or_else(|found| {
            self.violations.extend(found);
            None
        });
        let struck = self.campaign.database.and_then(Database::last_struck);
        let late = struck.map(|at| history.acknowledged_after(at));
        if let Some(database) = self.campaign.database {
            history.dispute(database.disputed());
        }
        match history.check(promise) {
            Ok(figures) if self.violations.is_empty() => Ok(Figures {
                causes,
                late,
                ..figures
            }),
            Ok(_) => Err(self.violations),
            Err(found) => {
                tell(&ledgers, &found);
                self.violations.extend(found);
                Err(self.violations)
            }
        }
    }
}

/// Prints what all processes have recorded of the messages whose promises were broken.
fn tell(ledgers: &BTreeMap<u64, Vec<Entry>>, violations: &[Violation]) {
    for name in violations.iter().filter_map(Violation::message) {
        let of_all = ledgers.iter();
        let mut lines: Vec<_> = of_all
            .flat_map(|(number, entries)| entries.iter().map(move |entry| (entry, number)))
            .filter(|(entry, _)| entry.name == *name)
            .collect();
        lines.sort_by_key(|(entry, _)| entry.at);
        for (entry, number) in lines {
            eprint!("process {number}: {entry}");
        }
    }
}

/// Returns how many attachments count as a message's in a file whose queues are empty.
fn left_attached(file: &Path) -> i64 {
    let connection = rusqlite::Connection::open(file).expect("the file opens");
    let left = "SELECT (SELECT count(*) FROM queue_attached) + \
        (SELECT count(*) FROM queue_attachments WHERE messages > 0)";
    let left = connection.query_row(left, [], |row| row.get(0));
    left.expect("the tables are there")
}

/// Returns the result of SQLite's integrity check: `ok`, or what is wrong.
///
/// # Panics
/// If the file cannot be opened.
#[must_use]
pub fn integrity(file: &Path) -> String {
    let connection = rusqlite::Connection::open(file).expect("the file opens");
    connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap_or_else(|error| error.to_string())
}

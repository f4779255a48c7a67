//! The processes of a run, which share one file, are killed and replaced, and do not outlive the run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use queue_runtime::wire::Body;
use queue_runtime::{Message, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::campaign::integrity;
use crate::ledger::moment;
use crate::process::{GUARD, Process};
use crate::sabotage::Bug;
use crate::worker::{Arguments, Role};

/// How long [`Crew::line`] waits, and how often [`Crew::beside`] looks for processes that are to go on.
const LOOK: Duration = Duration::from_millis(50);

/// The processes, and what they have printed.
#[derive(Debug)]
pub struct Crew<'a> {
    program: &'a Path,
    seed: u64,
    folder: TempDir,
    /// Randomness of the run's choices.
    pub random: SmallRng,
    /// Running processes.
    pub processes: Vec<Process>,
    /// The number of started processes.
    pub started: u64,
    /// Additional environment variables of started processes.
    pub environment: Vec<(&'static str, OsString)>,
    /// What is wrong so far.
    pub wrong: Vec<String>,
    /// The numbers of the processes that were stopped, and when each was.
    pub stops: Vec<(u64, RangeInclusive<u64>)>,
    lines: Receiver<(u64, String)>,
    sender: Sender<(u64, String)>,
    /// For how long nothing has been printed.
    silence: Duration,
}

impl<'a> Crew<'a> {
    /// Creates a crew without processes, in a new folder.
    ///
    /// # Panics
    /// If there is no room for the folder.
    #[must_use]
    pub fn new(program: &'a Path, seed: u64) -> Self {
        let (sender, lines) = channel();
        Self {
            program,
            seed,
            folder: TempDir::new().expect("a folder"),
            random: SmallRng::seed_from_u64(seed),
            processes: Vec::new(),
            started: 0,
            environment: Vec::new(),
            wrong: Vec::new(),
            stops: Vec::new(),
            lines,
            sender,
            silence: Duration::ZERO,
        }
    }

    /// The folder of the file and the ledgers.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file that the processes share.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder().join("queues.db")
    }

    /// Connects to the file from this process.
    ///
    /// # Panics
    /// If the file cannot be opened.
    pub async fn connect(&self) -> QueueService {
        let connected = QueueService::connect(&format!("sqlite:{}", self.file().display())).await;
        connected.expect("the file opens")
    }

    /// Starts a process.
    ///
    /// # Panics
    /// If the process does not start.
    pub fn start(&mut self, role: Role, bug: Option<Bug>) -> &mut Process {
        self.started += 1;
        let number = self.started;
        let arguments = Arguments {
            role,
            file: self.file(),
            ledger: self.folder().join(format!("{number}.ledger")),
            number,
            seed: self.seed,
            bug,
            environment: self.environment.clone(),
        };
        let process = Process::start(self.program, &arguments, self.sender.clone());
        self.processes.push(process);
        self.processes.last_mut().expect("it was added")
    }

    /// Starts a process that aborts by a planted bug after it was told this, and waits until it has.
    ///
    /// # Panics
    /// If the process does not end.
    pub fn abort(&mut self, role: Role, bug: Bug, told: &str) {
        self.start(role, Some(bug)).tell(told);
        let process = self.processes.pop().expect("it was started");
        let (status, complaints) = process.wait();
        self.note(role, &complaints);
        if status.signal() != Some(Signal::ABORT.as_raw()) {
            self.wrong
                .push(format!("the {role} with {bug:?} did not abort: {status}"));
        }
    }

    /// Tells something to all processes.
    ///
    /// # Panics
    /// If a process has ended.
    pub fn tell(&mut self, line: &str) {
        for process in &mut self.processes {
            process.tell(line);
        }
    }

    /// Whether the numbers of all processes are among these.
    #[must_use]
    pub fn all_are_in(&self, numbers: &BTreeSet<u64>) -> bool {
        let mut processes = self.processes.iter();
        processes.all(|process| numbers.contains(&process.number))
    }

    /// Returns the next line and the number of the process that has printed it, or `None` if there is none for a while.
    ///
    /// # Panics
    /// If nothing is printed for a long time.
    pub fn line(&mut self) -> Option<(u64, String)> {
        match self.lines.recv_timeout(LOOK) {
            Ok(line) => {
                self.silence = Duration::ZERO;
                Some(line)
            }
            Err(RecvTimeoutError::Timeout) => {
                self.silence += LOOK;
                let processes = &self.processes;
                assert!(self.silence < GUARD, "nothing happens: {processes:?}");
                None
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the crew has a sender"),
        }
    }

    /// Returns all lines that were printed and not read.
    pub fn unread(&mut self) -> Vec<(u64, String)> {
        self.lines.try_iter().collect()
    }

    /// Kills a random process, and returns its role.
    ///
    /// # Panics
    /// If there is no process.
    pub fn kill_any(&mut self) -> Role {
        self.kill(None)
    }

    /// Stops a random process, which [`beside`](Self::beside) lets go on.
    ///
    /// # Panics
    /// If there is no process.
    pub fn stop_any(&mut self) {
        let victim = self.random.random_range(0..self.processes.len());
        self.processes[victim].stop();
    }

    /// Whether a process is stopped.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.processes
            .iter()
            .any(|process| process.stopped.is_some())
    }

    /// Waits for an operation of this process, and lets processes go on meanwhile that were stopped for so long: one that
    /// was stopped within a transaction may hold up the operation.
    ///
    /// # Panics
    /// If such a process has ended.
    pub async fn beside<T>(&mut self, stop: Duration, operation: impl Future<Output = T>) -> T {
        let mut operation = pin!(operation);
        loop {
            self.resume(stop);
            if let Ok(done) = timeout(LOOK, &mut operation).await {
                return done;
            }
        }
    }

    /// Lets the processes go on that were stopped for so long.
    fn resume(&mut self, after: Duration) {
        let now = moment();
        for process in &mut self.processes {
            let since = process
                .stopped
                .filter(|since| u128::from(now - since) >= after.as_nanos());
            if let Some(since) = since {
                process.resume();
                self.stops.push((process.number, since..=now));
            }
        }
    }

    /// Kills the process of this number, or a random one if there is none, and returns its role.
    ///
    /// # Panics
    /// If there is no process at all.
    pub fn kill(&mut self, number: Option<u64>) -> Role {
        let named = |process: &Process| Some(process.number) == number;
        let victim = self.processes.iter().position(named);
        let victim = victim.unwrap_or_else(|| self.random.random_range(0..self.processes.len()));
        let process = self.processes.swap_remove(victim);
        let role = process.role;
        let complaints = process.kill();
        self.note(role, &complaints);
        role
    }

    /// Removes a process that has ended by itself, and returns its role.
    ///
    /// # Panics
    /// If the standard error cannot be read.
    pub fn ended(&mut self) -> Option<Role> {
        let ended = self.processes.iter_mut().position(Process::has_ended)?;
        let process = self.processes.swap_remove(ended);
        let role = process.role;
        let (_, complaints) = process.wait();
        self.note(role, &complaints);
        Some(role)
    }

    /// Ends the process in order that was started first.
    ///
    /// # Panics
    /// If there is no process, or it does not end.
    pub fn end_first(&mut self) {
        let first = self
            .processes
            .iter()
            .enumerate()
            .min_by_key(|(_, one)| one.number);
        let (first, _) = first.expect("there is a process");
        let process = self.processes.swap_remove(first);
        self.finish(process);
    }

    fn finish(&mut self, process: Process) {
        let role = process.role;
        let (status, complaints) = process.finish();
        self.note(role, &complaints);
        if !status.success() {
            self.wrong.push(format!("the {role} ended with {status}"));
        }
    }

    /// Ends the processes of a role in order.
    ///
    /// # Panics
    /// If a process does not end.
    pub fn end(&mut self, role: Role) {
        let (ending, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.processes)
            .into_iter()
            .partition(|process| process.role == role);
        self.processes = others;
        for process in ending {
            self.finish(process);
        }
    }

    /// Returns the figures, unless something is wrong.
    ///
    /// # Errors
    /// All that is wrong, with the file too.
    ///
    /// # Panics
    /// If the file cannot be opened.
    pub fn judge<F>(mut self, figures: F) -> Result<F, Vec<String>> {
        let integrity = integrity(&self.file());
        if integrity != "ok" {
            self.wrong.push(integrity);
        }
        if self.wrong.is_empty() {
            Ok(figures)
        } else {
            Err(self.wrong)
        }
    }

    /// Processes print to the standard error only when they panic.
    fn note(&mut self, role: Role, complaints: &str) {
        if !complaints.is_empty() {
            self.wrong.push(format!("the {role} said: {complaints}"));
        }
    }
}

/// Returns the messages on the existing queue of a type, with their ids.
///
/// # Panics
/// If the queue cannot be read.
pub async fn messages<M: Message>(service: &QueueService) -> Vec<(String, M)> {
    let (queue, mut messages, mut from) = (service.queue::<M>().any(), Vec::new(), None);
    loop {
        let page = queue.browse(from.as_ref(), 256).await.expect("browsed");
        for message in page.messages {
            let Body::Event(event) = &message.body else {
                panic!("no event: {message:?}")
            };
            let decoded = message.body.decode().expect("a message of the type");
            messages.push((event.envelope.id.to_string(), decoded));
        }
        from = page.next;
        if from.is_none() {
            return messages;
        }
    }
}

/// Does what [`messages`] does, and deletes the messages. Nothing must be submitted meanwhile.
///
/// # Panics
/// If the storage fails.
pub async fn take<M: Message>(service: &QueueService) -> Vec<(String, M)> {
    let taken = messages(service).await;
    let cleared = service.queue::<M>().any().clear().await;
    cleared.expect("cleared");
    taken
}

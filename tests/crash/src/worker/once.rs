use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::clock::Clock;
use queue_core::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, Owner, ResultStore, Swept, WorkKey,
};
use queue_runtime::idempotency::ObjectResults;
use queue_runtime::once;
use rustix::process::{Signal, getpid, kill_process};
use tokio::task::JoinSet;

use super::Desk;
use crate::duplicates::{CALLS, CallEntry, CallEvent, DONE};
use crate::ledger::{PROGRESS, moment};
use crate::messages::LEASE;
use crate::sabotage::Bug;

/// Where results are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// In the queues' file.
    File,
    /// In the folder [`Kept::FOLDER`] beside the file, as objects.
    Folder,
}

impl Kept {
    /// Both places.
    pub const ALL: [Self; 2] = [Self::File, Self::Folder];

    /// The name of the folder.
    pub const FOLDER: &str = "results";

    /// Opens the store.
    pub(super) fn open(self, desk: &Desk, file: &Path) -> Arc<dyn ResultStore> {
        match self {
            Self::File => desk.service.results().expect("SQLite has one"),
            Self::Folder => {
                let results = ObjectResults::create_in_folder(file.with_file_name(Self::FOLDER));
                Arc::new(results.expect("it opens"))
            }
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Folder => "folder",
        })
    }
}

/// A step of the protocol, at which a process can kill itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The claim is about to be begun.
    Beginning,
    /// The claim is held.
    ClaimOutcome,
    /// The effect was made.
    Effected,
    /// The result is about to be recorded.
    Finishing,
    /// The result is recorded, and its caller does not know.
    Finished,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 5] = [
        Self::Beginning,
        Self::ClaimOutcome,
        Self::Effected,
        Self::Finishing,
        Self::Finished,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Does the work of each key that it is told, asked for many times at once. A line on the standard input has a key and
/// the step at which the process that gets there first kills itself.
pub(super) async fn run(desk: &Desk, kept: Kept, file: &Path, log: &Path, bug: Option<Bug>) {
    let store = kept.open(desk, file);
    let log = OpenOptions::new().append(true).create_new(true).open(log);
    let log = Arc::new(Mutex::new(log.expect("a new log")));
    let mut input = desk.input.clone();
    let mut next_call = desk.number * 1_000_000;
    while input.changed().await.is_ok() {
        let line = input.borrow_and_update().clone();
        let (key, step) = line.split_once(' ').expect("a key and a step");
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            next_call += 1;
            let steps = Steps {
                store: Arc::clone(&store),
                log: Arc::clone(&log),
                key: key.to_owned(),
                call: next_call,
                step: Step::ALL
                    .into_iter()
                    .find(|named| named.to_string() == step),
                killed: file.with_file_name(format!("{key}.killed")),
                bug,
            };
            calls.spawn(call(steps));
        }
        calls.join_all().await;
        println!("{DONE} {key}");
    }
}

/// One call, which returns once the work is done, here or elsewhere.
async fn call(steps: Steps) {
    let steps = Arc::new(steps);
    loop {
        let work = async {
            steps.write(CallEvent::Effect);
            steps.reach(Step::Effected);
            Ok::<_, std::convert::Infallible>(steps.call)
        };
        let done = once(&steps, steps.key.as_str(), work).lease(LEASE);
        match done.wait(Duration::from_secs(3600)).await {
            Ok(call) => return steps.write(CallEvent::Returned { call }),
            // The lease ended on a slow machine, or the file was locked for too long.
            Err(_) => tokio::time::sleep(LEASE / 20).await,
        }
    }
}

/// The store as one call sees it: logs the claim, and kills the process at a step.
#[derive(Debug)]
struct Steps {
    store: Arc<dyn ResultStore>,
    log: Arc<Mutex<File>>,
    key: String,
    call: u64,
    step: Option<Step>,
    /// Exists once a process has killed itself.
    killed: PathBuf,
    bug: Option<Bug>,
}

impl Steps {
    fn write(&self, event: CallEvent) {
        let entry = CallEntry {
            at: moment(),
            call: self.call,
            key: self.key.clone(),
            event,
        };
        let mut line = serde_json::to_vec(&entry).expect("it is plain");
        line.push(b'\n');
        // Not synced: what is written survives a kill.
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.write_all(&line).expect("written");
        println!("{PROGRESS}");
    }

    fn reach(&self, step: Step) {
        if self.step == Some(step) && File::create_new(&self.killed).is_ok() {
            kill_process(getpid(), Signal::KILL).expect("it is this process");
        }
    }
}

#[async_trait]
impl ResultStore for Steps {
    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    async fn begin(
        &self,
        key: &WorkKey,
        owner: Owner,
        lease: Duration,
    ) -> queue_core::Result<ClaimOutcome> {
        self.reach(Step::Beginning);
        let asked = moment();
        let begun = match self.bug {
            Some(Bug::BeginsAlways) => ClaimOutcome::Fresh(Claim::new(owner, 0)),
            _ => self.store.begin(key, owner, lease).await?,
        };
        if let ClaimOutcome::Fresh(_) = begun {
            self.write(CallEvent::Claimed { asked });
            self.reach(Step::ClaimOutcome);
        }
        Ok(begun)
    }

    async fn renew(
        &self,
        key: &WorkKey,
        claim: Claim,
        lease: Duration,
    ) -> queue_core::Result<ClaimStatus> {
        self.store.renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> queue_core::Result<ClaimStatus> {
        self.reach(Step::Finishing);
        let finished = match self.bug {
            Some(Bug::BeginsAlways) => Ok(ClaimStatus::Held),
            _ => self.store.finish(key, claim, result, retention).await,
        };
        self.reach(Step::Finished);
        finished
    }

    async fn release(&self, key: &WorkKey, claim: Claim) -> queue_core::Result<()> {
        self.store.release(key, claim).await
    }

    async fn sweep(&self) -> queue_core::Result<Swept> {
        self.store.sweep().await
    }
}

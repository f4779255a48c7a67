use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
use queue_core::{Clock as _, ErrorKind, ManualClock, QueueName, Timestamp};
use queue_runtime::backend::{SqliteBackend, SqliteBuilder};
use tempfile::TempDir;

use super::disk::{self, Image};
use super::trace::{Change, Operation};
use crate::campaign::integrity;
use crate::ledger::{self, Event};
use crate::messages::{Class, Receipt};

/// The name of the database in its folder.
pub const FILE: &str = "queues.db";

/// Beyond all leases.
const LATER: Duration = Duration::from_secs(24 * 3600);

/// The messages in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The messages' names, sorted.
    pub names: Vec<String>,
    /// The result of SQLite's integrity check.
    pub integrity: String,
}

/// What was promised about a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// What was acknowledged stays.
    Full,
    /// What was acknowledged before the last sync of the log stays.
    UpToLastSync,
}

/// What the ledgers say at a moment of a trace.
#[derive(Debug, Default)]
pub struct Ledgers {
    text: BTreeMap<String, Vec<u8>>,
    /// As of the start of the last completed sync of the log.
    synced: BTreeMap<String, Vec<u8>>,
    /// As of the start of the syncs under way, by thread.
    syncing: BTreeMap<u64, BTreeMap<String, Vec<u8>>>,
}

impl Ledgers {
    /// Takes note of the next operation of a trace.
    pub fn take_note(&mut self, operation: &Operation) {
        let Operation { file, change } = operation;
        match change {
            Change::Write(_, data) if file.ends_with(".ledger") => {
                self.text.entry(file.clone()).or_default().extend(data);
            }
            Change::SyncBegun(thread) if file.ends_with("-wal") => {
                self.syncing.insert(*thread, self.text.clone());
            }
            Change::Synced(thread) if file.ends_with("-wal") => {
                self.synced = self.syncing.remove(thread).expect("the sync has begun");
            }
            _ => {}
        }
    }

    /// Takes note of all that a process has written to its ledger, which may not have been created.
    pub fn read(&mut self, folder: &Path, number: u64) {
        let file = format!("{number}.ledger");
        let written = std::fs::read(folder.join(&file)).unwrap_or_default();
        self.text.insert(file, written);
    }

    /// Compares an image with the ledgers.
    ///
    /// # Errors
    /// What is wrong.
    pub fn judge(&self, contents: &Contents, durability: Durability) -> Result<(), String> {
        if contents.integrity != "ok" {
            return Err(contents.integrity.clone());
        }
        let names: BTreeSet<_> = contents.names.iter().map(String::as_str).collect();
        if names.len() < contents.names.len() {
            return Err(format!("a message is there twice: {:?}", contents.names));
        }
        let now = named(&self.text);
        let promised = match durability {
            Durability::Full => named(&self.text),
            Durability::UpToLastSync => named(&self.synced),
        };
        for name in &promised.submitted {
            let receipt = format!("{}{name}", Receipt::PREFIX);
            let receipted = names.contains(receipt.as_str());
            match (names.contains(name.as_str()), receipted) {
                (true, true) => return Err(format!("{name} has both its parts: not atomic")),
                (true, false) if promised.completed.contains(name) => {
                    return Err(format!("{name} was completed, and is back"));
                }
                (false, false) if !now.finishing.contains(name) => {
                    return Err(format!("{name} is lost"));
                }
                (false, false) if Class::of(name) == Class::Receipted => {
                    return Err(format!("{name} is complete without its follow-up"));
                }
                _ => {}
            }
        }
        let known = |name: &&str| {
            let order = name.strip_prefix(Receipt::PREFIX).unwrap_or(name);
            now.submitting.contains(order)
        };
        match names.iter().find(|name| !known(name)) {
            Some(name) => Err(format!("{name} was never submitted")),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
struct Named {
    submitting: BTreeSet<String>,
    submitted: BTreeSet<String>,
    finishing: BTreeSet<String>,
    completed: BTreeSet<String>,
}

fn named(ledgers: &BTreeMap<String, Vec<u8>>) -> Named {
    let mut named = Named::default();
    for text in ledgers.values() {
        let text = std::str::from_utf8(text).expect("a ledger is text");
        for entry in ledger::parse(text) {
            let set = match entry.event {
                Event::Submitting => &mut named.submitting,
                Event::Submitted => &mut named.submitted,
                Event::Finishing => &mut named.finishing,
                Event::Completed => &mut named.completed,
                _ => continue,
            };
            set.insert(entry.name);
        }
    }
    named
}

/// Writes an image to a folder, opens it with the backend, and returns its messages.
///
/// # Panics
/// If the backend refuses the file, or does not work with it.
pub async fn contents_of(image: &Image) -> Contents {
    let folder = TempDir::new().expect("a folder");
    disk::write(image, folder.path());
    let file = folder.path().join(FILE);
    contents(&file, builder(&file)).await
}

/// Returns a builder that opens a file after all leases have ended.
pub fn builder(file: &Path) -> SqliteBuilder {
    let clock = ManualClock::new();
    clock.step_wall_clock(Timestamp::now().duration_since(clock.now()));
    clock.advance(LATER);
    SqliteBackend::builder(file, Arc::new(clock))
}

/// Opens a file with its [`builder`], and returns its messages.
///
/// # Panics
/// If the backend refuses the file, or does not work with it.
pub async fn contents(file: &Path, builder: SqliteBuilder) -> Contents {
    let backend = builder.open().await.expect("the file opens");
    let mut names = Vec::new();
    for queue in ["orders", "receipts"] {
        let queue: QueueName = queue.parse().expect("a name");
        loop {
            let received = match backend.receive(&queue, 32, LATER).await {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::QueueNotFound => break,
                Err(error) => panic!("{error}"),
            };
            if received.is_empty() {
                break;
            }
            names.extend(received.iter().map(|message| name(&message.body)));
        }
    }
    names.sort();
    let after: QueueName = "after".parse().expect("a name");
    backend
        .create_queue(&after, &Metadata::new())
        .await
        .expect("the file can be written");
    let put = backend.put(&after, NewMessage::new("after")).await;
    put.expect("the file can be written");
    drop(backend);
    let integrity = integrity(file);
    Contents { names, integrity }
}

fn name(body: &[u8]) -> String {
    let event: serde_json::Value = serde_json::from_slice(body).expect("an event");
    let name = event["data"]["name"].as_str();
    name.expect("a message of the suites").to_owned()
}

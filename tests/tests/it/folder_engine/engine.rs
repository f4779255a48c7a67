//! A storage engine that is a folder: each message is a file, which is replaced as a whole by a rename.
//!
//! ```text
//! lock                     held by whoever works on the folder
//! state                    the last number, the latest time, and the anchor of the store clock
//! queues/QUEUE/metadata
//! queues/QUEUE/NUMBER      a message
//! ```
//!
//! A process that is killed leaves nothing half done. A power loss may take what was written last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::*;
use queue_core::store_clock::{Anchor, Moment, StoreClock, after, lifespan, timestamp};
use queue_core::{Clock, Error, ErrorKind, Operation, Outcome, QueueName, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Queues in a folder, which several processes can share.
#[derive(Debug)]
pub(crate) struct FolderBackend {
    folder: PathBuf,
    clock: StoreClock,
    capabilities: Capabilities,
}

/// The one error of this engine.
#[derive(Debug)]
enum Failure {
    /// Nothing was done.
    Refused(ErrorKind),
    Io(io::Error),
}

/// What is done while the folder is locked.
type Work<T> = std::result::Result<T, Failure>;

/// The folder while it is locked.
struct Locked<'a> {
    folder: &'a Path,
    /// Unlocks the folder when it is closed.
    _lock: File,
    state: State,
    now: i64,
}

/// What the folder remembers beside its queues.
#[derive(Default, Serialize, Deserialize)]
struct State {
    /// The last number that was given to a message or a receipt.
    number: u64,
    /// The latest time at which one was given.
    latest: i64,
    /// The boot, the time since then, and the store time.
    anchor: Option<(String, i64, i64)>,
}

#[derive(Serialize, Deserialize)]
struct Message {
    number: u64,
    receipt: u64,
    count: usize,
    inserted_at: i64,
    visible_at: i64,
    expires_at: Option<i64>,
    body: Vec<u8>,
}

impl FolderBackend {
    pub(crate) fn open(folder: PathBuf, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut capabilities = Capabilities::local();
        capabilities.atomicity = Atomicity::InOrder;
        let clock = StoreClock::new(clock);
        let followed = follow(&folder, &clock);
        followed.map_err(|failure| failure.into_error(Operation::Open))?;
        Ok(Self {
            folder,
            clock,
            capabilities,
        })
    }

    fn limits<'a>(&'a self, operation: Operation, queue: &'a QueueName) -> Limits<'a> {
        self.capabilities.limits(operation, queue)
    }

    /// Does work on one queue while the folder is locked.
    fn on<T>(
        &self,
        operation: Operation,
        queue: &QueueName,
        work: impl FnOnce(&mut Locked<'_>, &Path) -> Work<T>,
    ) -> Result<T> {
        let path = self.folder.join("queues").join(queue.as_str());
        let locked = Locked::enter(&self.folder, &self.clock);
        let done = locked.and_then(|mut locked| {
            if !path.is_dir() && operation != Operation::CreateQueue {
                return Err(Failure::Refused(ErrorKind::QueueNotFound));
            }
            work(&mut locked, &path)
        });
        done.map_err(|failure| failure.into_error(operation).with_queue(queue))
    }

    fn step(&self, op: Op) -> Result<OpOutcome> {
        Ok(match op {
            Op::Put { queue, message } => OpOutcome::Put(self.put(&queue, message)?),
            Op::Renew {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => OpOutcome::Updated(self.update(&queue, &id, &receipt, visibility, body)?),
            // It does not keep places.
            Op::PutBack {
                queue,
                id,
                receipt,
                place,
                body,
            } => OpOutcome::Updated(self.update(&queue, &id, &receipt, place.delay(), body)?),
            Op::Delete {
                queue, id, receipt, ..
            } => {
                self.delete(&queue, &id, &receipt)?;
                OpOutcome::Deleted
            }
            _ => unreachable!("refused before"),
        })
    }

    fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        self.on(Operation::Put, queue, |locked, path| {
            let mut stored = Message {
                number: locked.number()?,
                receipt: 0,
                count: 0,
                inserted_at: locked.now,
                visible_at: 0,
                expires_at: lifespan(locked.now, &message).1,
                body: message.body.into(),
            };
            locked.hide(path, &mut stored, message.delay)?;
            let (id, receipt) = (stored.id(), stored.receipt());
            let [inserted_at, visible_at] = [stored.inserted_at, stored.visible_at].map(timestamp);
            let mut put = PutReceipt::new(id, receipt, inserted_at, visible_at);
            put.expires_at = stored.expires_at.map(timestamp);
            Ok(put)
        })
    }

    fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        self.on(Operation::Update, queue, |locked, path| {
            let mut held = locked.held(path, id, receipt)?;
            if let Some(body) = body {
                held.body = body.into();
            }
            locked.hide(path, &mut held, visibility)?;
            Ok(Lease::new(held.receipt(), timestamp(held.visible_at)))
        })
    }

    fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        self.on(Operation::Delete, queue, |locked, path| {
            let held = locked.held(path, id, receipt)?;
            Ok(fs::remove_file(path.join(held.number.to_string()))?)
        })
    }
}

/// Follows the time of those who have used the folder before.
fn follow(folder: &Path, clock: &StoreClock) -> Work<()> {
    fs::create_dir_all(folder.join("queues"))?;
    let mut locked = Locked::enter(folder, clock)?;
    let recorded = locked.state.anchor.as_ref();
    let recorded = recorded.map(|(boot, elapsed, store_time)| Anchor {
        moment: Moment {
            boot: boot.parse().ok(),
            elapsed: *elapsed,
        },
        store_time: *store_time,
    });
    if let Some(Anchor { moment, store_time }) = clock.follow(recorded, locked.state.latest) {
        let boot = moment.boot.unwrap_or_default().to_string();
        locked.state.anchor = Some((boot, moment.elapsed, store_time));
        locked.write(&folder.join("state"), &locked.state)?;
    }
    Ok(())
}

fn read<T: DeserializeOwned>(path: &Path) -> Work<T> {
    let value = serde_json::from_slice(&fs::read(path)?);
    Ok(value.map_err(io::Error::from)?)
}

impl<'a> Locked<'a> {
    fn enter(folder: &'a Path, clock: &StoreClock) -> Work<Self> {
        let (lock, state) = (File::create(folder.join("lock"))?, folder.join("state"));
        lock.lock()?;
        Ok(Self {
            folder,
            _lock: lock,
            state: if state.try_exists()? {
                read(&state)?
            } else {
                State::default()
            },
            now: clock.now(),
        })
    }

    /// Replaces a file as a whole.
    fn write(&self, path: &Path, value: &impl Serialize) -> Work<()> {
        let new = self.folder.join("new");
        let text = serde_json::to_vec(value).map_err(io::Error::from)?;
        fs::write(&new, text)?;
        Ok(fs::rename(new, path)?)
    }

    /// Returns a number that nobody has had.
    fn number(&mut self) -> Work<u64> {
        self.state.number += 1;
        self.state.latest = self.state.latest.max(self.now);
        self.write(&self.folder.join("state"), &self.state)?;
        Ok(self.state.number)
    }

    /// Returns the messages of a queue in the order in which they become visible, and removes those that have expired.
    fn messages(&self, queue: &Path) -> Work<Vec<Message>> {
        let mut messages = Vec::new();
        for file in fs::read_dir(queue)? {
            let path = file?.path();
            if path.ends_with("metadata") {
                continue;
            }
            let message: Message = read(&path)?;
            match message.expires_at {
                Some(at) if at <= self.now => fs::remove_file(path)?,
                _ => messages.push(message),
            }
        }
        messages.sort_by_key(|message| (message.visible_at, message.number));
        Ok(messages)
    }

    fn visible(&self, queue: &Path, max: usize) -> Work<Vec<Message>> {
        let mut messages = self.messages(queue)?;
        messages.retain(|message| message.visible_at <= self.now);
        messages.truncate(max);
        Ok(messages)
    }

    /// Finds the message that this receipt holds.
    fn held(&self, queue: &Path, id: &StorageId, receipt: &PopReceipt) -> Work<Message> {
        let mut messages = self.messages(queue)?.into_iter();
        match messages.find(|message| message.id() == *id) {
            None => Err(Failure::Refused(ErrorKind::MessageNotFound)),
            Some(held) if held.receipt() == *receipt => Ok(held),
            Some(_) => Err(Failure::Refused(ErrorKind::ReceiptMismatch)),
        }
    }

    /// Hides a message, under a new receipt.
    fn hide(&mut self, queue: &Path, message: &mut Message, visibility: Duration) -> Work<()> {
        message.receipt = self.number()?;
        message.visible_at = after(self.now, visibility);
        self.write(&queue.join(message.number.to_string()), message)
    }
}

#[async_trait]
impl Backend for FolderBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        format!("folder:{}#{queue}", self.folder.display())
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let operation = Operation::CreateQueue;
        self.limits(operation, queue).check_metadata(metadata)?;
        self.on(operation, queue, |locked, path| {
            if path.is_dir() {
                return if read_metadata(path)? == *metadata {
                    Ok(Created::Existed)
                } else {
                    Err(Failure::Refused(ErrorKind::QueueExists))
                };
            }
            let new = locked.folder.join("new-queue");
            fs::create_dir_all(&new)?;
            locked.write_metadata(&new, metadata)?;
            fs::rename(new, path)?;
            Ok(Created::New)
        })
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.on(Operation::DeleteQueue, queue, |locked, path| {
            let old = locked.folder.join("old");
            fs::create_dir_all(&old)?;
            let old = old.join(locked.number()?.to_string());
            fs::rename(path, &old)?;
            Ok(fs::remove_dir_all(old)?)
        })
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let listed = fs::read_dir(self.folder.join("queues"))
            .and_then(|files| files.collect::<io::Result<Vec<_>>>())
            .map_err(|error| Failure::Io(error).into_error(Operation::ListQueues))?;
        let names = listed.iter().map(fs::DirEntry::file_name);
        let names = names.filter_map(|name| QueueName::new(name.to_str()?).ok());
        let mut names: Vec<_> = names
            .filter(|name| name.as_str().starts_with(prefix))
            .collect();
        names.sort();
        Ok(names)
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.on(Operation::Properties, queue, |locked, path| {
            let count = locked.messages(path)?.len();
            Ok(QueueProperties::new(read_metadata(path)?, count))
        })
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let operation = Operation::SetMetadata;
        self.limits(operation, queue).check_metadata(metadata)?;
        self.on(operation, queue, |locked, path| {
            locked.write_metadata(path, metadata)
        })
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let limits = self.limits(Operation::Receive, queue);
        limits.check_receive(max, visibility)?;
        self.on(Operation::Receive, queue, |locked, path| {
            let mut messages = Vec::new();
            for mut stored in locked.visible(path, max)? {
                stored.count = stored.count.saturating_add(1);
                locked.hide(path, &mut stored, visibility)?;
                let (id, receipt) = (stored.id(), stored.receipt());
                let [inserted_at, now] = [stored.inserted_at, locked.now].map(timestamp);
                let body = stored.body.into();
                let mut message = ReceivedMessage::new(id, receipt, body, inserted_at, now);
                message.dequeue_count = stored.count;
                message.expires_at = stored.expires_at.map(timestamp);
                message.visible_at = timestamp(stored.visible_at);
                messages.push(message);
            }
            Ok(messages)
        })
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        self.limits(Operation::Peek, queue).check_max(max)?;
        self.on(Operation::Peek, queue, |locked, path| {
            let visible = locked.visible(path, max)?.into_iter().map(|stored| {
                let (id, inserted_at) = (stored.id(), timestamp(stored.inserted_at));
                let mut message = PeekedMessage::new(id, stored.body.into(), inserted_at);
                message.dequeue_count = stored.count;
                message.expires_at = stored.expires_at.map(timestamp);
                message
            });
            Ok(visible.collect())
        })
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.on(Operation::Clear, queue, |locked, path| {
            let messages = locked.messages(path)?.into_iter();
            let mut files = messages.map(|message| path.join(message.number.to_string()));
            Ok(files.try_for_each(fs::remove_file)?)
        })
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        let mut outcomes = OpOutcomes::new();
        for (index, op) in ops.into_iter().enumerate() {
            match self.step(op) {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => return Err(ApplyError::new(index, outcomes, error)),
            }
        }
        Ok(outcomes)
    }
}

impl Locked<'_> {
    fn write_metadata(&self, queue: &Path, metadata: &Metadata) -> Work<()> {
        let values: BTreeMap<_, _> = metadata.iter().collect();
        self.write(&queue.join("metadata"), &values)
    }
}

fn read_metadata(queue: &Path) -> Work<Metadata> {
    let values: BTreeMap<String, String> = read(&queue.join("metadata"))?;
    let mut metadata = Metadata::new();
    for (name, value) in values {
        let inserted = metadata.insert(&name, &value);
        inserted.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    }
    Ok(metadata)
}

impl Message {
    fn id(&self) -> StorageId {
        StorageId::new(self.number.to_string())
    }

    fn receipt(&self) -> PopReceipt {
        PopReceipt::new(self.receipt.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    fn into_error(self, operation: Operation) -> Error {
        match self {
            Self::Refused(kind) => Error::new(kind, operation),
            Self::Io(error) => {
                let kind = match error.kind() {
                    io::ErrorKind::InvalidData => ErrorKind::Corrupt,
                    _ => ErrorKind::Storage,
                };
                // It may have failed after the rename.
                let error = Error::new(kind, operation).with_source(error);
                error.with_outcome(Outcome::Unknown)
            }
        }
    }
}

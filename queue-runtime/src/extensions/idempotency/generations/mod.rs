//! Results in an object store, by conditional creation alone: [`ObjectResults`] carries out the requests of `protocol`.
//!
//! | file | contents |
//! |---|---|
//! | `container` | a container beside the queues, as an object store |
//! | `protocol` | the transitions, without I/O |
//! | `objects` | names and contents of the objects |
//! | `sweeping` | removing objects that are no longer needed |
//! | `tests::model` | every interleaving of two owners |

mod container;
mod objects;
mod protocol;
mod sweeping;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use container::Container;
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode};
use objects::{Name, claim_body, end_body, folder, read_claim, read_end, seen};
use protocol::{
    Ask, Asked, Begin, EndObject, NextStep, StoreAnswer, Watch, finish, finishing, renewing,
};
use queue_clock::SystemClock;
use queue_core::clock::Clock;
use queue_core::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, Owner, ResultStore, Swept, WorkKey,
};
use queue_core::internal::{LockExt, debug_fields};
use queue_core::payload_store::PayloadStore;
use queue_core::{Error, ErrorKind, Operation, Outcome, Result, RetryAdvice};

use crate::extensions::objects::{Folder, whole};

/// Results in an object store: a folder, a container of Azure blobs, a bucket, or memory (feature `object-store`).
///
/// The object store needs to offer nothing but *create unless it exists* ([`PutMode::Create`]), listings that show what
/// was created before, and deletions. The clocks of different machines are never compared: another owner's lease has
/// ended when its objects were seen unchanged for the lease's length, on this process's own clock. A process that has
/// not watched a key before waits for a whole lease, also if the key's owner ended long ago.
///
/// Clones of a store share what they have watched. Use one store (and its clones) per process.
///
/// # Cost
/// `begin` of a fresh key takes 2 requests, `finish` 1, a renewal 2 or 3; `begin` of finished work 2. A key leaves
/// objects behind, which [`sweep`](ResultStore::sweep) removes; a listener calls `sweep`.
///
/// # Durability
/// Durability is that of the object store. A [folder](Self::in_folder) survives the end of the process, but a power
/// loss may undo the last results.
///
/// ```
/// use std::sync::Arc;
/// use object_store::memory::InMemory;
/// use queue_runtime::idempotency::ObjectResults;
/// use queue_runtime::once;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = ObjectResults::new(Arc::new(InMemory::new()), "results");
/// for _ in 0..2 {
///     let receipt = once(&store, "order-1234", async {
///         println!("charging the card"); // Printed once.
///         Ok::<_, std::io::Error>(7)
///     });
///     assert_eq!(receipt.await?, 7);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ObjectResults {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    folder: Option<Folder>,
    clock: Arc<dyn Clock>,
    watches: Arc<Mutex<HashMap<WorkKey, Watched>>>,
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    watch: Watch,
    /// When the watch was last looked at, on the monotonic clock.
    at: Duration,
}

/// The most keys that are watched at a time. If more keys are in flight elsewhere, the watch of some begins anew, which
/// only delays taking them over.
const MAX_WATCHED: usize = 10_000;

impl ObjectResults {
    /// Creates a store of the objects whose names begin with `prefix`, which nothing else should use.
    #[must_use]
    pub fn new(objects: Arc<dyn ObjectStore>, prefix: impl Into<Path>) -> Self {
        Self {
            objects,
            prefix: prefix.into(),
            folder: None,
            clock: Arc::new(SystemClock::new()),
            watches: Arc::default(),
        }
    }

    /// Opens the store in this folder, which [`create_in_folder`](Self::create_in_folder) has made.
    ///
    /// Every request compares the folder with the one that was opened, by device and inode on Unix. While the folder is
    /// away or another folder has taken its place, every request is an error, and no work counts as not done yet.
    ///
    /// # Errors
    /// If the folder does not exist or is no store ([`NotFound`](std::io::ErrorKind::NotFound)), such as the folder
    /// under a disk not mounted yet, or if the folder cannot be read.
    pub fn in_folder(folder: impl AsRef<std::path::Path>) -> std::io::Result<Self> {
        Folder::open(folder.as_ref()).map(Self::of_folder)
    }

    /// Makes a store in this folder, which nothing else should use, and opens it; an existing store is only opened. The
    /// folder is created if it does not exist, on Unix readable only by the current user: results are as confidential
    /// as messages.
    ///
    /// Call `create_in_folder` when the application is set up, and [`in_folder`](Self::in_folder) at each start: under
    /// an unmounted disk, `create_in_folder` makes another store, in which no work is recorded.
    ///
    /// ```
    /// use queue_runtime::idempotency::ObjectResults;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let var = tempfile::tempdir()?;
    /// ObjectResults::in_folder(var.path().join("results")).expect_err("there is none yet");
    /// ObjectResults::create_in_folder(var.path().join("results"))?;
    /// let store = ObjectResults::in_folder(var.path().join("results"))?;
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the folder can neither be opened nor created, or holds a damaged store.
    pub fn create_in_folder(folder: impl AsRef<std::path::Path>) -> std::io::Result<Self> {
        Folder::create(folder.as_ref()).map(Self::of_folder)
    }

    /// Creates a store of the objects of a payload store, which nothing else should use. The place for objects is
    /// [prepared](PayloadStore::prepare) before the first result. `ServiceBuilder::results_in` does so with a container
    /// beside the queues.
    #[must_use]
    pub fn in_container(container: Arc<dyn PayloadStore>) -> Self {
        Self::new(Arc::new(Container::new(container)), Path::default())
    }

    fn of_folder((folder, files): (Folder, LocalFileSystem)) -> Self {
        Self {
            folder: Some(folder),
            ..Self::new(Arc::new(files), Path::default())
        }
    }

    /// Replaces the system's clock, for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Carries out the requests of the protocol, each of which follows from the answer to the one before.
    async fn follow<T>(
        &self,
        key: &WorkKey,
        first: Ask,
        mut answer: impl FnMut(&Ask, StoreAnswer, Asked) -> NextStep<T> + Send,
    ) -> Result<T> {
        let mut ask = first;
        loop {
            let at = self.clock.monotonic();
            let asked = self.ask(key, &ask);
            let reply = Folder::guard(self.folder.as_ref(), Operation::Results, asked).await?;
            let answered_at = self.clock.monotonic();
            match answer(&ask, reply, Asked { at, answered_at }) {
                NextStep::Ask(next) => ask = next,
                NextStep::Finished(finished) => return Ok(finished),
            }
        }
    }

    async fn ask(&self, key: &WorkKey, ask: &Ask) -> Result<StoreAnswer> {
        let folder = folder(&self.prefix, key);
        match ask {
            Ask::List => {
                let listed = self.objects.list(Some(&folder));
                let names = listed.try_filter_map(|object| async move {
                    Ok(object.location.filename().and_then(Name::parse))
                });
                let names: Vec<Name> = names.try_collect().await.map_err(failed)?;
                Ok(StoreAnswer::Listed(seen(names)))
            }
            Ask::ReadClaim(generation) => {
                let name = Name::Claim(*generation).within(&folder);
                let claim = self.read(&name, |bytes| read_claim(key, bytes));
                claim.await.map(StoreAnswer::Claim)
            }
            Ask::ReadEnd(generation) => {
                let name = Name::End(*generation).within(&folder);
                let end = self.read(&name, |bytes| read_end(key, bytes));
                end.await.map(StoreAnswer::End)
            }
            Ask::Create(generation, claim) => {
                let name = Name::Claim(*generation).within(&folder);
                self.create(&name, claim_body(key, claim)).await
            }
            Ask::Beat(generation, beat) => {
                let name = Name::Beat(*generation, *beat).within(&folder);
                let created = self.create(&name, Bytes::new()).await?;
                // Two beats stay: a listing of a folder may miss one that is created and one that is deleted meanwhile.
                if *beat > 2 {
                    let before = Name::Beat(*generation, *beat - 2).within(&folder);
                    // A sweep removes beats that are left behind.
                    drop(self.objects.delete(&before).await);
                }
                Ok(created)
            }
            Ask::End(generation, end) => {
                let name = Name::End(*generation).within(&folder);
                self.create(&name, end_body(key, end)).await
            }
        }
    }

    /// Reads an object. An object that is not understood is read again: what was cut or replaced on its way differs
    /// then, and what is the same is damaged.
    async fn read<T>(
        &self,
        name: &Path,
        understand: impl Fn(&Bytes) -> Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(bytes) = self.bytes(name).await? else {
            return Ok(None);
        };
        let problem = match understand(&bytes) {
            Ok(object) => return Ok(Some(object)),
            Err(problem) => problem,
        };
        match self.bytes(name).await? {
            Some(again) if again == bytes => Err(corrupt(problem)),
            Some(again) => understand(&again)
                .map(Some)
                .map_err(|problem| corrupt(problem).with_retry(RetryAdvice::Temporary)),
            None => Ok(None),
        }
    }

    async fn bytes(&self, name: &Path) -> Result<Option<Bytes>> {
        let read = async { whole(self.objects.get(name).await?).await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn create(&self, name: &Path, body: Bytes) -> Result<StoreAnswer> {
        let put = self
            .objects
            .put_opts(name, body.into(), PutMode::Create.into());
        match put.await {
            Ok(_) => Ok(StoreAnswer::Created),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(StoreAnswer::Exists),
            Err(error) => Err(failed(error).with_outcome(Outcome::Unknown)),
        }
    }

    fn watch(&self, key: &WorkKey) -> Option<Watch> {
        self.watches.hold().get(key).map(|watched| watched.watch)
    }

    fn keep_watch(&self, key: &WorkKey, watch: Option<Watch>, lease: Duration) {
        let now = self.clock.monotonic();
        let mut watches = self.watches.hold();
        let Some(watch) = watch else {
            watches.remove(key);
            return;
        };
        if watches.len() >= MAX_WATCHED && !watches.contains_key(key) {
            let forgotten = now.saturating_sub(lease.saturating_mul(4));
            watches.retain(|_, watched| watched.at >= forgotten);
            if watches.len() >= MAX_WATCHED {
                watches.clear();
            }
        }
        watches.insert(key.clone(), Watched { watch, at: now });
    }
}

#[async_trait]
impl ResultStore for ObjectResults {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<ClaimOutcome> {
        let (mut begin, mut watch) = (Begin::new(owner, lease), self.watch(key));
        let answer = |ask: &Ask, reply, asked| {
            let next = begin.answer(ask, reply, asked, &mut watch);
            self.keep_watch(key, watch, lease);
            next
        };
        self.follow(key, Ask::List, answer).await
    }

    async fn renew(&self, key: &WorkKey, claim: Claim, _: Duration) -> Result<ClaimStatus> {
        let answer = |_: &Ask, reply, _| renewing(claim, &reply);
        self.follow(key, Ask::List, answer).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> Result<ClaimStatus> {
        let first = finish(claim, result, retention);
        let answer = |_: &Ask, reply, _| finishing(claim, &reply);
        self.follow(key, first, answer).await
    }

    async fn release(&self, key: &WorkKey, claim: Claim) -> Result<()> {
        let end = Ask::End(claim.generation, EndObject::Over);
        let ended = self.ask(key, &end);
        let ended = Folder::guard(self.folder.as_ref(), Operation::Results, ended);
        ended.await.map(drop)
    }

    async fn sweep(&self) -> Result<Swept> {
        let folder = self.folder.as_ref();
        let sweep = sweeping::sweep(&*self.objects, &self.prefix, folder);
        Folder::guard(folder, Operation::Results, sweep).await
    }
}

// `Debug` leaves out the object store, which may hold keys.
debug_fields!(ObjectResults { prefix });

/// Converts an error of the object store.
fn failed(error: object_store::Error) -> Error {
    crate::extensions::objects::failed(error, Operation::Results)
}

/// Returns the error of an object that cannot be understood.
fn corrupt(problem: String) -> Error {
    Error::new(ErrorKind::Corrupt, Operation::Results).with_detail(problem)
}

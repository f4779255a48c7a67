//! Blob storage: the library's own payload store, which is a folder, memory or a container of an Azure Storage account.

use std::future::Future;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use queue_runtime::backend::Created;
use queue_runtime::payloads::{MemoryPayloads, ObjectPayloads, PayloadStore, StoredObject};
use queue_runtime::policy::StorageRetry;
use queue_runtime::{Error, QueueService};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::storage::blob::BlobName;
use crate::storage::libraries::is_picture;
use pictures::Size;

/// The container of the blobs in a storage account.
const CONTAINER: &str = "mosaic";
/// The bytes that are read at a time.
const PART: usize = 8 << 20;
/// The maximum number of concurrent reads or writes of a caller.
pub(crate) const CONCURRENCY: usize = 8;
/// The tries of a failing request. Handlers are retried anyway, and a client should soon report an unreachable account.
const TRIES: usize = 5;

/// The blobs, none of which ever changes, shared by clones.
///
/// Each method returns a [`StoreError`] if the storage fails.
#[derive(Debug, Clone)]
pub struct Store {
    objects: Arc<dyn PayloadStore>,
    /// The folder of the blobs, if they are in one.
    folder: Option<Arc<Path>>,
    /// Counts the status records that this process has created.
    recorded: watch::Sender<u64>,
}

/// The error for a blob that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The blob does not exist.
    #[error("the blob `{0}` does not exist")]
    Missing(BlobName),
    /// The blob is too large.
    #[error("the blob `{name}` is too large: at most {} are allowed", Size(*max))]
    TooLarge {
        /// The blob's name.
        name: BlobName,
        /// The size limit in bytes.
        max: u64,
    },
    /// A container's pictures are too large together.
    #[error("the library's {count} pictures exceed the {} allowed", Size(*max))]
    TooManyPictures {
        /// The number of pictures.
        count: usize,
        /// The size limit of all pictures, in bytes.
        max: u64,
    },
    /// A record is not valid JSON of its type.
    #[error("the record `{name}` is invalid")]
    Record {
        /// The record's name.
        name: BlobName,
        /// The cause.
        source: serde_json::Error,
    },
    /// The folder of the blobs cannot be opened.
    #[error("open the folder `{}`", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// A symbolic link where a blob or one of its folders should be leads elsewhere: cleaning up would remove what is
    /// there.
    #[error("`{}` is a symbolic link; blobs must be files in the folder itself", .0.display())]
    Link(PathBuf),
    /// The storage account has no place for blobs.
    #[error("there are no blobs beside the queues")]
    NoBlobs,
    /// The storage failed.
    #[error("the storage of the blobs failed at `{0}`")]
    Storage(String, #[source] Error),
}

impl Store {
    /// Opens a folder, and creates it if it does not exist. Writes survive a power failure. The folder may be a
    /// symbolic link; links below it are refused.
    pub fn folder(path: &Path) -> Result<Self, StoreError> {
        let opened = fs::create_dir_all(path).and_then(|()| ObjectPayloads::create_in_folder(path));
        let objects = opened.map_err(|error| StoreError::Folder(path.to_owned(), error))?;
        Ok(Self {
            folder: Some(path.into()),
            ..Self::of(Arc::new(objects))
        })
    }

    /// Returns a store in memory, for tests.
    #[must_use]
    pub fn memory() -> Self {
        Self::of(Arc::new(MemoryPayloads::new()))
    }

    /// Opens the container beside the queues of a storage account, and creates it if it does not exist.
    pub async fn beside(account: &QueueService) -> Result<Self, StoreError> {
        let store = Self::in_container(account, CONTAINER)?;
        // Looks first, since a credential that may not create containers may use one that exists.
        if store.objects.read("status/none", 0, 1).await.is_err() {
            let created = retried(|| store.objects.prepare()).await;
            created.map_err(|error| StoreError::Storage(CONTAINER.to_owned(), error))?;
        }
        Ok(store)
    }

    /// Returns the blobs of a container beside the queues of a storage account.
    pub fn in_container(account: &QueueService, container: &str) -> Result<Self, StoreError> {
        let objects = account.backend().payload_store(container);
        let objects = objects.map_err(|error| StoreError::Storage(container.to_owned(), error))?;
        Ok(Self::of(objects.ok_or(StoreError::NoBlobs)?))
    }

    fn of(objects: Arc<dyn PayloadStore>) -> Self {
        Self {
            objects,
            folder: None,
            recorded: watch::Sender::new(0),
        }
    }

    /// Reads a blob of at most `max` bytes, which must exist.
    pub async fn read(&self, name: &BlobName, max: u64) -> Result<Bytes, StoreError> {
        let found = self.find(name, max).await?;
        found.ok_or_else(|| StoreError::Missing(name.clone()))
    }

    /// Reads a blob of at most `max` bytes. Returns `None` if it does not exist.
    pub async fn find(&self, name: &BlobName, max: u64) -> Result<Option<Bytes>, StoreError> {
        self.check([name.as_str()]).await?;
        match self.contents(name.as_str(), max).await? {
            Some(bytes) if bytes.len() as u64 > max => {
                let name = name.clone();
                Err(StoreError::TooLarge { name, max })
            }
            found => Ok(found),
        }
    }

    /// Reads all pictures, of at most this size in bytes together, with their names.
    pub async fn pictures(&self, max: u64) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut found = self.list("").await?;
        found.retain(|blob| is_picture(&blob.name));
        if found.iter().map(|blob| blob.size).sum::<u64>() > max {
            let count = found.len();
            return Err(StoreError::TooManyPictures { count, max });
        }
        let reads = found.into_iter().map(|blob| async move {
            let read = self.contents(&blob.name, blob.size).await?;
            Ok(read.map(|read| (blob.name, read.to_vec())))
        });
        let found: Vec<_> = stream::iter(reads)
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        // A picture that was removed meanwhile is none.
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads the object of this name, or more than its first `max` bytes.
    async fn contents(&self, name: &str, max: u64) -> Result<Option<Bytes>, StoreError> {
        let mut read = BytesMut::new();
        loop {
            let from = read.len() as u64;
            let part = self.tried(name, || self.objects.read(name, from, PART));
            let Some(part) = part.await? else {
                return Ok(None);
            };
            let is_last = part.len() < PART;
            if is_last && read.is_empty() {
                return Ok(Some(part));
            }
            read.extend_from_slice(&part);
            if is_last || read.len() as u64 > max {
                return Ok(Some(read.freeze()));
            }
        }
    }

    /// Returns whether a blob exists.
    pub async fn exists(&self, name: &BlobName) -> Result<bool, StoreError> {
        self.check([name.as_str()]).await?;
        let read = self.tried(name.as_str(), || self.objects.read(name.as_str(), 0, 1));
        Ok(read.await?.is_some())
    }

    /// Creates a blob atomically unless it exists: of several concurrent calls, one creates it. If a first answer was lost,
    /// the blob may exist that this call has created.
    pub async fn create(
        &self,
        name: &BlobName,
        bytes: impl Into<Bytes>,
    ) -> Result<Created, StoreError> {
        self.check([name.as_str()]).await?;
        let bytes = bytes.into();
        let create = || self.objects.create(name.as_str(), bytes.clone());
        self.tried(name.as_str(), create).await
    }

    /// Returns the blobs whose names begin with this text, which is empty or ends with a slash.
    pub async fn list(&self, prefix: &str) -> Result<Vec<StoredObject>, StoreError> {
        self.check([prefix]).await?;
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let list = || self.objects.list(prefix, from.as_deref());
            let page = self.tried(prefix, list).await?;
            let names = page.objects.iter().map(|blob| blob.name.as_str());
            self.check(names).await?;
            found.extend(page.objects);
            from = page.next;
            if from.is_none() {
                return Ok(found);
            }
        }
    }

    /// Removes a blob, if it exists.
    pub async fn remove(&self, name: &BlobName) -> Result<(), StoreError> {
        self.check([name.as_str()]).await?;
        self.tried(name.as_str(), || self.objects.delete(name.as_str()))
            .await
    }

    /// Removes the blobs whose names begin with this text, as in [`list`](Self::list), and are selected.
    pub async fn remove_where(
        &self,
        prefix: &str,
        selected: impl Fn(&str) -> bool,
    ) -> Result<Removed, StoreError> {
        let mut removed = Removed::default();
        for blob in self.list(prefix).await? {
            if selected(&blob.name) {
                self.tried(&blob.name, || self.objects.delete(&blob.name))
                    .await?;
                removed += Removed {
                    blobs: 1,
                    bytes: blob.size,
                };
            }
        }
        Ok(removed)
    }

    /// Tells when this process, but no other, creates a status record.
    pub(crate) fn recorded(&self) -> watch::Receiver<u64> {
        self.recorded.subscribe()
    }

    pub(crate) fn tell_recorded(&self) {
        self.recorded.send_modify(|count| *count += 1);
    }

    /// Refuses names on whose paths is a symbolic link below the folder. The check is no protection from a program that
    /// replaces folders by links at the same time.
    async fn check(&self, names: impl IntoIterator<Item = &str>) -> Result<(), StoreError> {
        let Some(folder) = self.folder.clone() else {
            return Ok(());
        };
        let names = names.into_iter().map(|name| name.trim_end_matches('/'));
        let paths: Vec<_> = names.map(|name| folder.join(name)).collect();
        let within = Arc::clone(&folder);
        let link = spawn_blocking(move || paths.iter().find_map(|path| link_to(path, &within)));
        match link.await {
            Ok(None) => Ok(()),
            Ok(Some(link)) => Err(StoreError::Link(link)),
            Err(stopped) => Err(StoreError::Folder(folder.to_path_buf(), stopped.into())),
        }
    }

    async fn tried<T, F>(&self, name: &str, operation: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = queue_runtime::Result<T>>,
    {
        let tried = retried(operation).await;
        tried.map_err(|error| StoreError::Storage(name.to_owned(), error))
    }
}

/// Returns the first symbolic link on a path, below this folder.
fn link_to(path: &Path, folder: &Path) -> Option<PathBuf> {
    let mut on_path: Vec<_> = path.ancestors().take_while(|at| *at != folder).collect();
    on_path.reverse();
    let link = on_path.into_iter().find(|at| at.is_symlink());
    link.map(Path::to_path_buf)
}

/// Tries an operation again while it may succeed.
async fn retried<T, F>(operation: impl Fn() -> F) -> queue_runtime::Result<T>
where
    F: Future<Output = queue_runtime::Result<T>>,
{
    let policy = StorageRetry::default().with_max_tries(TRIES);
    let mut failures = 0;
    loop {
        let error = match operation().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        failures += 1;
        let Some(pause) = policy.pause(failures, error.retry(), 1.0) else {
            return Err(error);
        };
        tracing::warn!(%error, ?pause, "a request for a blob failed; trying again");
        tokio::time::sleep(pause).await;
    }
}

/// Blobs that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// The number of blobs.
    pub blobs: u64,
    /// The blobs' size in bytes.
    pub bytes: u64,
}

impl AddAssign for Removed {
    fn add_assign(&mut self, other: Self) {
        self.blobs += other.blobs;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use queue_runtime::ErrorKind as Kind;
    use queue_runtime::error::{Operation, RetryAdvice};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_tried_again_while_it_may_succeed() {
        use RetryAdvice::{Permanent, Temporary, Throttled};
        for (failures, tries) in [
            (&[Throttled(None), Temporary][..], 3),
            (&[Permanent], 1),
            (&[Temporary; 9], TRIES),
        ] {
            let tried = Cell::new(0);
            let done = retried(async || {
                let failure = failures.get(tried.replace(tried.get() + 1)).copied();
                let error =
                    |retry| Error::new(Kind::Storage, Operation::StoreData).with_retry(retry);
                failure.map_or(Ok(()), |retry| Err(error(retry)))
            });
            assert_eq!((done.await.is_ok(), tried.get()), (tries == 3, tries));
        }
    }
}

//! Blob storage: in a local folder, in memory or in an Azure Storage account.

use std::error::Error;
use std::fmt;
use std::ops::AddAssign;
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, WriteMultipart};
use queue_runtime::idempotency::ObjectResults;
use tokio::sync::watch;

use crate::storage::blob::{BlobName, Container};
use crate::storage::links::Links;
use crate::storage::object_error::{describe, is_about_container};
use pictures::Size;

/// The containers and their blobs. Clones share them.
#[derive(Clone)]
pub struct Store {
    /// In the order of [`Container::ALL`].
    containers: Arc<[Arc<dyn ObjectStore>; Container::ALL.len()]>,
    links: Links,
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
    #[error("the blob `{name}` has {}; at most {} are allowed", Size(*size), Size(*max))]
    TooLarge {
        /// Its name.
        name: BlobName,
        /// Its size in bytes.
        size: u64,
        /// The size limit in bytes.
        max: u64,
    },
    /// A record is not valid JSON of its type.
    #[error("the record `{name}` is invalid")]
    Record {
        /// Its name.
        name: BlobName,
        /// The cause.
        source: serde_json::Error,
    },
    /// The storage failed.
    #[error("{operation} `{target}`")]
    Storage {
        /// The operation, a verb.
        operation: &'static str,
        /// The blob or folder.
        target: String,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Whether a blob was created or existed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It was created.
    New,
    /// It existed already and was not changed. A storage account may also report this to the client
    /// that created the blob, if its first response was lost: compare the contents.
    Existed,
}

impl Store {
    /// Opens a folder, and creates it if it does not exist. Writes survive a power failure. The folder may be a
    /// symbolic link; those below it are refused.
    ///
    /// # Errors
    /// [`StoreError::Storage`] if the folder cannot be created or used.
    pub fn folder(path: &FilePath) -> Result<Self, StoreError> {
        let failed = |source: Box<dyn Error + Send + Sync>| StoreError::Storage {
            operation: "open the folder",
            target: path.display().to_string(),
            source,
        };
        std::fs::create_dir_all(path).map_err(|error| failed(error.into()))?;
        let folder =
            LocalFileSystem::new_with_prefix(path).map_err(|error| failed(error.into()))?;
        let folder = folder.with_fsync(true).with_automatic_cleanup(true);
        let links = Links::below(path);
        // Blobs of the other containers are checked one by one.
        let results = links.check(Container::Results, &Path::default());
        results.map_err(|link| failed(link.into()))?;
        Ok(Self {
            links,
            ..Self::within(Arc::new(folder))
        })
    }

    /// Returns a store in memory, for tests.
    #[must_use]
    pub fn memory() -> Self {
        Self::within(Arc::new(InMemory::new()))
    }

    /// Returns a store with one object store for each container.
    pub(crate) fn of(containers: [Arc<dyn ObjectStore>; Container::ALL.len()]) -> Self {
        Self {
            containers: Arc::new(containers),
            links: Links::default(),
            recorded: watch::Sender::new(0),
        }
    }

    /// Returns a store whose containers are prefixes in one object store.
    fn within(objects: Arc<dyn ObjectStore>) -> Self {
        Self::of(Container::ALL.map(|container| {
            let prefixed = PrefixStore::new(Arc::clone(&objects), container.name());
            Arc::new(prefixed) as _
        }))
    }

    fn locate(
        &self,
        operation: &'static str,
        name: &BlobName,
    ) -> Result<(&dyn ObjectStore, Path), StoreError> {
        let (container, path) = name.location();
        let checked = self.links.check(container, &path);
        checked.map_err(|link| StoreError::Storage {
            operation,
            target: name.to_string(),
            source: link.into(),
        })?;
        Ok((&*self.containers[container as usize], path))
    }

    fn check_listed(
        &self,
        operation: &'static str,
        container: Container,
        path: &Path,
    ) -> Result<(), StoreError> {
        let checked = self.links.check(container, path);
        checked.map_err(|link| StoreError::Storage {
            operation,
            target: container.name().to_owned(),
            source: link.into(),
        })
    }

    /// Reads a blob of at most `max` bytes.
    ///
    /// # Errors
    /// [`StoreError`], also if the blob does not exist.
    pub async fn read(&self, name: &BlobName, max: u64) -> Result<Bytes, StoreError> {
        let failed = |error| failed("read", name, error);
        let (objects, path) = self.locate("read", name)?;
        let found = objects.get(&path).await.map_err(failed)?;
        let size = found.meta.size;
        if size > max {
            return Err(StoreError::TooLarge {
                name: name.clone(),
                size,
                max,
            });
        }
        found.bytes().await.map_err(failed)
    }

    /// Returns the size of a blob in bytes, and its contents as they are read.
    ///
    /// # Errors
    /// [`StoreError`], also if the blob does not exist.
    pub async fn stream(
        &self,
        name: &BlobName,
    ) -> Result<(u64, BoxStream<'static, object_store::Result<Bytes>>), StoreError> {
        let (objects, path) = self.locate("read", name)?;
        let found = objects.get(&path).await;
        let found = found.map_err(|error| failed("read", name, error))?;
        Ok((found.meta.size, found.into_stream()))
    }

    /// Reads a blob of at most `max` bytes. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn find(&self, name: &BlobName, max: u64) -> Result<Option<Bytes>, StoreError> {
        match self.read(name, max).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StoreError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a blob exists.
    ///
    /// # Errors
    /// [`StoreError::Storage`].
    pub async fn exists(&self, name: &BlobName) -> Result<bool, StoreError> {
        let (objects, path) = self.locate("look up", name)?;
        match objects.head(&path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(failed("look up", name, error)),
        }
    }

    /// Writes a blob atomically. An existing one is replaced.
    ///
    /// # Errors
    /// [`StoreError::Storage`].
    pub async fn write(&self, name: &BlobName, bytes: impl Into<Bytes>) -> Result<(), StoreError> {
        let (objects, path) = self.locate("write", name)?;
        let written = objects.put(&path, bytes.into().into()).await;
        written
            .map(drop)
            .map_err(|error| failed("write", name, error))
    }

    /// Creates a blob atomically unless it exists: of several concurrent calls, one creates it.
    ///
    /// # Errors
    /// [`StoreError::Storage`]; the blob may have been created nevertheless.
    pub async fn create(
        &self,
        name: &BlobName,
        bytes: impl Into<Bytes>,
    ) -> Result<Created, StoreError> {
        let (objects, path) = self.locate("create", name)?;
        let payload = bytes.into().into();
        let created = objects.put_opts(&path, payload, PutMode::Create.into());
        match created.await {
            Ok(_) => Ok(Created::New),
            Err(error @ object_store::Error::AlreadyExists { .. })
                if !is_about_container(&error) =>
            {
                Ok(Created::Existed)
            }
            Err(error) => Err(failed("create", name, error)),
        }
    }

    /// Returns the result store in [`Container::Results`].
    #[must_use]
    pub fn results(&self) -> ObjectResults {
        let objects = Arc::clone(&self.containers[Container::Results as usize]);
        ObjectResults::new(objects, Path::default())
    }

    /// Tells when this process creates a status record. Others create some too.
    pub(crate) fn recorded(&self) -> watch::Receiver<u64> {
        self.recorded.subscribe()
    }

    pub(crate) fn tell_recorded(&self) {
        self.recorded.send_modify(|count| *count += 1);
    }

    /// Starts an upload in parts. The blob appears once the upload is finished.
    pub(crate) async fn upload(&self, name: &BlobName) -> Result<WriteMultipart, StoreError> {
        let (objects, path) = self.locate("write", name)?;
        let upload = objects.put_multipart(&path).await;
        upload
            .map(WriteMultipart::new)
            .map_err(|error| failed("write", name, error))
    }

    /// Returns the last part of the name of every blob below `name`.
    ///
    /// # Errors
    /// [`StoreError::Storage`].
    pub async fn list(&self, name: &BlobName) -> Result<Vec<String>, StoreError> {
        let (objects, path) = self.locate("list", name)?;
        let listed = objects.list(Some(&path));
        let listed: Vec<ObjectMeta> =
            (listed.try_collect().await).map_err(|error| failed("list", name, error))?;
        let (container, _) = name.location();
        let mut names = Vec::new();
        for meta in listed {
            self.check_listed("list", container, &meta.location)?;
            names.extend(meta.location.filename().map(str::to_owned));
        }
        Ok(names)
    }

    /// Returns the names of the folders at the top of a container.
    ///
    /// # Errors
    /// [`StoreError::Storage`].
    pub async fn folders(&self, container: Container) -> Result<Vec<String>, StoreError> {
        let listed = self.containers[container as usize]
            .list_with_delimiter(None)
            .await;
        let listed = listed.map_err(|error| failed_container("list", container, &error))?;
        let names = listed.common_prefixes.iter().filter_map(Path::filename);
        Ok(names.map(str::to_owned).collect())
    }

    /// Removes a blob, if it exists.
    ///
    /// # Errors
    /// [`StoreError::Storage`].
    pub async fn remove(&self, name: &BlobName) -> Result<Removed, StoreError> {
        let (objects, path) = self.locate("remove", name)?;
        let bytes = match objects.head(&path).await {
            Ok(meta) => meta.size,
            Err(object_store::Error::NotFound { .. }) => return Ok(Removed::default()),
            Err(error) => return Err(failed("look up", name, error)),
        };
        match objects.delete(&path).await {
            Ok(()) => Ok(Removed { blobs: 1, bytes }),
            Err(object_store::Error::NotFound { .. }) => Ok(Removed::default()),
            Err(error) => Err(failed("remove", name, error)),
        }
    }

    /// Removes the blobs of a container whose path in it is selected.
    ///
    /// # Errors
    /// [`StoreError::Storage`].
    pub async fn remove_where(
        &self,
        container: Container,
        selected: impl Fn(&str) -> bool,
    ) -> Result<Removed, StoreError> {
        let objects = &self.containers[container as usize];
        let listed: Vec<ObjectMeta> = (objects.list(None).try_collect().await)
            .map_err(|error| failed_container("list", container, &error))?;
        let mut removed = Removed::default();
        for meta in listed {
            if !selected(meta.location.as_ref()) {
                continue;
            }
            self.check_listed("remove a blob from", container, &meta.location)?;
            match objects.delete(&meta.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    return Err(failed_container("remove a blob from", container, &error));
                }
            }
            removed += Removed {
                blobs: 1,
                bytes: meta.size,
            };
        }
        Ok(removed)
    }
}

/// Blobs that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Their number.
    pub blobs: u64,
    /// Their size in bytes, where known.
    pub bytes: u64,
}

impl AddAssign for Removed {
    fn add_assign(&mut self, other: Self) {
        self.blobs += other.blobs;
        self.bytes += other.bytes;
    }
}

/// Omits the object stores, which may hold keys.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

pub(crate) fn failed(
    operation: &'static str,
    name: &BlobName,
    error: object_store::Error,
) -> StoreError {
    match error {
        object_store::Error::NotFound { .. } if !is_about_container(&error) => {
            StoreError::Missing(name.clone())
        }
        error => StoreError::Storage {
            operation,
            target: name.to_string(),
            source: describe(&error).into(),
        },
    }
}

fn failed_container(
    operation: &'static str,
    container: Container,
    error: &object_store::Error,
) -> StoreError {
    StoreError::Storage {
        operation,
        target: container.name().to_owned(),
        source: describe(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_container_is_not_a_missing_blob() {
        let name = BlobName::new(Container::Status, &["a"]);
        let missing = |code: &str| object_store::Error::NotFound {
            path: "a".to_owned(),
            source: format!("<Error><Code>{code}</Code></Error>").into(),
        };
        let blob = failed("read", &name, missing("BlobNotFound"));
        assert!(matches!(blob, StoreError::Missing(_)), "{blob:?}");
        let container = failed("read", &name, missing("ContainerNotFound"));
        assert!(
            matches!(container, StoreError::Storage { .. }),
            "{container:?}"
        );
    }
}

//! Tile libraries: uploaded once, described once, and loaded once in each process.
//!
//! A library is addressed by its fingerprint. Its files are `imagelibrary/FINGERPRINT/00000` and so
//! on; `files.json`, written last, says what they are called and that all of them are there. `cache`
//! holds the tiles' features and scaled pictures.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use queue_runtime::Failure;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OnceCell};
use tokio::task::{JoinError, spawn_blocking};

use crate::blob::BlobName;
use crate::picture::{Fingerprint, Library, LibraryError, Renderer};
use crate::store::{Store, StoreError};

/// The most files of a library.
pub const MAX_FILES: usize = 50_000;
/// The largest file of a library, and the largest source picture, in bytes.
pub const MAX_PICTURE: u64 = 64 << 20;
/// The most bytes of a library.
pub const MAX_LIBRARY: u64 = 1 << 30;

/// The largest list of files, in bytes.
const MAX_LIST: u64 = 32 << 20;
/// The largest cache, in bytes: about 12 KiB a tile.
const MAX_CACHE: u64 = 1 << 30;
/// How many libraries are kept in memory.
const KEPT: usize = 2;
/// How many files are on their way at once.
const AT_ONCE: usize = 8;

/// The libraries in a store. Clones share what is loaded.
#[derive(Debug, Clone)]
pub struct LibraryStore {
    store: Store,
    kept: Arc<Mutex<Vec<Kept>>>,
}

type Kept = (Fingerprint, Arc<OnceCell<Arc<Renderer>>>);

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryStoreError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its files are not a library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// It is larger than it may be.
    #[error("the tile library has {found} {what}; at most {max} are allowed")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much there may be.
        max: u64,
    },
    /// Its files are others than it was named after.
    #[error("the files of the tile library {0} are not those that were uploaded")]
    Altered(Fingerprint),
    /// Loading it was cut short.
    #[error("the tile library was not loaded")]
    Stopped(#[source] JoinError),
}

#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    name: String,
    size: u64,
}

impl LibraryStore {
    /// The libraries in a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self {
            store,
            kept: Arc::default(),
        }
    }

    /// Uploads a library unless it is there. `sent` is told how many of its files are.
    ///
    /// # Errors
    /// A library that is too large; the store's.
    pub async fn upload(
        &self,
        files: Vec<(String, Vec<u8>)>,
        mut sent: impl FnMut(usize),
    ) -> Result<Fingerprint, LibraryStoreError> {
        let total = files.len();
        at_most("files", total as u64, MAX_FILES as u64)?;
        at_most(
            "bytes",
            files.iter().map(|(_, bytes)| bytes.len() as u64).sum(),
            MAX_LIBRARY,
        )?;
        let fingerprint = Fingerprint::of_files(&files);
        let list = BlobName::library(fingerprint, "files.json");
        if self.store.exists(&list).await? {
            sent(total);
            return Ok(fingerprint);
        }
        let listed: Vec<_> = files
            .iter()
            .map(|(name, bytes)| Listed {
                name: name.clone(),
                size: bytes.len() as u64,
            })
            .collect();
        let uploads = files
            .into_iter()
            .enumerate()
            .map(|(at, (_, bytes))| async move {
                self.store.write(&file_name(fingerprint, at), bytes).await
            });
        let mut uploads = stream::iter(uploads).buffer_unordered(AT_ONCE);
        let mut done = 0;
        while let Some(()) = uploads.try_next().await? {
            done += 1;
            sent(done);
        }
        let text = serde_json::to_vec(&listed).map_err(|source| StoreError::Record {
            name: list.clone(),
            source,
        })?;
        self.store.write(&list, text).await?;
        Ok(fingerprint)
    }

    /// Makes sure that a library is usable and that its cache is there.
    ///
    /// # Errors
    /// [`LibraryStoreError`] says what is wrong with the library.
    pub async fn prepare(&self, fingerprint: Fingerprint) -> Result<(), LibraryStoreError> {
        if self.store.exists(&cache_name(fingerprint)).await? {
            return Ok(());
        }
        self.load(fingerprint).await.map(drop)
    }

    /// A renderer with a library, made once however many ask.
    ///
    /// # Errors
    /// [`LibraryStoreError`] says what is wrong with the library.
    pub async fn renderer(
        &self,
        fingerprint: Fingerprint,
    ) -> Result<Arc<Renderer>, LibraryStoreError> {
        let cell = self.cell(fingerprint).await;
        let renderer = cell.get_or_try_init(|| async {
            let library = match self.cached(fingerprint).await? {
                Some(library) => library,
                None => self.load(fingerprint).await?,
            };
            let renderer = spawn_blocking(move || Renderer::new(library)).await;
            renderer.map(Arc::new).map_err(LibraryStoreError::Stopped)
        });
        renderer.await.map(Arc::clone)
    }

    /// The place of a library in memory; the one that was used least recently makes room.
    async fn cell(&self, fingerprint: Fingerprint) -> Arc<OnceCell<Arc<Renderer>>> {
        let mut kept = self.kept.lock().await;
        let found = kept.iter().position(|kept| kept.0 == fingerprint);
        let entry = match found {
            Some(at) => kept.remove(at),
            None => (fingerprint, Arc::default()),
        };
        let cell = Arc::clone(&entry.1);
        kept.insert(0, entry);
        kept.truncate(KEPT);
        cell
    }

    async fn cached(&self, fingerprint: Fingerprint) -> Result<Option<Library>, LibraryStoreError> {
        let Some(cache) = self.store.find(&cache_name(fingerprint), MAX_CACHE).await? else {
            return Ok(None);
        };
        let read = spawn_blocking(move || Library::from_cache(&cache, fingerprint)).await;
        match read.map_err(LibraryStoreError::Stopped)? {
            Ok(library) => Ok(Some(library)),
            Err(error) => {
                tracing::warn!(library = %fingerprint, %error, "did not use a library's cache");
                Ok(None)
            }
        }
    }

    /// Loads a library from its files and writes its cache.
    async fn load(&self, fingerprint: Fingerprint) -> Result<Library, LibraryStoreError> {
        let files = self.files(fingerprint).await?;
        let loaded = spawn_blocking(move || {
            let library = Library::load(&files)?;
            let cache = library.to_cache();
            Ok::<_, LibraryError>((library, cache))
        });
        let (library, cache) = loaded.await.map_err(LibraryStoreError::Stopped)??;
        if library.fingerprint() != fingerprint {
            return Err(LibraryStoreError::Altered(fingerprint));
        }
        self.store.write(&cache_name(fingerprint), cache).await?;
        tracing::info!(library = %fingerprint, tiles = library.tiles().len(), "described a library");
        Ok(library)
    }

    async fn files(
        &self,
        fingerprint: Fingerprint,
    ) -> Result<Vec<(String, Bytes)>, LibraryStoreError> {
        let list = BlobName::library(fingerprint, "files.json");
        let text = self.store.read(&list, MAX_LIST).await?;
        let listed: Vec<Listed> = serde_json::from_slice(&text)
            .map_err(|source| StoreError::Record { name: list, source })?;
        at_most("files", listed.len() as u64, MAX_FILES as u64)?;
        let total = listed
            .iter()
            .fold(0_u64, |sum, file| sum.saturating_add(file.size));
        at_most("bytes", total, MAX_LIBRARY)?;
        let reads = listed.into_iter().enumerate().map(|(at, file)| async move {
            let bytes = self
                .store
                .read(&file_name(fingerprint, at), file.size)
                .await?;
            Ok((file.name, bytes))
        });
        stream::iter(reads).buffered(AT_ONCE).try_collect().await
    }
}

impl LibraryStoreError {
    /// The failure of an attempt: pointless to repeat if the library itself is at fault.
    #[must_use]
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Store(error) => error.into_failure(),
            Self::Stopped(_) => Failure::retry(self),
            Self::Library(_) | Self::TooLarge { .. } | Self::Altered(_) => Failure::reject(self),
        }
    }
}

fn at_most(what: &'static str, found: u64, max: u64) -> Result<(), LibraryStoreError> {
    if found > max {
        Err(LibraryStoreError::TooLarge { what, found, max })
    } else {
        Ok(())
    }
}

fn file_name(fingerprint: Fingerprint, at: usize) -> BlobName {
    BlobName::library(fingerprint, &format!("{at:05}"))
}

fn cache_name(fingerprint: Fingerprint) -> BlobName {
    BlobName::library(fingerprint, "cache")
}

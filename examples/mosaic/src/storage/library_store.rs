//! Tile libraries: uploaded once, and loaded once in each process.
//!
//! A library is addressed by its fingerprint. Its files are `imagelibrary/FINGERPRINT/00000` and so
//! on; `files.json`, written last, lists their names and marks the upload as complete. `cache`, written
//! by the first process that loads the library, holds the tiles' features and scaled pictures. `skipped.json`,
//! written before it, lists the files that are not usable pictures.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OnceCell};
use tokio::task::{JoinError, spawn_blocking};

use crate::storage::blob::BlobName;
use crate::storage::object_error::describe;
use crate::storage::store::{Store, StoreError};
use pictures::{Fingerprint, Library, PictureError, Renderer, Size};

/// The maximum number of files in a library.
pub const MAX_FILES: usize = 50_000;
/// The size limit of a file in a library, and of a source picture, in bytes.
pub const MAX_PICTURE: u64 = 64 << 20;
/// The size limit of a library, in bytes.
pub const MAX_LIBRARY: u64 = 1 << 30;

/// The size limit of the list of files, in bytes.
const MAX_LIST: u64 = 32 << 20;
/// The size limit of a cache, in bytes; a tile takes about 12 KiB.
const MAX_CACHE: u64 = 1 << 30;
/// The number of libraries kept in memory.
const MAX_LOADED: usize = 2;
/// The maximum number of concurrent uploads or downloads.
const CONCURRENCY: usize = 8;

/// Returns whether the name of a file is that of a picture: it ends in .png, .jpg or .jpeg, in any case.
#[must_use]
pub fn is_picture(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    let named = |known: &&str| extension.is_some_and(|found| found.eq_ignore_ascii_case(known));
    ["png", "jpg", "jpeg"].iter().any(named)
}

/// The tile libraries in a store. Clones share the loaded libraries.
#[derive(Debug, Clone)]
pub struct LibraryStore {
    store: Store,
    loaded: Arc<Mutex<Vec<Loaded>>>,
}

type Loaded = (Fingerprint, Arc<OnceCell<Arc<Renderer>>>);

/// The error for a library that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryStoreError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its files do not make a library.
    #[error(transparent)]
    Library(#[from] PictureError),
    /// It has too many files.
    #[error("the tile library has {found} files; at most {MAX_FILES} are allowed")]
    TooMany {
        /// The number of files.
        found: usize,
    },
    /// It is too large.
    #[error("the tile library has {}; at most {} are allowed", Size(*found), Size(MAX_LIBRARY))]
    TooLarge {
        /// Its size in bytes.
        found: u64,
    },
    /// Its files do not match its fingerprint.
    #[error("the files of tile library {0} do not match its fingerprint")]
    Altered(Fingerprint),
    /// Loading it panicked or was cancelled.
    #[error("load the tile library")]
    Stopped(#[source] JoinError),
}

#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    name: String,
    size: u64,
}

impl LibraryStore {
    /// Returns the tile libraries in a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self {
            store,
            loaded: Arc::default(),
        }
    }

    /// Uploads a library unless it exists, and calls `progress` with the number of files uploaded.
    ///
    /// # Errors
    /// [`LibraryStoreError::TooMany`], [`LibraryStoreError::TooLarge`] and [`LibraryStoreError::Store`].
    pub async fn upload(
        &self,
        files: Vec<(String, Vec<u8>)>,
        mut progress: impl FnMut(usize),
    ) -> Result<Fingerprint, LibraryStoreError> {
        let total = files.len();
        check_size(files.iter().map(|(_, bytes)| bytes.len() as u64))?;
        let fingerprint = Fingerprint::of_files(&files);
        let list = BlobName::library(fingerprint, "files.json");
        if self.is_complete(fingerprint).await? {
            progress(total);
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
        let mut uploads = stream::iter(uploads).buffer_unordered(CONCURRENCY);
        let mut done = 0;
        while let Some(()) = uploads.try_next().await? {
            done += 1;
            progress(done);
        }
        let text = serde_json::to_vec(&listed).map_err(|source| StoreError::Record {
            name: list.clone(),
            source,
        })?;
        self.store.write(&list, text).await?;
        Ok(fingerprint)
    }

    /// Returns whether all files of a library are there.
    ///
    /// # Errors
    /// [`LibraryStoreError::Store`].
    pub async fn is_complete(&self, fingerprint: Fingerprint) -> Result<bool, LibraryStoreError> {
        let list = BlobName::library(fingerprint, "files.json");
        Ok(self.store.exists(&list).await?)
    }

    /// Makes sure that a library can be used and that its cache exists.
    ///
    /// # Errors
    /// [`LibraryStoreError`] if the library cannot be used.
    pub async fn prepare(&self, fingerprint: Fingerprint) -> Result<(), LibraryStoreError> {
        if self.store.exists(&cache_name(fingerprint)).await? {
            return Ok(());
        }
        self.load(fingerprint).await.map(drop)
    }

    /// Returns a renderer for a library. Concurrent calls load it once.
    ///
    /// # Errors
    /// [`LibraryStoreError`] if the library cannot be used.
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

    /// Returns the cell that holds a library in memory, and evicts the least recently used one.
    async fn cell(&self, fingerprint: Fingerprint) -> Arc<OnceCell<Arc<Renderer>>> {
        let mut loaded = self.loaded.lock().await;
        let found = loaded.iter().position(|entry| entry.0 == fingerprint);
        let entry = match found {
            Some(at) => loaded.remove(at),
            None => (fingerprint, Arc::default()),
        };
        let cell = Arc::clone(&entry.1);
        loaded.insert(0, entry);
        loaded.truncate(MAX_LOADED);
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
                tracing::warn!(library = %fingerprint, %error, "failed to read a library's cache; loading its files");
                Ok(None)
            }
        }
    }

    /// Loads a library from its files and writes its cache.
    async fn load(&self, fingerprint: Fingerprint) -> Result<Library, LibraryStoreError> {
        let files = self.files(fingerprint).await?;
        let loaded = spawn_blocking(move || {
            let (library, skipped) = Library::load(&files)?;
            let cache = library.to_cache();
            Ok::<_, PictureError>((library, cache, skipped))
        });
        let (library, cache, skipped) = loaded.await.map_err(LibraryStoreError::Stopped)??;
        if library.fingerprint() != fingerprint {
            return Err(LibraryStoreError::Altered(fingerprint));
        }
        self.record_skipped(fingerprint, &skipped).await?;
        self.store.write(&cache_name(fingerprint), cache).await?;
        tracing::info!(library = %fingerprint, tiles = library.tile_count(), "loaded a library and wrote its cache");
        Ok(library)
    }

    async fn record_skipped(
        &self,
        fingerprint: Fingerprint,
        skipped: &[(String, PictureError)],
    ) -> Result<(), LibraryStoreError> {
        for (name, error) in skipped {
            // The client warns its user.
            tracing::info!(library = %fingerprint, name, %error, "skipped a tile");
        }
        if skipped.is_empty() {
            return Ok(());
        }
        let reasons = skipped.iter().map(|(name, error)| (name, describe(error)));
        let reasons: Vec<_> = reasons.collect();
        let name = skipped_name(fingerprint);
        let text = serde_json::to_vec(&reasons).map_err(|source| StoreError::Record {
            name: name.clone(),
            source,
        })?;
        self.store.write(&name, text).await?;
        Ok(())
    }

    /// Returns the names of the files that were left out when the library was loaded, with the reasons.
    ///
    /// # Errors
    /// [`LibraryStoreError::Store`].
    pub async fn skipped(
        &self,
        fingerprint: Fingerprint,
    ) -> Result<Vec<(String, String)>, LibraryStoreError> {
        let name = skipped_name(fingerprint);
        let Some(text) = self.store.find(&name, MAX_LIST).await? else {
            return Ok(Vec::new());
        };
        let skipped = serde_json::from_slice(&text);
        Ok(skipped.map_err(|source| StoreError::Record { name, source })?)
    }

    async fn files(
        &self,
        fingerprint: Fingerprint,
    ) -> Result<Vec<(String, Bytes)>, LibraryStoreError> {
        let list = BlobName::library(fingerprint, "files.json");
        let text = self.store.read(&list, MAX_LIST).await?;
        let listed: Vec<Listed> = serde_json::from_slice(&text)
            .map_err(|source| StoreError::Record { name: list, source })?;
        check_size(listed.iter().map(|file| file.size))?;
        let reads = listed.into_iter().enumerate().map(|(at, file)| async move {
            let bytes = self
                .store
                .read(&file_name(fingerprint, at), file.size)
                .await?;
            Ok((file.name, bytes))
        });
        stream::iter(reads)
            .buffered(CONCURRENCY)
            .try_collect()
            .await
    }
}

/// Refuses a library whose files, of these sizes in bytes, are too many or too large together.
fn check_size(files: impl ExactSizeIterator<Item = u64>) -> Result<(), LibraryStoreError> {
    let count = files.len();
    let size = files.fold(0_u64, u64::saturating_add);
    if count > MAX_FILES {
        Err(LibraryStoreError::TooMany { found: count })
    } else if size > MAX_LIBRARY {
        Err(LibraryStoreError::TooLarge { found: size })
    } else {
        Ok(())
    }
}

fn file_name(fingerprint: Fingerprint, at: usize) -> BlobName {
    BlobName::library(fingerprint, &format!("{at:05}"))
}

fn skipped_name(fingerprint: Fingerprint) -> BlobName {
    BlobName::library(fingerprint, "skipped.json")
}

fn cache_name(fingerprint: Fingerprint) -> BlobName {
    BlobName::library(fingerprint, "cache")
}

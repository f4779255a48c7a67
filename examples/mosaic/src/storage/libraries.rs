//! Tile libraries: uploaded once, and loaded once in each process.
//!
//! A library is addressed by the fingerprint of its files; its blob is a picture of all tiles, scaled to their size.

use std::sync::Arc;

use tokio::sync::{Mutex, OnceCell};
use tokio::task::{JoinError, spawn_blocking};

use crate::storage::blob::BlobName;
use crate::storage::store::{Store, StoreError};
use pictures::{Fingerprint, Library, PictureError, Renderer};

/// The size limit of a file in a library, and of a source picture, in bytes.
pub const MAX_PICTURE: u64 = 64 << 20;
/// The size limit of a library, in bytes.
pub const MAX_LIBRARY: u64 = 1 << 30;

/// Libraries kept in memory.
const MAX_LOADED: usize = 2;

/// Returns whether the name of a file is that of a picture: it ends in .png, .jpg or .jpeg, in any case.
pub fn is_picture(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    let named = |known: &&str| extension.is_some_and(|found| found.eq_ignore_ascii_case(known));
    ["png", "jpg", "jpeg"].iter().any(named)
}

/// The tile libraries in a store. Clones share the loaded libraries.
#[derive(Debug, Clone)]
pub struct Libraries {
    store: Store,
    /// The most recently used first.
    loaded: Arc<Mutex<Vec<Loaded>>>,
}

type Loaded = (Fingerprint, Arc<OnceCell<Arc<Renderer>>>);

/// The error for a library that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The library is damaged.
    #[error(transparent)]
    Library(#[from] PictureError),
    /// Loading the library panicked or was cancelled.
    #[error("load the tile library")]
    Stopped(#[from] JoinError),
}

impl Libraries {
    /// Returns the tile libraries in a store.
    pub fn new(store: Store) -> Self {
        let loaded = Arc::default();
        Self { store, loaded }
    }

    /// Uploads a library unless it exists.
    pub async fn upload(&self, library: Arc<Library>) -> Result<(), LibraryError> {
        let fingerprint = library.fingerprint();
        if !self.exists(fingerprint).await? {
            let picture = spawn_blocking(move || library.to_png()).await?;
            self.store
                .create(&BlobName::library(fingerprint), picture)
                .await?;
        }
        Ok(())
    }

    /// Returns whether a library exists.
    pub async fn exists(&self, fingerprint: Fingerprint) -> Result<bool, StoreError> {
        self.store.exists(&BlobName::library(fingerprint)).await
    }

    /// Returns a renderer for a library. Concurrent calls load the library once.
    pub async fn renderer(&self, fingerprint: Fingerprint) -> Result<Arc<Renderer>, LibraryError> {
        let cell = self.cell(fingerprint).await;
        let renderer = cell.get_or_try_init(|| async {
            let name = BlobName::library(fingerprint);
            let picture = self.store.read(&name, MAX_LIBRARY).await?;
            let load = move || Library::from_png(&picture, fingerprint).map(Renderer::new);
            Ok::<_, LibraryError>(Arc::new(spawn_blocking(load).await??))
        });
        renderer.await.map(Arc::clone)
    }

    /// Returns the cell that holds a library in memory, and evicts the least recently used library.
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
}

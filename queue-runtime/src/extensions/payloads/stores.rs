//! The payload stores that come with the library: in memory, and over an `object_store`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use queue_clock::SystemClock;
use queue_core::backend::Created;
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::payload_store::{ObjectPage, PayloadStore, StoredObject};
use queue_core::{Result, Timestamp};

/// A payload store in memory, for tests. All clones share the store, which is gone with the last clone.
pub struct MemoryPayloads {
    clock: Arc<dyn Clock>,
    objects: Mutex<BTreeMap<String, Object>>,
}

struct Object {
    data: Bytes,
    created: Timestamp,
}

/// The objects of a page.
const PAGE: usize = 1000;

impl MemoryPayloads {
    /// Creates an empty store with the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// Creates an empty store with this clock, which tells when an object was created.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            objects: Mutex::default(),
        }
    }
}

impl Default for MemoryPayloads {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryPayloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPayloads").finish_non_exhaustive()
    }
}

#[async_trait]
impl PayloadStore for MemoryPayloads {
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
        let mut objects = self.objects.hold();
        if objects.contains_key(name) {
            return Ok(Created::Existed);
        }
        let created = self.clock.now();
        objects.insert(name.to_owned(), Object { data, created });
        Ok(Created::New)
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        let objects = self.objects.hold();
        Ok(objects.get(name).map(|object| {
            let length = object.data.len();
            let from = usize::try_from(from).unwrap_or(length).min(length);
            object
                .data
                .slice(from..length.min(from.saturating_add(max)))
        }))
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.objects.hold().remove(name);
        Ok(())
    }

    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage> {
        let start = from.map_or(Bound::Included(prefix), Bound::Excluded);
        let objects = self.objects.hold();
        let found = objects.range::<str, _>((start, Bound::Unbounded));
        let found = found.take_while(|(name, _)| name.starts_with(prefix));
        let page: Vec<_> = found
            .take(PAGE)
            .map(|(name, object)| StoredObject {
                name: name.clone(),
                size: object.data.len() as u64,
                created: object.created,
            })
            .collect();
        let next = page.last().filter(|_| page.len() == PAGE);
        Ok(ObjectPage {
            next: next.map(|last| last.name.clone()),
            objects: page,
        })
    }
}

#[cfg(feature = "object-store")]
pub(super) mod objects {
    use futures_util::TryStreamExt as _;
    use object_store::local::LocalFileSystem;
    use object_store::path::Path;
    use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode};
    use queue_core::internal::debug_fields;
    use queue_core::{Operation, Outcome};

    use crate::extensions::objects::{Folder, failed, is_partial, whole};

    use super::*;

    /// Payloads in an object store: a folder, a container of Azure blobs, a bucket, or memory (feature `object-store`).
    ///
    /// The object store needs to offer *create unless it exists* ([`PutMode::Create`]), and listings that show what was
    /// created before. A listing of all objects is held in memory, as in a [sweep](crate::payloads::Sweep): some 200
    /// bytes for each object.
    ///
    /// A payload must be as durable as the message that refers to it: a lost payload makes its message poison.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use queue_runtime::QueueService;
    /// use queue_runtime::payloads::ObjectPayloads;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let var = tempfile::tempdir()?;
    /// // Once, as the application is set up; from then on `in_folder`.
    /// let payloads = ObjectPayloads::create_in_folder(var.path().join("payloads"))?;
    /// let service = QueueService::builder("memory:").payloads(Arc::new(payloads)).connect().await?;
    /// # drop(service);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone)]
    pub struct ObjectPayloads {
        objects: Arc<dyn ObjectStore>,
        prefix: Path,
        folder: Option<Folder>,
    }

    impl ObjectPayloads {
        /// Creates a store of the objects whose names begin with `prefix`, which nothing else should use. For a folder
        /// use [`in_folder`](Self::in_folder), which notices if another folder takes its place.
        #[must_use]
        pub fn new(objects: Arc<dyn ObjectStore>, prefix: impl Into<Path>) -> Self {
            Self {
                objects,
                prefix: prefix.into(),
                folder: None,
            }
        }

        /// Opens the store in this folder, which [`create_in_folder`](Self::create_in_folder) has made. Files are written
        /// through to the disk, on Unix their folders too.
        ///
        /// Every request compares the folder with the one that was opened, by device and inode on Unix. While the
        /// folder is away, or another folder has taken its place, such as the folder under an unmounted disk, every
        /// request is an error: nothing is stored, and messages wait for their payloads. A missing folder is not
        /// created again.
        ///
        /// # Errors
        /// If the folder does not exist or is no store ([`NotFound`](std::io::ErrorKind::NotFound)), such as the folder
        /// under a disk that is not mounted yet, or if the folder cannot be read.
        pub fn in_folder(folder: impl AsRef<std::path::Path>) -> std::io::Result<Self> {
            Folder::open(folder.as_ref()).map(Self::of_folder)
        }

        /// Makes a store in this folder, which nothing else should use, and opens the store; an existing store is only
        /// opened. The folder is created if it does not exist, on Unix readable only by the current user.
        ///
        /// Call `create_in_folder` when the application is set up, and [`in_folder`](Self::in_folder) at each start:
        /// under a disk that is not mounted, `create_in_folder` makes another store.
        ///
        /// # Errors
        /// If the folder can neither be opened nor created, or holds a damaged store.
        pub fn create_in_folder(folder: impl AsRef<std::path::Path>) -> std::io::Result<Self> {
            Folder::create(folder.as_ref()).map(Self::of_folder)
        }

        fn of_folder((folder, files): (Folder, LocalFileSystem)) -> Self {
            let files = Arc::new(files.with_fsync(true));
            Self {
                folder: Some(folder),
                ..Self::new(files, Path::default())
            }
        }

        fn path(&self, name: &str) -> Path {
            let segments = name.split('/').filter(|segment| !segment.is_empty());
            segments.fold(self.prefix.clone(), |path, segment| path.join(segment))
        }
    }

    #[async_trait]
    impl PayloadStore for ObjectPayloads {
        async fn prepare(&self) -> Result<()> {
            Ok(())
        }

        async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
            let (path, mode) = (self.path(name), PutMode::Create.into());
            let create = async {
                match self.objects.put_opts(&path, data.into(), mode).await {
                    Ok(_) => Ok(Created::New),
                    Err(object_store::Error::AlreadyExists { .. }) => Ok(Created::Existed),
                    Err(error) => {
                        let error = failed(error, Operation::StoreData);
                        Err(error.with_outcome(Outcome::Unknown))
                    }
                }
            };
            Folder::guard(self.folder.as_ref(), Operation::StoreData, create).await
        }

        async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
            let path = self.path(name);
            let to = from.saturating_add(max as u64);
            let read = async {
                let options = GetOptions {
                    range: Some(GetRange::Bounded(from..to)),
                    ..GetOptions::default()
                };
                let read = async { whole(self.objects.get_opts(&path, options).await?).await };
                let error = match read.await {
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(object_store::Error::NotFound { .. }) => return Ok(None),
                    Err(error) => error,
                };
                // Stores differ in how they refuse a range behind the end.
                match self.objects.head(&path).await {
                    Ok(object) if object.size <= from => Ok(Some(Bytes::new())),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Ok(_) | Err(_) => Err(failed(error, Operation::FetchData)),
                }
            };
            Folder::guard(self.folder.as_ref(), Operation::FetchData, read).await
        }

        async fn delete(&self, name: &str) -> Result<()> {
            let delete = async {
                if let Some(folder) = self.folder.as_ref().filter(|_| is_partial(name)) {
                    return folder.delete_partial(name).await;
                }
                match self.objects.delete(&self.path(name)).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                    Err(error) => {
                        let error = failed(error, Operation::StoreData);
                        Err(error.with_outcome(Outcome::Unknown))
                    }
                }
            };
            Folder::guard(self.folder.as_ref(), Operation::StoreData, delete).await
        }

        async fn list(&self, prefix: &str, _: Option<&str>) -> Result<ObjectPage> {
            let path = self.path(prefix);
            let list = async {
                let listed = self.objects.list(Some(&path)).try_collect::<Vec<_>>();
                listed
                    .await
                    .map_err(|error| failed(error, Operation::ListData))
            };
            let listed = Folder::guard(self.folder.as_ref(), Operation::ListData, list).await?;
            let own = listed.into_iter().filter_map(|object| {
                let mut name = String::new();
                for part in object.location.prefix_match(&self.prefix)? {
                    if !name.is_empty() {
                        name.push('/');
                    }
                    name.push_str(part.as_ref());
                }
                let modified = object.last_modified;
                let subsecond = i32::try_from(modified.timestamp_subsec_nanos()).ok()?;
                Some(StoredObject {
                    name,
                    size: object.size,
                    created: Timestamp::new(modified.timestamp(), subsecond).ok()?,
                })
            });
            Ok(ObjectPage {
                objects: own.collect(),
                next: None,
            })
        }

        async fn list_partial(&self) -> Result<Vec<StoredObject>> {
            let Some(folder) = &self.folder else {
                return Ok(Vec::new());
            };
            Folder::guard(Some(folder), Operation::ListData, folder.list_partial()).await
        }
    }

    // `Debug` leaves out the object store, which may hold keys.
    debug_fields!(ObjectPayloads { prefix });
}

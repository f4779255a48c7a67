//! What payload and result stores over an `object_store` share.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use object_store::GetResult;
use object_store::local::LocalFileSystem;
use queue_core::internal::hex;
use queue_core::payload_store::StoredObject;
use queue_core::{Error, ErrorKind, Operation, Outcome, Result, RetryAdvice, Timestamp};

use crate::extensions::payloads::IDENTITY;

/// Converts an error of the object store.
pub(crate) fn failed(error: object_store::Error, operation: Operation) -> Error {
    let error = match error {
        // An error of our own, from a container beside the queues.
        object_store::Error::Generic { store, source } => match source.downcast::<Error>() {
            Ok(own) => return *own,
            Err(source) => object_store::Error::Generic { store, source },
        },
        error => error,
    };
    let (kind, retry) = match &error {
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => {
            (ErrorKind::Denied, RetryAdvice::Permanent)
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            (ErrorKind::Unsupported, RetryAdvice::Permanent)
        }
        object_store::Error::InvalidPath { .. }
        | object_store::Error::UnknownConfigurationKey { .. } => {
            (ErrorKind::InvalidInput, RetryAdvice::Permanent)
        }
        _ => (ErrorKind::Unreachable, RetryAdvice::Temporary),
    };
    Error::new(kind, operation)
        .with_retry(retry)
        .with_source(error)
}

/// Reads all of the object that was found, or fails.
pub(crate) async fn whole(found: GetResult) -> object_store::Result<Bytes> {
    let expected = found.range.end - found.range.start;
    let bytes = found.bytes().await?;
    let length = bytes.len() as u64;
    if length == expected {
        return Ok(bytes);
    }
    let problem = format!("the answer has {length} bytes of {expected}");
    Err(object_store::Error::Generic {
        store: "answer",
        source: problem.into(),
    })
}

/// A folder of objects, as it was opened. Whatever is at the folder's path later, such as the empty folder under a disk
/// that was unmounted, is not asked: what it lacks is not missing, and what it takes is lost when the folder is back.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: Arc<Path>,
    id: FolderId,
}

/// The folder's device and inode, where there are any.
type FolderId = Option<(u64, u64)>;

impl Folder {
    /// Opens a folder that [`create`](Self::create) has made a store.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, LocalFileSystem)> {
        let identity = path.join(IDENTITY);
        match fs::read_to_string(&identity) {
            Ok(text) if hex(&text).is_some() => {}
            Ok(text) => {
                let problem = format!(
                    "`{}` has {} bytes, which are not 32 hexadecimal digits",
                    identity.display(),
                    text.len(),
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let problem = format!(
                    "the folder `{}` is no store: it has no file `{IDENTITY}`. Is its disk mounted? \
                     `create_in_folder` makes a new store",
                    path.display(),
                );
                return Err(io::Error::new(io::ErrorKind::NotFound, problem));
            }
            Err(error) => return Err(error),
        }
        let path = path.canonicalize()?;
        let id = id_of(&fs::metadata(&path)?);
        let files = LocalFileSystem::new_with_prefix(&path)?;
        let path = path.into();
        Ok((Self { path, id }, files))
    }

    /// Makes this folder a store, unless it is one. Creates the folder, and those above it, if it does not exist, on
    /// Unix for the current user alone.
    pub(crate) fn create(path: &Path) -> io::Result<(Self, LocalFileSystem)> {
        create_private(path)?;
        if !path.join(IDENTITY).try_exists()? {
            let partial = path.join(format!("{IDENTITY}#{}", rand::random::<u64>()));
            let mut file = File::create_new(&partial)?;
            write!(file, "{:032x}", rand::random::<u128>())?;
            file.sync_all()?;
            // The identity appears whole, and from one process.
            let linked = fs::hard_link(&partial, path.join(IDENTITY));
            fs::remove_file(&partial)?;
            match linked {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            #[cfg(unix)]
            File::open(path)?.sync_all()?;
        }
        Self::open(path)
    }

    /// Makes a request of the objects of this folder, if they are in one. The answer counts if the folder was there before
    /// the request and after it.
    pub(crate) async fn guard<T>(
        this: Option<&Self>,
        operation: Operation,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(folder) = this else {
            return request.await;
        };
        folder.check(operation).await?;
        let answer = request.await?;
        let checked = folder.check(operation).await;
        checked.map_err(|error| error.with_outcome(Outcome::Unknown))?;
        Ok(answer)
    }

    /// Checks that the path leads to the folder that was opened.
    pub(crate) async fn check(&self, operation: Operation) -> Result<()> {
        let this = self.clone();
        let found = blocking(move || Ok(id_of(&fs::metadata(&this.path)?) == this.id)).await;
        let problem = match found {
            Ok(true) => return Ok(()),
            Ok(false) => {
                "was replaced, or its disk is not mounted; only the folder that was opened is used: restart the program if this \
                 is the right one, as after its disk was mounted again under another device number"
                    .to_owned()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "does not exist any more".to_owned()
            }
            Err(error) => format!("cannot be looked at: {error}"),
        };
        let detail = format!("the folder `{}` {problem}", self.path.display());
        Err(Error::new(ErrorKind::Storage, operation).with_detail(detail))
    }

    /// Lists the temporary files of creations, which a process leaves that is killed.
    pub(crate) async fn list_partial(&self) -> Result<Vec<StoredObject>> {
        let this = self.clone();
        let listed = blocking(move || {
            let mut found = Vec::new();
            this.collect_partial(&this.path, &mut found)?;
            Ok(found)
        });
        listed
            .await
            .map_err(|error| self.failed(&error, Operation::ListData))
    }

    fn collect_partial(&self, folder: &Path, found: &mut Vec<StoredObject>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                self.collect_partial(&path, found)?;
                continue;
            }
            let name = path.strip_prefix(&self.path).ok().and_then(Path::to_str);
            let Some(name) = name.filter(|name| kind.is_file() && is_partial(name)) else {
                continue;
            };
            let name = name.replace(std::path::MAIN_SEPARATOR, "/");
            // The file's creation may have ended meanwhile.
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            found.push(StoredObject {
                name,
                size: metadata.len(),
                created: Timestamp::try_from(metadata.modified()?).map_err(io::Error::other)?,
            });
        }
        Ok(())
    }

    pub(crate) async fn delete_partial(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        let deleted = blocking(move || fs::remove_file(path)).await;
        match deleted {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self
                .failed(&error, Operation::StoreData)
                .with_outcome(Outcome::Unknown)),
            _ => Ok(()),
        }
    }

    fn failed(&self, error: &io::Error, operation: Operation) -> Error {
        let detail = format!("in the folder `{}`: {error}", self.path.display());
        Error::new(ErrorKind::Storage, operation).with_detail(detail)
    }
}

/// Whether a name is that of a temporary file: `object_store` writes `NAME#1` and gives it its own name in the end.
pub(crate) fn is_partial(name: &str) -> bool {
    let number = name.rsplit_once('#').map(|(_, number)| number.as_bytes());
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(unix)]
fn id_of(metadata: &Metadata) -> FolderId {
    use std::os::unix::fs::MetadataExt as _;

    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn id_of(_: &Metadata) -> FolderId {
    None
}

#[cfg(unix)]
fn create_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn create_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(folder)
}

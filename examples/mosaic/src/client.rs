//! The client: uploads a picture and a library, asks for a mosaic, and follows what becomes of it.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use queue_runtime::{QueueService, RequestId, SubmitError};

use crate::blob::BlobName;
use crate::library_store::{LibraryStore, LibraryStoreError, MAX_PICTURE};
use crate::messages::{ImageOutcome, ImageRequest};
use crate::records::{Records, ResponseRecord};
use crate::store::{Created, Store, StoreError};

/// How often the records are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a submission is repeated whose outcome is unknown.
const SUBMISSIONS: u32 = 5;
/// The largest mosaic that is downloaded, in bytes.
const MAX_MOSAIC: u64 = 4 << 30;

/// A client of one account.
#[derive(Debug, Clone)]
pub struct Client {
    service: QueueService,
    store: Store,
    records: Records,
}

/// A mosaic to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// What the source picture is called.
    pub image_name: String,
    /// The source picture's file.
    pub image: Vec<u8>,
    /// The tiles' names and files.
    pub library: Vec<(String, Vec<u8>)>,
    /// Pixels along each side of a tile.
    pub tile_size: u8,
    /// Tiles side by side.
    pub across: u32,
    /// Into how many slices the work is cut.
    pub slices: u32,
    /// How far tiles take on the picture's colours, 0 to 1.
    pub tint: f32,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// So many of the files are uploaded.
    Uploaded {
        /// Files that are there.
        done: usize,
        /// All files.
        total: usize,
    },
    /// The request is on its queue.
    Submitted,
    /// So many of the slices are rendered.
    Rendered {
        /// Slices that are there.
        done: usize,
        /// All slices.
        total: usize,
    },
}

/// Why a client did not learn what became of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The library cannot be uploaded.
    #[error("upload the tile library")]
    Library(#[source] LibraryStoreError),
    /// The request id was used for another picture.
    #[error("the request id `{0}` is taken by another picture")]
    Taken(RequestId),
    /// The request could not be submitted.
    #[error(transparent)]
    Submit(#[from] SubmitError<ImageRequest>),
    /// No response came in time.
    #[error(
        "no response to the request `{request}` within {waited:?}: {state}; are a broker, a \
         controller and a processor running on the same queues and data?"
    )]
    NoResponse {
        /// The request.
        request: RequestId,
        /// How long the client waited.
        waited: Duration,
        /// How far the request has come.
        state: String,
    },
    /// The mosaic could not be saved.
    #[error("save the mosaic to `{}`", path.display())]
    Save {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Client {
    /// A client.
    #[must_use]
    pub fn new(service: QueueService, store: Store) -> Self {
        let records = Records::new(store.clone());
        Self {
            service,
            store,
            records,
        }
    }

    /// Uploads what the job needs and submits it. To do so again with the same request is safe: the
    /// request is answered once.
    ///
    /// # Errors
    /// [`ClientError`]; after [`SubmitError::is_unknown`] the request may be under way.
    pub async fn submit(
        &self,
        job: Job,
        request: &RequestId,
        mut progress: impl FnMut(Progress),
    ) -> Result<(), ClientError> {
        let size = job.image.len() as u64;
        let image = BlobName::source(request);
        if size > MAX_PICTURE {
            let (name, max) = (image, MAX_PICTURE);
            return Err(StoreError::TooLarge { name, size, max }.into());
        }
        let libraries = LibraryStore::new(self.store.clone());
        let total = job.library.len() + 1;
        let library = libraries.upload(job.library, |done| {
            progress(Progress::Uploaded { done, total });
        });
        let library = library.await.map_err(ClientError::Library)?;
        if self.store.create(&image, job.image.clone()).await? == Created::Existed
            && self.store.read(&image, MAX_PICTURE).await? != job.image
        {
            return Err(ClientError::Taken(request.clone()));
        }
        progress(Progress::Uploaded { done: total, total });
        let asked = ImageRequest {
            image,
            image_name: job.image_name,
            library,
            tile_size: job.tile_size,
            across: job.across,
            slices: job.slices,
            tint: job.tint,
        };
        self.send(asked, request).await?;
        progress(Progress::Submitted);
        Ok(())
    }

    async fn send(&self, mut asked: ImageRequest, request: &RequestId) -> Result<(), ClientError> {
        for _ in 1..SUBMISSIONS {
            let submission = self.service.submit(asked).request(request.as_str());
            match submission.id(request.as_str()).await {
                Err(error) if error.is_unknown() => asked = error.message,
                ended => return Ok(ended.map(drop)?),
            }
        }
        let submission = self.service.submit(asked).request(request.as_str());
        Ok(submission.id(request.as_str()).await.map(drop)?)
    }

    /// Waits for the response to a request, for up to `patience`.
    ///
    /// # Errors
    /// [`ClientError::NoResponse`] says how far the request has come; the store's.
    pub async fn follow(
        &self,
        request: &RequestId,
        patience: Duration,
        mut progress: impl FnMut(Progress),
    ) -> Result<ImageOutcome, ClientError> {
        let begun = Instant::now();
        let mut slices = None;
        loop {
            if let Some(ResponseRecord { outcome, .. }) = self.records.response(request).await? {
                return Ok(outcome);
            }
            if slices.is_none() {
                slices = self
                    .records
                    .plan(request)
                    .await?
                    .map(|plan| plan.slices as usize);
            }
            let mut state = "it has not been planned".to_owned();
            if let Some(total) = slices {
                let done = self.records.slices_recorded(request).await?;
                progress(Progress::Rendered { done, total });
                state = format!("{done} of {total} slices are done");
            }
            let waited = begun.elapsed();
            if waited >= patience {
                let request = request.clone();
                return Err(ClientError::NoResponse {
                    request,
                    waited: patience,
                    state,
                });
            }
            tokio::time::sleep(LOOK_EVERY.min(patience - waited)).await;
        }
    }

    /// Saves a mosaic, in one step, over what may be there.
    ///
    /// # Errors
    /// The store's; [`ClientError::Save`].
    pub async fn download(&self, mosaic: &BlobName, path: &Path) -> Result<(), ClientError> {
        let bytes = self.store.read(mosaic, MAX_MOSAIC).await?;
        let target = path.to_owned();
        let saved = tokio::task::spawn_blocking(move || save(&bytes, &target)).await;
        saved
            .unwrap_or_else(|error| Err(error.into()))
            .map_err(|source| ClientError::Save {
                path: path.to_owned(),
                source,
            })
    }
}

fn save(bytes: &[u8], path: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let saved = write_through(bytes, &partial).and_then(|()| fs::rename(&partial, path));
    if saved.is_err() {
        // It may never have been made; the first error is the one to tell.
        let _ = fs::remove_file(&partial);
    }
    saved
}

fn write_through(bytes: &[u8], path: &Path) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

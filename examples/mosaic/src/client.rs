//! The client: uploads a picture and a tile library, requests a mosaic, and follows its progress.

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

/// The interval at which the records are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum number of submissions of one request while their outcome is unknown.
const MAX_SUBMISSIONS: u32 = 5;
/// The size limit of a mosaic to download, in bytes.
const MAX_MOSAIC: u64 = 4 << 30;

/// Submits jobs and waits for their mosaics.
#[derive(Debug, Clone)]
pub struct Client {
    service: QueueService,
    store: Store,
    records: Records,
}

/// A mosaic to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The source picture's display name.
    pub image_name: String,
    /// The contents of the source picture's file.
    pub image: Vec<u8>,
    /// The names and contents of the tiles' files.
    pub library: Vec<(String, Vec<u8>)>,
    /// Pixels along each side of a tile.
    pub tile_size: u8,
    /// The number of tiles across.
    pub across: u32,
    /// The number of slices that the work is divided into.
    pub slices: u32,
    /// How strongly tiles are tinted with the picture's colours, from 0 to 1.
    pub tint: f32,
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Files are being uploaded.
    Uploaded {
        /// Files uploaded so far.
        done: usize,
        /// The total number of files.
        total: usize,
    },
    /// The request has been submitted.
    Submitted,
    /// Slices are being rendered.
    Rendered {
        /// Slices rendered so far.
        done: usize,
        /// The total number of slices.
        total: usize,
    },
}

/// An error of a [`Client`].
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
    #[error("the request id `{0}` is already used for another picture")]
    Taken(RequestId),
    /// The request could not be submitted.
    #[error(transparent)]
    Submit(#[from] SubmitError<ImageRequest>),
    /// No response came in time.
    #[error(
        "no response to request `{request}` within {waited:?}: {state}; are a broker, a \
         controller and a processor running on the same queues and data?"
    )]
    NoResponse {
        /// The request.
        request: RequestId,
        /// How long the client waited.
        waited: Duration,
        /// The progress of the request.
        state: String,
    },
    /// The mosaic could not be saved.
    #[error("save the mosaic to `{}`", path.display())]
    Save {
        /// The target file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Client {
    /// Returns a client of a service and a store.
    #[must_use]
    pub fn new(service: QueueService, store: Store) -> Self {
        let records = Records::new(store.clone());
        Self {
            service,
            store,
            records,
        }
    }

    /// Uploads the job's files and submits the request. Repeating this with the same request id is
    /// safe: the request is answered once.
    ///
    /// # Errors
    /// [`ClientError`]. If [`SubmitError::is_unknown`], the request may have been submitted.
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
        for _ in 1..MAX_SUBMISSIONS {
            let submission = self.service.submit(asked).request(request.as_str());
            match submission.id(request.as_str()).await {
                Err(error) if error.is_unknown() => asked = error.message,
                ended => return Ok(ended.map(drop)?),
            }
        }
        let submission = self.service.submit(asked).request(request.as_str());
        Ok(submission.id(request.as_str()).await.map(drop)?)
    }

    /// Waits up to `timeout` for the response to a request.
    ///
    /// # Errors
    /// [`ClientError::NoResponse`] after the timeout, and [`ClientError::Store`].
    pub async fn follow(
        &self,
        request: &RequestId,
        timeout: Duration,
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
            if waited >= timeout {
                let request = request.clone();
                return Err(ClientError::NoResponse {
                    request,
                    waited: timeout,
                    state,
                });
            }
            tokio::time::sleep(POLL_INTERVAL.min(timeout - waited)).await;
        }
    }

    /// Saves a mosaic to a file, atomically. An existing file is replaced.
    ///
    /// # Errors
    /// [`ClientError::Store`] and [`ClientError::Save`].
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
        // The file may not exist; the first error is the one to report.
        let _ = fs::remove_file(&partial);
    }
    saved
}

fn write_through(bytes: &[u8], path: &Path) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

//! The client: submits a job, follows its progress and downloads the mosaic.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use queue_runtime::{QueueService, RequestId, SubmitError};

use crate::storage::blob::BlobName;
use crate::storage::cleaning;
use crate::storage::libraries::LibraryError;
use crate::storage::mosaics;
use crate::storage::records::{PlanRecord, Records};
use crate::storage::store::{Store, StoreError};
use crate::workflow::changes::Changes;
use crate::workflow::intake::Intake;
use crate::workflow::messages::{ImageOutcome, ImageRequest};
use pictures::Library;

/// The interval at which the records are looked at, if nothing is announced.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Submits jobs and waits for their mosaics.
#[derive(Debug, Clone)]
pub struct Client {
    service: QueueService,
    intake: Intake,
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
    /// The tiles.
    pub library: Arc<Library>,
    /// Pixels along each side of a tile.
    pub tile_size: u8,
    /// The number of tiles across.
    pub across: u32,
    /// The number of slices that the work is divided into.
    pub slices: u32,
    /// How strongly tiles are tinted with the picture's colours, from 0 to 1.
    pub tint: f32,
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
    Library(#[from] LibraryError),
    /// The request id was used for another job.
    #[error("the request id `{request}` is already used with another {other}")]
    Taken {
        /// The id.
        request: RequestId,
        /// What differs.
        other: &'static str,
    },
    /// The mosaic was removed.
    #[error(
        "the mosaic of request `{0}` is no longer in the store: it was saved before, without `--keep`; use another \
         request id to make it again"
    )]
    Gone(RequestId),
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
}

impl Client {
    /// Returns a client of a service and a store.
    pub fn new(service: QueueService, store: Store) -> Self {
        Self {
            records: Records::new(store.clone()),
            intake: Intake::new(service.clone(), store.clone()),
            service,
            store,
        }
    }

    /// Submits a job through the [`Intake`], with the errors of [`Intake::take_in`].
    pub async fn submit(&self, job: Job, request: &RequestId) -> Result<(), ClientError> {
        self.intake.take_in(job, request).await
    }

    /// Waits up to `timeout` for the response to a request. Calls `progress` with the numbers of the slices that are done, and
    /// of all.
    pub async fn follow(
        &self,
        request: &RequestId,
        timeout: Duration,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<ImageOutcome, ClientError> {
        let begun = Instant::now();
        let mut changes = Changes::new(&self.service, &self.store);
        let mut slices = None;
        loop {
            if let Some(outcome) = self.records.find(request).await? {
                return Ok(outcome);
            }
            if slices.is_none() {
                let plan: Option<PlanRecord> = self.records.find(request).await?;
                slices = plan.map(|plan| plan.slices as usize);
            }
            let mut state = "it has not been planned".to_owned();
            if let Some(total) = slices {
                let done = self.records.slices_recorded(request).await?.len();
                progress(done, total);
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
            changes.next(POLL_INTERVAL.min(timeout - waited)).await;
        }
    }

    /// Reads a request's mosaic, a PNG of this size in bytes, or returns [`ClientError::Gone`] after
    /// [`discard`](Self::discard).
    pub async fn mosaic(
        &self,
        request: &RequestId,
        mosaic: &BlobName,
        size: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, StoreError>> + use<>, ClientError> {
        let read = mosaics::read(&self.store, mosaic, size).await;
        read.map_err(|error| match error {
            StoreError::Missing(_) => ClientError::Gone(request.clone()),
            error => error.into(),
        })
    }

    /// Removes the blobs of a finished request, except its records.
    pub async fn discard(&self, request: &RequestId) -> Result<(), ClientError> {
        cleaning::discard(&self.store, request).await?;
        Ok(())
    }
}

//! The job broker's entrance: takes requests in, records them and submits them.
//!
//! Every front end goes through it, so that all requests are on record and a request id means one job.

use std::time::SystemTime;

use queue_runtime::{Failure, QueueService, RequestId};

use crate::storage::blob::BlobName;
use crate::storage::library_store::{LibraryStore, MAX_PICTURE};
use crate::storage::records::{Records, RequestRecord, ResponseRecord};
use crate::storage::store::{Store, StoreError};
use crate::workflow::client::{ClientError, Job, Progress};
use crate::workflow::messages::{ImageOutcome, ImageRequest};
use pictures::Fingerprint;

/// Takes requests in.
#[derive(Debug, Clone)]
pub struct Intake {
    service: QueueService,
    store: Store,
    records: Records,
}

impl Intake {
    /// Returns the intake of a service and a store.
    #[must_use]
    pub fn new(service: QueueService, store: Store) -> Self {
        let records = Records::new(store.clone());
        Self {
            service,
            store,
            records,
        }
    }

    /// Records a job, uploads its files and submits it to the job controller. Repeating this with the same
    /// request id and job is safe: the request is answered once.
    ///
    /// # Errors
    /// [`ClientError::Taken`] if the id is that of another job. If the error is
    /// [unknown](queue_runtime::SubmitError::outcome), the request may have been submitted.
    pub async fn take_in(
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
        let asked = ImageRequest {
            image,
            image_name: job.image_name,
            library: Fingerprint::of_files(&job.library),
            tile_size: job.tile_size,
            across: job.across,
            slices: job.slices,
            tint: job.tint,
        };
        let record = RequestRecord {
            request: request.as_str().to_owned(),
            client: self.service.client_id().as_str().to_owned(),
            submitted: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            picture: Fingerprint::of_files(&[("", &job.image)]),
            asked: asked.clone(),
        };
        let held = self.records.record_request(request, record.clone()).await?;
        if let Some(other) = held.difference(&record) {
            let request = request.clone();
            return Err(ClientError::Taken { request, other });
        }
        // Its blobs may have been removed since.
        if self.records.response(request).await?.is_none() {
            let total = job.library.len() + 1;
            let libraries = LibraryStore::new(self.store.clone());
            let library = libraries.upload(job.library, |done| {
                progress(Progress::Uploaded { done, total });
            });
            library.await.map_err(ClientError::Library)?;
            self.store.create(&asked.image, job.image).await?;
            progress(Progress::Uploaded { done: total, total });
            self.submit(request, asked).await?;
        }
        progress(Progress::Submitted);
        Ok(())
    }

    /// Goes on with requests of ids with this prefix that are on record and have not been planned, because this process was
    /// killed while it took them in: submits those whose files are all there, again if need be, and answers others with a
    /// failure. Call it while nobody takes in requests of such ids.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn go_on(&self, prefix: &str) -> Result<(), ClientError> {
        for folder in self.records.folders().await? {
            match self.go_on_with(&folder, prefix).await {
                Err(ClientError::Store(
                    error @ (StoreError::Record { .. } | StoreError::TooLarge { .. }),
                )) => {
                    let error = Failure::reject(error).chain();
                    tracing::warn!(
                        error,
                        "a request whose records cannot be read is left as it is"
                    );
                }
                gone_on => gone_on?,
            }
        }
        Ok(())
    }

    async fn go_on_with(&self, folder: &str, prefix: &str) -> Result<(), ClientError> {
        let Some((request, record)) = self.records.taken_in(folder).await? else {
            return Ok(());
        };
        if !request.as_str().starts_with(prefix)
            || self.records.response(&request).await?.is_some()
            || self.records.plan(&request).await?.is_some()
        {
            return Ok(());
        }
        let libraries = LibraryStore::new(self.store.clone());
        let library = libraries.is_complete(record.asked.library).await;
        if library.map_err(ClientError::Library)? && self.store.exists(&record.asked.image).await? {
            return self.submit(&request, record.asked).await;
        }
        let reason = "its pictures were not taken in completely; ask for it again".to_owned();
        let outcome = ImageOutcome::Failed { reason };
        let response = ResponseRecord { outcome };
        self.records.record_response(&request, &response).await?;
        Ok(())
    }

    async fn submit(&self, request: &RequestId, asked: ImageRequest) -> Result<(), ClientError> {
        let (id, submission) = (request.as_str(), self.service.submit(asked));
        submission.request_id(id).id(id).retry_unknown().await?;
        Ok(())
    }
}

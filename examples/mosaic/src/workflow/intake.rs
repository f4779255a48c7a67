//! The job broker's entrance: takes in, records and submits requests.
//!
//! Every front end goes through the intake, so that all requests are on record and a request id means one job.

use std::time::SystemTime;

use queue_runtime::{Failure, QueueService, RequestId};

use crate::storage::blob::BlobName;
use crate::storage::libraries::{Libraries, MAX_PICTURE};
use crate::storage::records::{PlanRecord, Records, RequestRecord};
use crate::storage::store::{Store, StoreError};
use crate::workflow::client::{ClientError, Job};
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
    pub fn new(service: QueueService, store: Store) -> Self {
        let records = Records::new(store.clone());
        Self {
            service,
            store,
            records,
        }
    }

    /// Records a job, uploads its files and submits it to the job controller. A repetition with the same request id and
    /// job is safe: the request is answered once.
    ///
    /// # Errors
    /// [`ClientError::Taken`] if the id is that of another job. If the error is
    /// [unknown](queue_runtime::SubmitError::outcome), the request may have been submitted.
    pub async fn take_in(&self, job: Job, request: &RequestId) -> Result<(), ClientError> {
        let image = BlobName::source(request);
        if job.image.len() as u64 > MAX_PICTURE {
            let (name, max) = (image, MAX_PICTURE);
            return Err(StoreError::TooLarge { name, max }.into());
        }
        let asked = ImageRequest {
            image,
            image_name: job.image_name,
            library: job.library.fingerprint(),
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
        let held = self.records.record(request, record.clone()).await?;
        if let Some(other) = held.difference(&record) {
            let request = request.clone();
            return Err(ClientError::Taken { request, other });
        }
        // Its blobs may have been removed since.
        if self.records.is_answered(request).await? {
            return Ok(());
        }
        let libraries = Libraries::new(self.store.clone());
        libraries.upload(job.library).await?;
        self.store.create(&asked.image, job.image).await?;
        self.submit(request, asked).await
    }

    /// Goes on with requests of ids with this prefix that are on record and have not been planned, because this process was
    /// killed while it took them in: submits those whose files are all there, again if need be, and answers others with a
    /// failure. Call `go_on` while nobody takes in requests with this prefix.
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
            || self.records.is_answered(&request).await?
            || self.records.find::<PlanRecord>(&request).await?.is_some()
        {
            return Ok(());
        }
        let libraries = Libraries::new(self.store.clone());
        let is_whole = libraries.exists(record.asked.library).await?
            && self.store.exists(&record.asked.image).await?;
        if is_whole {
            return self.submit(&request, record.asked).await;
        }
        let reason = "its pictures were not taken in completely; ask for it again".to_owned();
        let outcome = ImageOutcome::Failed { reason };
        self.records.record(&request, outcome).await?;
        Ok(())
    }

    async fn submit(&self, request: &RequestId, asked: ImageRequest) -> Result<(), ClientError> {
        let (id, submission) = (request.as_str(), self.service.submit(asked));
        submission.request_id(id).id(id).retry_unknown().await?;
        Ok(())
    }
}

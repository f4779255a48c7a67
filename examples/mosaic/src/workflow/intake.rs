//! The job broker's entrance: takes requests in, records them and submits them.
//!
//! Every front end goes through it, so that all requests are on record and a request id means one job.

use std::time::SystemTime;

use queue_runtime::{QueueService, RequestId};

use crate::storage::blob::BlobName;
use crate::storage::library_store::{LibraryStore, MAX_PICTURE};
use crate::storage::records::{Records, RequestRecord};
use crate::storage::store::{Store, StoreError};
use crate::workflow::client::{ClientError, Job, Progress};
use crate::workflow::messages::ImageRequest;
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
    /// [unknown](queue_runtime::SubmitError::is_unknown), the request may have been submitted.
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
            client: self.service.client().as_str().to_owned(),
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
            let (id, submission) = (request.as_str(), self.service.submit(asked));
            submission.request(id).id(id).retry_unknown().await?;
        }
        progress(Progress::Submitted);
        Ok(())
    }
}

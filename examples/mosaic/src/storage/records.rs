//! Status records of requests, none of which ever changes.
//!
//! | record | written by | holds |
//! |---|---|---|
//! | `status/REQUEST/request.json` | intake | the request as it was taken in, and by whom |
//! | `status/REQUEST/plan.json` | controller | the request, and the number of slices |
//! | `status/REQUEST/slices/SEQ.json` | controller | the outcome of a slice |
//! | `status/REQUEST/response.json` | broker | the outcome of the request |
//!
//! Create-only records let repeated and concurrent handlers agree: the second to create a record
//! reads what the first wrote, and continues with that. The response is a copy of the one that the store of results
//! holds.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use queue_runtime::{Disposition, Failure, RequestId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::storage::blob::{BlobName, Container};
use crate::storage::store::{Created, Store, StoreError};
use crate::workflow::messages::{ImageOutcome, ImageRequest, SliceOutcome};
use pictures::{Fingerprint, Layout, Plan, TileSize};

/// The size limit of a record, in bytes; reasons of failures are cut far below it.
const MAX_RECORD: u64 = 256 << 10;
/// The maximum number of concurrent reads.
const CONCURRENCY: usize = 8;

/// The status records of all requests.
#[derive(Debug, Clone)]
pub struct Records {
    store: Store,
}

/// A request as it was taken in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The id of the request.
    pub request: String,
    /// The client that submitted it first.
    pub client: String,
    /// When that was, as RFC 3339 in UTC.
    pub submitted: String,
    /// The fingerprint of the source picture.
    pub picture: Fingerprint,
    /// The request.
    pub asked: ImageRequest,
}

/// The state of a request, from its records.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The request.
    pub record: RequestRecord,
    /// The number of slices, if the request is planned.
    pub planned: Option<u32>,
    /// The number of slices with an outcome.
    pub recorded: u32,
    /// The number of attempts at these.
    pub attempts: u32,
    /// The slices that failed, from 0, with their reasons.
    pub failures: Vec<(u32, String)>,
    /// The response, if there is one.
    pub outcome: Option<ImageOutcome>,
}

/// A request without a response.
pub(crate) struct OpenRequest {
    /// Its folder in the containers.
    pub(crate) folder: String,
    /// Its id, if it is on record.
    pub(crate) request: Option<RequestId>,
    /// The request, if it is on record.
    pub(crate) asked: Option<ImageRequest>,
}

/// A request and its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The request.
    pub asked: ImageRequest,
    /// The source picture's width and height in pixels.
    pub source: (u32, u32),
    /// The number of slices.
    pub slices: u32,
}

/// The outcome of a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceRecord {
    /// The outcome.
    pub outcome: SliceOutcome,
    /// The number of attempts.
    pub attempts: u32,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResponseRecord {
    /// The outcome.
    pub outcome: ImageOutcome,
}

impl RequestRecord {
    /// What differs in another request, if anything that affects the mosaic does.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let (a, b) = (&self.asked, &other.asked);
        [
            (self.picture != other.picture, "picture"),
            (a.library != b.library, "tile library"),
            (a.tile_size != b.tile_size, "tile size"),
            (a.across != b.across, "number of tiles across"),
            (a.slices != b.slices, "number of slices"),
            (a.tint != b.tint, "tint"),
        ]
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
    }
}

impl PlanRecord {
    /// Returns the plan, or `None` if the record is out of this version's bounds.
    #[must_use]
    pub fn plan(&self) -> Option<Plan> {
        let layout = Layout {
            across: self.asked.across,
            tile_size: TileSize::try_from(self.asked.tile_size).ok()?,
            slices: self.asked.slices,
        };
        let plan = layout.plan(self.source).ok()?;
        (plan.slices() == self.slices).then_some(plan)
    }
}

impl Records {
    /// Returns the records in a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Records a request unless one is recorded. Returns the recorded one.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn record_request(
        &self,
        request: &RequestId,
        record: RequestRecord,
    ) -> Result<RequestRecord, StoreError> {
        self.create_or_read(&request_name(request), record).await
    }

    /// Returns the state of every request that was taken in.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn summaries(&self) -> Result<Vec<Summary>, StoreError> {
        let folders = self.store.folders(Container::Status).await?;
        let summaries = folders.into_iter().map(|folder| async move {
            let Ok(name) = BlobName::try_from(format!("status/{folder}/request.json")) else {
                return Ok(None);
            };
            let Some(record) = self.find::<RequestRecord>(&name).await? else {
                return Ok(None);
            };
            match RequestId::new(record.request.clone()) {
                Ok(request) => self.summarize(&request, record).await.map(Some),
                Err(_) => Ok(None),
            }
        });
        let found = stream::iter(summaries).buffered(CONCURRENCY);
        let found: Vec<Option<Summary>> = found.try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns the state of a request, if it was taken in.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn summary(&self, request: &RequestId) -> Result<Option<Summary>, StoreError> {
        match self.request(request).await? {
            Some(record) => self.summarize(request, record).await.map(Some),
            None => Ok(None),
        }
    }

    async fn summarize(
        &self,
        request: &RequestId,
        record: RequestRecord,
    ) -> Result<Summary, StoreError> {
        let planned = self.plan(request).await?.map(|plan| plan.slices);
        let all = 0..planned.unwrap_or(0);
        let slices =
            all.map(|sequence| async move { Ok((sequence, self.slice(request, sequence).await?)) });
        let slices: Vec<_> = stream::iter(slices)
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        let response = self.response(request).await?;
        let mut found = Summary {
            record,
            planned,
            recorded: 0,
            attempts: 0,
            failures: Vec::new(),
            outcome: response.map(|response| response.outcome),
        };
        for (sequence, slice) in slices {
            let Some(SliceRecord { outcome, attempts }) = slice else {
                continue;
            };
            found.recorded += 1;
            found.attempts += attempts;
            if let SliceOutcome::Failed { reason } = outcome {
                found.failures.push((sequence, reason));
            }
        }
        Ok(found)
    }

    /// Returns the requests without a response.
    pub(crate) async fn open_requests(&self) -> Result<Vec<OpenRequest>, StoreError> {
        let mut open = Vec::new();
        for folder in self.store.folders(Container::Status).await? {
            let record = |file: &str| BlobName::try_from(format!("status/{folder}/{file}"));
            let (Ok(response), Ok(request)) = (record("response.json"), record("request.json"))
            else {
                continue;
            };
            if self.store.exists(&response).await? {
                continue;
            }
            let taken_in: Option<RequestRecord> = self.find(&request).await?;
            let (id, asked) = match taken_in {
                Some(record) => (RequestId::new(record.request).ok(), Some(record.asked)),
                None => (None, None),
            };
            open.push(OpenRequest {
                folder,
                request: id,
                asked,
            });
        }
        Ok(open)
    }

    /// Returns a request as it was taken in, if it is recorded.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn request(&self, request: &RequestId) -> Result<Option<RequestRecord>, StoreError> {
        self.find(&request_name(request)).await
    }

    /// Returns the plan of a request, if it is recorded.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn plan(&self, request: &RequestId) -> Result<Option<PlanRecord>, StoreError> {
        self.find(&plan_name(request)).await
    }

    /// Records a plan unless one is recorded. Returns the recorded one.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn record_plan(
        &self,
        request: &RequestId,
        plan: PlanRecord,
    ) -> Result<PlanRecord, StoreError> {
        self.create_or_read(&plan_name(request), plan).await
    }

    /// Returns the outcome of a slice, if it is recorded.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn slice(
        &self,
        request: &RequestId,
        sequence: u32,
    ) -> Result<Option<SliceRecord>, StoreError> {
        self.find(&slice_name(request, sequence)).await
    }

    /// Records the outcome of a slice unless one is recorded. Returns the recorded one.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn record_slice(
        &self,
        request: &RequestId,
        sequence: u32,
        slice: SliceRecord,
    ) -> Result<SliceRecord, StoreError> {
        self.create_or_read(&slice_name(request, sequence), slice)
            .await
    }

    /// Returns the number of recorded slices. Of several handlers that record a slice and then count,
    /// the last to record counts all of them.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn slices_recorded(&self, request: &RequestId) -> Result<usize, StoreError> {
        let names = self
            .store
            .list(&BlobName::status(request, &["slices"]))
            .await?;
        Ok(names.iter().filter(|name| name.ends_with(".json")).count())
    }

    /// Returns the outcome of a request, if it is recorded.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn response(
        &self,
        request: &RequestId,
    ) -> Result<Option<ResponseRecord>, StoreError> {
        self.find(&response_name(request)).await
    }

    /// Records the outcome of a request. It must be the same each time.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn record_response(
        &self,
        request: &RequestId,
        response: &ResponseRecord,
    ) -> Result<(), StoreError> {
        let name = response_name(request);
        self.store.write(&name, encode(&name, response)?).await
    }

    /// Whether the response to a request is recorded, so that further messages of it have no effect.
    pub(crate) async fn is_answered(&self, request: &RequestId) -> Result<bool, StoreError> {
        let answered = self.store.exists(&response_name(request)).await?;
        if answered {
            tracing::info!(%request, "ignored a message of an answered request");
        }
        Ok(answered)
    }

    /// Ignores the failure of a handler if the request has a response: the failure has no effect, and its
    /// cause may be that the client has removed the blobs.
    pub(crate) async fn unless_answered(
        &self,
        request: &RequestId,
        handled: Result<Disposition, Failure>,
    ) -> Result<Disposition, Failure> {
        let Err(failure) = handled else {
            return handled;
        };
        match self.response(request).await {
            Ok(Some(_)) => {
                tracing::info!(%request, %failure, "ignored a failure of an answered request");
                Ok(Disposition::complete())
            }
            _ => Err(failure),
        }
    }

    async fn find<T: DeserializeOwned>(&self, name: &BlobName) -> Result<Option<T>, StoreError> {
        let Some(bytes) = self.store.find(name, MAX_RECORD).await? else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&bytes);
        record.map(Some).map_err(|source| StoreError::Record {
            name: name.clone(),
            source,
        })
    }

    async fn create_or_read<T: Serialize + DeserializeOwned>(
        &self,
        name: &BlobName,
        record: T,
    ) -> Result<T, StoreError> {
        match self.store.create(name, encode(name, &record)?).await? {
            Created::New => Ok(record),
            Created::Existed => match self.find(name).await? {
                Some(held) => Ok(held),
                None => Err(StoreError::Missing(name.clone())),
            },
        }
    }
}

fn encode(name: &BlobName, record: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec_pretty(record).map_err(|source| StoreError::Record {
        name: name.clone(),
        source,
    })
}

fn request_name(request: &RequestId) -> BlobName {
    BlobName::status(request, &["request.json"])
}

fn plan_name(request: &RequestId) -> BlobName {
    BlobName::status(request, &["plan.json"])
}

fn slice_name(request: &RequestId, sequence: u32) -> BlobName {
    BlobName::status(request, &["slices", &format!("{sequence:04}.json")])
}

fn response_name(request: &RequestId) -> BlobName {
    BlobName::status(request, &["response.json"])
}

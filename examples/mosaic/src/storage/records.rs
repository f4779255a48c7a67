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
//! reads what the first wrote, and continues with that. The response is a copy of the one that the result store
//! holds.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use queue_runtime::{Disposition, Failure, RequestId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::storage::blob::{BlobName, Container};
use crate::storage::store::{Created, Store, StoreError};
use crate::workflow::messages::{ImageOutcome, ImageRequest, MAX_SLICES, SliceOutcome};
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

/// A request, and what is on record of its progress.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestState {
    /// The id of the request.
    pub request: RequestId,
    /// The request as it was taken in.
    pub record: RequestRecord,
    /// The plan, if there is one.
    pub plan: Option<PlanRecord>,
    /// The slices with an outcome, by their numbers from 0.
    pub slices: BTreeMap<u32, SliceRecord>,
    /// The response, if there is one.
    pub outcome: Option<ImageOutcome>,
}

/// A request without a response.
pub(crate) struct OpenRequest {
    /// Its folder in the containers.
    pub(crate) folder: String,
    /// The request, if it is on record.
    pub(crate) taken_in: Option<(RequestId, RequestRecord)>,
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

impl RequestState {
    /// The state of a request of which nothing else is known.
    #[must_use]
    pub fn new(request: RequestId, record: RequestRecord) -> Self {
        Self {
            request,
            record,
            plan: None,
            slices: BTreeMap::new(),
            outcome: None,
        }
    }

    /// The number of slices, if the request is planned.
    #[must_use]
    pub fn planned(&self) -> Option<u32> {
        Some(self.plan.as_ref()?.plan()?.slices())
    }

    /// The number of attempts at the slices with an outcome.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.slices.values().map(|slice| slice.attempts).sum()
    }

    /// The slices that failed, from 0, with their reasons.
    pub fn failures(&self) -> impl Iterator<Item = (u32, &str)> {
        self.slices
            .iter()
            .filter_map(|(slice, record)| Some((*slice, record.failure()?)))
    }
}

impl SliceRecord {
    /// The reason, if the slice failed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.outcome {
            SliceOutcome::Failed { reason } => Some(reason),
            SliceOutcome::Rendered { .. } => None,
        }
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
        (plan.slices() == self.slices && self.slices <= MAX_SLICES).then_some(plan)
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
    pub async fn states(&self) -> Result<Vec<RequestState>, StoreError> {
        let states = self.folders().await?.into_iter().map(|folder| async move {
            match self.taken_in(&folder).await? {
                Some((request, record)) => {
                    let state = RequestState::new(request, record);
                    self.look_again(state).await.map(Some)
                }
                None => Ok(None),
            }
        });
        let found = stream::iter(states).buffered(CONCURRENCY);
        let found: Vec<Option<RequestState>> = found.try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns the state of a request, if it was taken in.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn state(&self, request: &RequestId) -> Result<Option<RequestState>, StoreError> {
        match self.request(request).await? {
            Some(record) => {
                let state = RequestState::new(request.clone(), record);
                self.look_again(state).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Reads what was recorded of a request since its state was read.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn look_again(&self, mut state: RequestState) -> Result<RequestState, StoreError> {
        let request = &state.request;
        // Before the slices, so that these are all there if it is done.
        let response = self.response(request).await?;
        if state.plan.is_none() {
            state.plan = self.plan(request).await?;
        }
        if state.plan.is_some() {
            let mut recorded = self.slices_recorded(request).await?;
            recorded.retain(|slice| !state.slices.contains_key(slice));
            let reads = recorded
                .into_iter()
                .map(|slice| async move { Ok((slice, self.slice(request, slice).await?)) });
            let mut reads = stream::iter(reads).buffer_unordered(CONCURRENCY);
            while let Some((slice, record)) = reads.try_next().await? {
                state.slices.extend(record.map(|record| (slice, record)));
            }
        }
        state.outcome = response.map(|response| response.outcome);
        Ok(state)
    }

    /// Returns the folders of records, one for each request.
    pub(crate) async fn folders(&self) -> Result<Vec<String>, StoreError> {
        self.store.folders(Container::Status).await
    }

    /// Returns the request whose records are in a folder, if it was taken in.
    pub(crate) async fn taken_in(
        &self,
        folder: &str,
    ) -> Result<Option<(RequestId, RequestRecord)>, StoreError> {
        let Ok(name) = BlobName::try_from(format!("status/{folder}/request.json")) else {
            return Ok(None);
        };
        let Some(record) = self.find::<RequestRecord>(&name).await? else {
            return Ok(None);
        };
        let request = RequestId::new(record.request.clone());
        Ok(request.ok().map(|request| (request, record)))
    }

    /// Returns the requests without a response.
    pub(crate) async fn open_requests(&self) -> Result<Vec<OpenRequest>, StoreError> {
        let mut open = Vec::new();
        for folder in self.folders().await? {
            let Ok(response) = BlobName::try_from(format!("status/{folder}/response.json")) else {
                continue;
            };
            if self.store.exists(&response).await? {
                continue;
            }
            let taken_in = self.taken_in(&folder).await?;
            open.push(OpenRequest { folder, taken_in });
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

    /// Returns the numbers of the recorded slices. Of several handlers that record a slice and then count, the last to
    /// record counts all of them.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn slices_recorded(&self, request: &RequestId) -> Result<Vec<u32>, StoreError> {
        let folder = BlobName::status(request, &["slices"]);
        let names = self.store.list(&folder).await?;
        let number = |name: &String| name.strip_suffix(".json")?.parse().ok();
        Ok(names.iter().filter_map(number).collect())
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
        self.store.write(&name, encode(&name, response)?).await?;
        self.store.tell_recorded();
        Ok(())
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
            Created::New => {
                self.store.tell_recorded();
                Ok(record)
            }
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

//! Status records of requests, none of which ever changes.
//!
//! | record | written by | holds |
//! |---|---|---|
//! | `status/REQUEST/request.json` | intake | the request as it was taken in, and by whom |
//! | `status/REQUEST/plan.json` | controller | the request, and the number of slices |
//! | `slicestatus/REQUEST/SEQ.json` | controller | the outcome of a slice |
//! | `status/REQUEST/answer.json` | controller | the message whose handler joins the slices and responds |
//! | `status/REQUEST/response.json` | broker | the outcome of the request |
//!
//! The records of slices have a container of their own, so that a listing of requests is short. Create-only records let
//! repeated and concurrent handlers agree: the second to create a record reads what the first wrote, and continues with
//! that.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, TryStreamExt as _, future, stream};
use queue_runtime::{Disposition, Failure, RequestId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::storage::blob::{BlobName, Container};
use crate::storage::store::{CONCURRENCY, Store, StoreError};
use crate::workflow::messages::{ImageOutcome, ImageRequest, SliceOutcome};
use pictures::{Fingerprint, Plan};
use queue_runtime::backend::Created;

/// The size limit of a record, in bytes; reasons of failures are cut far below.
const MAX_RECORD: u64 = 256 << 10;

/// The status records of all requests. Each method returns a [`StoreError`] if the store fails.
#[derive(Debug, Clone)]
pub struct Records {
    store: Store,
}

/// What is recorded of a request, once.
pub trait Record: Serialize + DeserializeOwned {
    /// The last part of the record's name.
    const FILE: &str;
}

/// A request as it was taken in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The id of the request.
    pub request: String,
    /// The client that submitted the request first.
    pub client: String,
    /// When the request was first submitted, as RFC 3339 in UTC.
    pub submitted: String,
    /// The fingerprint of the source picture.
    pub picture: Fingerprint,
    /// The request.
    pub asked: ImageRequest,
}

/// A request and its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The request.
    pub asked: ImageRequest,
    /// The source's width and height in pixels.
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
    pub attempts: usize,
}

/// Which handler responds to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// The id of the handler's message.
    pub by: String,
}

impl Record for RequestRecord {
    const FILE: &str = "request.json";
}

impl Record for PlanRecord {
    const FILE: &str = "plan.json";
}

impl Record for AnswerRecord {
    const FILE: &str = "answer.json";
}

impl Record for ImageOutcome {
    const FILE: &str = "response.json";
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

impl RequestRecord {
    /// What differs in another request, if anything that affects the mosaic does.
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
    pub fn new(request: RequestId, record: RequestRecord) -> Self {
        Self {
            request,
            record,
            plan: None,
            slices: BTreeMap::new(),
            outcome: None,
        }
    }

    /// What is done now: `waiting`, `rendering`, `joining`, `done` or `failed`.
    pub fn stage(&self) -> &'static str {
        match (&self.outcome, self.planned()) {
            (Some(ImageOutcome::Done { .. }), _) => "done",
            (Some(ImageOutcome::Failed { .. }), _) => "failed",
            (None, None) => "waiting",
            (None, Some(all)) if self.slices.len() == all as usize => "joining",
            (None, Some(_)) => "rendering",
        }
    }

    /// The reason, if the request failed.
    pub fn reason(&self) -> Option<&str> {
        match &self.outcome {
            Some(ImageOutcome::Failed { reason }) => Some(reason),
            _ => None,
        }
    }

    /// The number of slices, if the request is planned.
    pub fn planned(&self) -> Option<u32> {
        Some(self.plan.as_ref()?.plan()?.slices())
    }

    /// The number of attempts at the slices with an outcome.
    pub fn attempts(&self) -> usize {
        self.slices.values().map(|slice| slice.attempts).sum()
    }

    /// The slices that failed, from 0, with their reasons.
    pub fn failures(&self) -> impl Iterator<Item = (u32, &str)> {
        let slices = self.slices.iter();
        slices.filter_map(|(slice, record)| Some((*slice, record.failure()?)))
    }
}

impl SliceRecord {
    /// The reason, if the slice failed.
    pub fn failure(&self) -> Option<&str> {
        match &self.outcome {
            SliceOutcome::Failed { reason } => Some(reason),
            SliceOutcome::Rendered { .. } => None,
        }
    }
}

impl PlanRecord {
    /// Returns the plan, or `None` if the record is out of this version's bounds.
    pub fn plan(&self) -> Option<Plan> {
        let plan = self.asked.layout().ok()?.plan(self.source).ok()?;
        (plan.slices() == self.slices).then_some(plan)
    }
}

impl Records {
    /// Returns the records in a store.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Returns what is recorded of a request.
    pub async fn find<R: Record>(&self, request: &RequestId) -> Result<Option<R>, StoreError> {
        self.read(&BlobName::status(request, R::FILE)).await
    }

    /// Records something of a request unless that is recorded. Returns what is recorded.
    pub async fn record<R: Record>(&self, request: &RequestId, record: R) -> Result<R, StoreError> {
        let name = BlobName::status(request, R::FILE);
        self.create_or_read(&name, record).await
    }

    /// Returns the outcome of a slice, if it is recorded.
    pub async fn slice(
        &self,
        request: &RequestId,
        sequence: u32,
    ) -> Result<Option<SliceRecord>, StoreError> {
        self.read(&slice_name(request, sequence)).await
    }

    /// Records the outcome of a slice unless one is recorded. Returns the recorded outcome.
    pub async fn record_slice(
        &self,
        request: &RequestId,
        sequence: u32,
        slice: SliceRecord,
    ) -> Result<SliceRecord, StoreError> {
        let name = slice_name(request, sequence);
        self.create_or_read(&name, slice).await
    }

    /// Returns the numbers of the recorded slices. Of several handlers that record a slice and then count, the last to
    /// record counts all.
    pub async fn slices_recorded(&self, request: &RequestId) -> Result<Vec<u32>, StoreError> {
        let folder = BlobName::new(Container::SliceStatus, &[request.as_str()]);
        let folder = format!("{folder}/");
        let found = self.store.list(&folder).await?;
        let number = |name: &str| {
            name.strip_prefix(&folder)?
                .strip_suffix(".json")?
                .parse()
                .ok()
        };
        Ok(found.iter().filter_map(|blob| number(&blob.name)).collect())
    }

    /// Returns the state of every request that was taken in.
    pub async fn states(&self) -> Result<Vec<RequestState>, StoreError> {
        let folders = self.folders().await?;
        let states = folders.iter().map(|folder| self.state_in(folder, None));
        let states = stream::iter(states).buffered(CONCURRENCY);
        states.try_filter_map(future::ok).try_collect().await
    }

    /// Returns the state of a request, if it was taken in.
    pub async fn state(&self, request: &RequestId) -> Result<Option<RequestState>, StoreError> {
        let Some(record) = self.find(request).await? else {
            return Ok(None);
        };
        let state = RequestState::new(request.clone(), record);
        self.look_again(state).await.map(Some)
    }

    /// Returns the state of the request whose records are in a folder, if it was taken in, also with what was recorded since it
    /// was known.
    pub(crate) async fn state_in(
        &self,
        folder: &str,
        known: Option<RequestState>,
    ) -> Result<Option<RequestState>, StoreError> {
        let state = match known {
            Some(known) => known,
            None => match self.taken_in(folder).await? {
                Some((request, record)) => RequestState::new(request, record),
                None => return Ok(None),
            },
        };
        self.look_again(state).await.map(Some)
    }

    /// Reads what was recorded of a request since its state was read.
    async fn look_again(&self, mut state: RequestState) -> Result<RequestState, StoreError> {
        let request = &state.request;
        // Before the slices, so that all are there if the request is done.
        let outcome = self.find(request).await?;
        if state.plan.is_none() {
            state.plan = self.find(request).await?;
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
        state.outcome = outcome;
        Ok(state)
    }

    /// Returns the folders of records, one for each request.
    pub(crate) async fn folders(&self) -> Result<BTreeSet<String>, StoreError> {
        let records = self
            .store
            .list(&format!("{}/", Container::Status.name()))
            .await?;
        let folder = |name: &str| name.split('/').nth(1).map(str::to_owned);
        Ok(records
            .iter()
            .filter_map(|blob| folder(&blob.name))
            .collect())
    }

    /// Returns the request whose records are in a folder, if it was taken in.
    pub(crate) async fn taken_in(
        &self,
        folder: &str,
    ) -> Result<Option<(RequestId, RequestRecord)>, StoreError> {
        let Ok(name) = BlobName::try_from(format!("status/{folder}/request.json")) else {
            return Ok(None);
        };
        let Some(record) = self.read::<RequestRecord>(&name).await? else {
            return Ok(None);
        };
        let request = RequestId::new(record.request.clone());
        Ok(request.ok().map(|request| (request, record)))
    }

    /// Whether the response to a request is recorded, so that further messages of it have no effect.
    pub(crate) async fn is_answered(&self, request: &RequestId) -> Result<bool, StoreError> {
        let name = BlobName::status(request, ImageOutcome::FILE);
        let answered = self.store.exists(&name).await?;
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
        match self.is_answered(request).await {
            Ok(true) => Ok(Disposition::complete()),
            _ => Err(failure),
        }
    }

    async fn read<T: DeserializeOwned>(&self, name: &BlobName) -> Result<Option<T>, StoreError> {
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
        let json = serde_json::to_vec_pretty(&record).map_err(|source| StoreError::Record {
            name: name.clone(),
            source,
        })?;
        match self.store.create(name, json).await? {
            Created::New => {
                self.store.tell_recorded();
                Ok(record)
            }
            Created::Existed => match self.read(name).await? {
                Some(held) => Ok(held),
                None => Err(StoreError::Missing(name.clone())),
            },
        }
    }
}

fn slice_name(request: &RequestId, sequence: u32) -> BlobName {
    let file = format!("{sequence:04}.json");
    BlobName::new(Container::SliceStatus, &[request.as_str(), &file])
}

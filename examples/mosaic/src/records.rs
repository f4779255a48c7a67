//! Status records of requests, each created once and never changed.
//!
//! | record | written by | holds |
//! |---|---|---|
//! | `status/REQUEST/plan.json` | controller | the request, and the number of slices |
//! | `status/REQUEST/slices/SEQ.json` | controller | the outcome of a slice |
//! | `status/REQUEST/join.json` | controller | the slice whose response joins all slices |
//! | `status/REQUEST/response.json` | broker | the outcome of the request |
//!
//! Create-only records let repeated and concurrent handlers agree: the second to create a record
//! reads what the first wrote, and continues with that.

use queue_runtime::RequestId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::blob::BlobName;
use crate::messages::{ImageOutcome, ImageRequest, SliceOutcome};
use crate::picture::{Layout, Plan, TileSize};
use crate::store::{Created, Store, StoreError};

/// The size limit of a record, in bytes; reasons of failures are cut far below it.
const MAX_RECORD: u64 = 256 << 10;

/// The status records of all requests.
#[derive(Debug, Clone)]
pub struct Records {
    store: Store,
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

/// The slice whose response joins all slices.
#[derive(Debug, Serialize, Deserialize)]
struct JoinRecord {
    slice: u32,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResponseRecord {
    /// The idempotency key of the response.
    pub key: String,
    /// The outcome.
    pub outcome: ImageOutcome,
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
        self.create_or_read(&plan_name(request), plan)
            .await
            .map(|(held, _)| held)
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
            .map(|(held, _)| held)
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

    /// Claims the join of all slices for the response of one, unless it is claimed. Returns the slice
    /// whose response holds the claim.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn claim_join(&self, request: &RequestId, sequence: u32) -> Result<u32, StoreError> {
        let name = BlobName::status(request, &["join.json"]);
        let claimed = self
            .create_or_read(&name, JoinRecord { slice: sequence })
            .await;
        claimed.map(|(held, _)| held.slice)
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

    /// Records the outcome of a request unless one is recorded. Returns the recorded one, and whether
    /// this call created it.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    pub async fn record_response(
        &self,
        request: &RequestId,
        response: ResponseRecord,
    ) -> Result<(ResponseRecord, Created), StoreError> {
        self.create_or_read(&response_name(request), response).await
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
    ) -> Result<(T, Created), StoreError> {
        let bytes = serde_json::to_vec_pretty(&record).map_err(|source| StoreError::Record {
            name: name.clone(),
            source,
        })?;
        match self.store.create(name, bytes).await? {
            Created::New => Ok((record, Created::New)),
            Created::Existed => match self.find(name).await? {
                Some(held) => Ok((held, Created::Existed)),
                None => Err(StoreError::Missing(name.clone())),
            },
        }
    }
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

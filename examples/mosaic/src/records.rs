//! How requests stand: records that are created once and never changed.
//!
//! | record | by | says |
//! |---|---|---|
//! | `status/REQUEST/plan.json` | controller | what was asked, and how many slices there are |
//! | `status/REQUEST/slices/SEQ.json` | controller | what became of a slice |
//! | `status/REQUEST/join.json` | controller | which slice's response is to see to the joining |
//! | `status/REQUEST/response.json` | broker | what became of the request |
//!
//! Creation-only records are what makes repeated and simultaneous handlers agree: whoever comes
//! second finds what the first one wrote, and goes on with that.

use queue_runtime::RequestId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::blob::BlobName;
use crate::messages::{ImageOutcome, ImageRequest, SliceOutcome};
use crate::picture::{Layout, Plan, TileSize};
use crate::store::{Created, Store, StoreError};

/// The largest record, in bytes: reasons are clipped far below.
const MAX_RECORD: u64 = 256 << 10;

/// The records of all requests.
#[derive(Debug, Clone)]
pub struct Records {
    store: Store,
}

/// What was asked, and how it is carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// What was asked.
    pub asked: ImageRequest,
    /// The source picture's width and height in pixels.
    pub source: (u32, u32),
    /// How many slices there are.
    pub slices: u32,
}

/// What became of a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceRecord {
    /// What became of it.
    pub outcome: SliceOutcome,
    /// How many attempts it took.
    pub attempts: u32,
}

/// Which slice's response is to see to the joining.
#[derive(Debug, Serialize, Deserialize)]
struct JoinRecord {
    slice: u32,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResponseRecord {
    /// The idempotency key of the response.
    pub key: String,
    /// The outcome.
    pub outcome: ImageOutcome,
}

impl PlanRecord {
    /// The plan itself, unless the record is of a newer program with other bounds.
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
    /// The records in a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// The plan of a request that has one.
    ///
    /// # Errors
    /// The store's.
    pub async fn plan(&self, request: &RequestId) -> Result<Option<PlanRecord>, StoreError> {
        self.find(&plan_name(request)).await
    }

    /// Records a plan, unless there is one; gives the one that holds.
    ///
    /// # Errors
    /// The store's.
    pub async fn record_plan(
        &self,
        request: &RequestId,
        plan: PlanRecord,
    ) -> Result<PlanRecord, StoreError> {
        self.settle(&plan_name(request), plan)
            .await
            .map(|(held, _)| held)
    }

    /// What became of a slice, if it is known.
    ///
    /// # Errors
    /// The store's.
    pub async fn slice(
        &self,
        request: &RequestId,
        sequence: u32,
    ) -> Result<Option<SliceRecord>, StoreError> {
        self.find(&slice_name(request, sequence)).await
    }

    /// Records what became of a slice, unless that is known; gives the record that holds.
    ///
    /// # Errors
    /// The store's.
    pub async fn record_slice(
        &self,
        request: &RequestId,
        sequence: u32,
        slice: SliceRecord,
    ) -> Result<SliceRecord, StoreError> {
        self.settle(&slice_name(request, sequence), slice)
            .await
            .map(|(held, _)| held)
    }

    /// How many slices have a record. Of those who record a slice and then count, the last one to
    /// record counts them all.
    ///
    /// # Errors
    /// The store's.
    pub async fn slices_recorded(&self, request: &RequestId) -> Result<usize, StoreError> {
        let names = self
            .store
            .list(&BlobName::status(request, &["slices"]))
            .await?;
        Ok(names.iter().filter(|name| name.ends_with(".json")).count())
    }

    /// Charges a slice's response with joining all slices, unless one is charged; gives the slice
    /// whose response is.
    ///
    /// # Errors
    /// The store's.
    pub async fn claim_join(&self, request: &RequestId, sequence: u32) -> Result<u32, StoreError> {
        let name = BlobName::status(request, &["join.json"]);
        let charged = self.settle(&name, JoinRecord { slice: sequence }).await;
        charged.map(|(held, _)| held.slice)
    }

    /// What became of a request, if it is known.
    ///
    /// # Errors
    /// The store's.
    pub async fn response(
        &self,
        request: &RequestId,
    ) -> Result<Option<ResponseRecord>, StoreError> {
        self.find(&response_name(request)).await
    }

    /// Records what became of a request, unless that is known; gives the record that holds, and
    /// whether it is this one.
    ///
    /// # Errors
    /// The store's.
    pub async fn record_response(
        &self,
        request: &RequestId,
        response: ResponseRecord,
    ) -> Result<(ResponseRecord, Created), StoreError> {
        self.settle(&response_name(request), response).await
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

    async fn settle<T: Serialize + DeserializeOwned>(
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

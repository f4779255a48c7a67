//! Pictures of a job: its source, parts of its mosaic, its tiles.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::TryStreamExt as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pictures::{Picture, Plan, Renderer, Slice, Zoom};
use queue_runtime::{Failure, RequestId};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{Problem, Shared, jpeg};
use crate::storage::blob::BlobName;
use crate::storage::libraries::{Libraries, LibraryError, MAX_PICTURE};
use crate::storage::mosaics;
use crate::storage::records::{PlanRecord, Records};
use crate::storage::store::{Store, StoreError};
use crate::workflow::messages::ImageOutcome;

/// The greatest number of pictures that are decoded at a time.
const MAX_DECODING: usize = 2;
/// The side of the source picture below the slices.
const SOURCE: u32 = 1024;
/// The size limit of a slice, in bytes.
const MAX_SLICE: u64 = 2 << 30;

#[derive(Debug)]
pub(super) struct Parts {
    store: Store,
    records: Records,
    libraries: Libraries,
    decoding: Arc<Semaphore>,
}

impl Parts {
    pub(super) fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            records: Records::new(store.clone()),
            libraries: Libraries::new(store.clone()),
            decoding: Arc::new(Semaphore::new(MAX_DECODING)),
        }
    }

    async fn plan(&self, request: &RequestId) -> Result<(PlanRecord, Plan), Problem> {
        let record: Option<PlanRecord> = self.records.find(request).await?;
        let found = record.and_then(|record| record.plan().map(|plan| (record, plan)));
        found.ok_or(Problem::NoPage)
    }

    async fn renderer(&self, request: &RequestId) -> Result<(Plan, Arc<Renderer>), Problem> {
        let (record, plan) = self.plan(request).await?;
        let renderer = self.libraries.renderer(record.asked.library).await;
        let renderer = renderer.map_err(|error| match error {
            LibraryError::Store(error) => error.into(),
            error => Problem::Failed(Failure::retry(error)),
        })?;
        Ok((plan, renderer))
    }

    /// Reads a blob and works on it on a thread of its own, in turn. The turn ends with the work, also if nobody waits for it
    /// any more.
    async fn decoded<T: Send + 'static>(
        &self,
        (blob, max): (&BlobName, u64),
        work: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = Arc::clone(&self.decoding).acquire_owned().await;
        let turn = turn.map_err(|_| Problem::busy("the page is closing"))?;
        let bytes = self.store.read(blob, max).await?;
        let working = spawn_blocking(move || {
            let _turn = turn;
            work(&bytes)
        });
        working.await?
    }
}

/// The source picture, scaled down.
pub(super) async fn source(
    State(front): Shared,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let source = BlobName::source(&request(&id)?);
    let scaled = front.parts.decoded((&source, MAX_PICTURE), |bytes| {
        let picture = Picture::decode("the source picture", bytes)?;
        Ok(picture.within(SOURCE).to_jpeg())
    });
    Ok(jpeg(scaled.await?))
}

/// A part of the mosaic at a level.
pub(super) async fn part(
    State(front): Shared,
    Path((id, level, slice, column)): Path<(String, u32, u32, u32)>,
) -> Result<Response, Problem> {
    let (request, place) = (request(&id)?, (level, slice, column));
    let zoom = Zoom::new(front.parts.plan(&request).await?.1);
    if !zoom.has_part(place) {
        return Err(Problem::NoPage);
    }
    let blob = BlobName::rendered(&request, slice);
    let part = front.parts.decoded((&blob, MAX_SLICE), move |png| {
        let part = zoom.part(place, png)?.ok_or(Problem::NoPage)?;
        Ok(part.to_jpeg())
    });
    Ok(jpeg(part.await?))
}

/// The tiles of a slice, row by row.
pub(super) async fn places(
    State(front): Shared,
    Path((id, slice)): Path<(String, u32)>,
) -> Result<Response, Problem> {
    let request = request(&id)?;
    let (plan, renderer) = front.parts.renderer(&request).await?;
    let blob = BlobName::slice(&request, slice);
    let places = front.parts.decoded((&blob, MAX_SLICE), move |png| {
        Ok(renderer.places(&Slice::decode(png, &plan, slice)?))
    });
    Ok(([super::CACHEABLE], Json(places.await?)).into_response())
}

/// A tile of the library, with its name in a header.
pub(super) async fn tile(
    State(front): Shared,
    Path((id, index)): Path<(String, u32)>,
) -> Result<Response, Problem> {
    let (_, renderer) = front.parts.renderer(&request(&id)?).await?;
    let (name, picture) = renderer.tile(index).ok_or(Problem::NoPage)?;
    // Headers have no other characters.
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
    let name = [(HeaderName::from_static("x-tile-name"), name)];
    Ok((name, jpeg(picture.to_jpeg())).into_response())
}

/// The mosaic, a PNG, to save.
pub(super) async fn mosaic(
    State(front): Shared,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let outcome: Option<ImageOutcome> = front.parts.records.find(&request(&id)?).await?;
    let Some(ImageOutcome::Done { image, figures }) = outcome else {
        return Err(Problem::NoPage);
    };
    let mosaic = mosaics::read(&front.store, &image, figures.bytes).await?;
    let failed = |error: &StoreError| tracing::error!(%error, "failed to send a mosaic");
    let mosaic = mosaic.inspect_err(failed);
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    let id: String = id.chars().filter(is_plain).collect();
    let name = format!("attachment; filename=\"mosaic-{id}.png\"");
    let headers = [
        (CONTENT_TYPE, "image/png"),
        (CONTENT_LENGTH, &figures.bytes.to_string()),
        (CONTENT_DISPOSITION, &name),
        (CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(mosaic)).into_response())
}

fn request(id: &str) -> Result<RequestId, Problem> {
    RequestId::new(id).map_err(|_| Problem::NoPage)
}

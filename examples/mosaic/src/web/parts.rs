//! Pictures of a job: its source, its slices, parts of its mosaic, its tiles.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use moka::future::Cache;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pictures::{Band, Picture, Renderer, Slice, Zoom};
use queue_runtime::{Failure, RequestId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::{Problem, Shared, jpeg};
use crate::storage::blob::BlobName;
use crate::storage::library_store::{LibraryStore, LibraryStoreError, MAX_PICTURE};
use crate::storage::records::Records;
use crate::storage::store::Store;

/// The memory that scaled slices may take, in bytes.
const MAX_BANDS: u64 = 256 << 20;
/// The greatest number of pictures that are decoded at a time.
const MAX_DECODING: usize = 2;
/// The greatest width and height of the overview of a mosaic, of which slices are shown, in pixels.
const OVERVIEW: (u32, u32) = (1600, 8000);
/// The side of the source picture below it.
const SOURCE: u32 = 1024;
/// The size limit of a slice, in bytes.
const MAX_SLICE: u64 = 2 << 30;

#[derive(Debug)]
pub(super) struct Parts {
    records: Records,
    libraries: LibraryStore,
    /// By request, level and slice.
    bands: Cache<(String, u32, u32), Arc<Band>>,
    decoding: Arc<Semaphore>,
}

impl Parts {
    pub(super) fn new(store: &Store) -> Self {
        let weight = |_: &_, band: &Arc<Band>| u32::try_from(band.bytes()).unwrap_or(u32::MAX);
        Self {
            records: Records::new(store.clone()),
            libraries: LibraryStore::new(store.clone()),
            bands: Cache::builder()
                .max_capacity(MAX_BANDS)
                .weigher(weight)
                .build(),
            decoding: Arc::new(Semaphore::new(MAX_DECODING)),
        }
    }

    async fn zoom(&self, request: &RequestId) -> Result<Zoom, Problem> {
        let plan = self.records.plan(request).await?;
        let plan = plan.and_then(|plan| plan.plan()).ok_or(Problem::NoPage)?;
        Ok(Zoom::new(plan))
    }

    /// Returns a slice at a level. Concurrent calls decode it once.
    async fn band(
        &self,
        store: &Store,
        zoom: Zoom,
        (request, level, slice): (&RequestId, u32, u32),
    ) -> Result<Arc<Band>, Problem> {
        let scaled = async {
            let turn = self.turn().await?;
            let blob = BlobName::rendered(request, slice);
            let png = store.read(&blob, MAX_SLICE).await?;
            let band = in_turn(turn, move || zoom.band(level, slice, &png)).await?;
            Ok::<_, Problem>(Arc::new(band?))
        };
        let key = (request.to_string(), level, slice);
        let band = self.bands.try_get_with(key, scaled).await;
        band.map_err(|problem| Problem::clone(&problem))
    }

    async fn renderer(&self, request: &RequestId) -> Result<Arc<Renderer>, Problem> {
        let plan = self.records.plan(request).await?.ok_or(Problem::NoPage)?;
        let renderer = self.libraries.renderer(plan.asked.library).await;
        renderer.map_err(|error| match error {
            LibraryStoreError::Store(error) => error.into(),
            error => Problem::Failed(Failure::retry(error)),
        })
    }

    /// Waits for a turn to decode a picture.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let turn = Arc::clone(&self.decoding).acquire_owned().await;
        turn.map_err(|_| Problem::busy("the page is closing"))
    }
}

/// The source picture, scaled down.
pub(super) async fn source(
    State(front): Shared,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let request = request(&id)?;
    let turn = front.parts.turn().await?;
    let source = front
        .store
        .read(&BlobName::source(&request), MAX_PICTURE)
        .await?;
    let scaling = move || {
        let picture = Picture::decode("the source picture", &source)?;
        Ok::<_, Problem>(picture.within(SOURCE).to_jpeg())
    };
    Ok(jpeg(in_turn(turn, scaling).await??))
}

/// A rendered slice, scaled down.
pub(super) async fn band(
    State(front): Shared,
    Path((id, slice)): Path<(String, u32)>,
) -> Result<Response, Problem> {
    let (request, parts) = (request(&id)?, &front.parts);
    let zoom = parts.zoom(&request).await?;
    if !zoom.has_slice(slice) {
        return Err(Problem::NoPage);
    }
    let level = zoom.level_within(OVERVIEW);
    let band = parts
        .band(&front.store, zoom, (&request, level, slice))
        .await?;
    let picture = band.picture().ok_or(Problem::NoPage)?;
    Ok(jpeg(spawn_blocking(move || picture.to_jpeg()).await?))
}

/// A part of the mosaic at a level.
pub(super) async fn part(
    State(front): Shared,
    Path((id, level, column, row)): Path<(String, u32, u32, u32)>,
) -> Result<Response, Problem> {
    let (request, parts) = (request(&id)?, &front.parts);
    let zoom = parts.zoom(&request).await?;
    if level >= zoom.levels() {
        return Err(Problem::NoPage);
    }
    let slices = zoom.slices(level, row);
    let bands = slices.map(|slice| parts.band(&front.store, zoom, (&request, level, slice)));
    let bands = try_join_all(bands).await?;
    let joining = move || {
        let bands = bands.iter().map(|band| &**band);
        let part = zoom.part(level, (column, row), bands)?;
        Some(part.to_jpeg())
    };
    let part = spawn_blocking(joining).await?;
    Ok(jpeg(part.ok_or(Problem::NoPage)?))
}

/// The tiles of a slice, row by row.
pub(super) async fn places(
    State(front): Shared,
    Path((id, slice)): Path<(String, u32)>,
) -> Result<Response, Problem> {
    let (request, parts) = (request(&id)?, &front.parts);
    let renderer = parts.renderer(&request).await?;
    let turn = parts.turn().await?;
    let png = front
        .store
        .read(&BlobName::slice(&request, slice), MAX_SLICE)
        .await?;
    let choosing = move || Ok::<_, Problem>(renderer.places(&Slice::decode(&png)?));
    let places = in_turn(turn, choosing).await??;
    Ok(([super::CACHEABLE], Json(places)).into_response())
}

/// A tile of the library, with its name in a header.
pub(super) async fn tile(
    State(front): Shared,
    Path((id, index)): Path<(String, u32)>,
) -> Result<Response, Problem> {
    let renderer = front.parts.renderer(&request(&id)?).await?;
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
    let (size, bytes) = front
        .store
        .stream(&BlobName::mosaic(&request(&id)?))
        .await?;
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    let id: String = id.chars().filter(is_plain).collect();
    let headers = [
        (CONTENT_TYPE, "image/png".to_owned()),
        (CONTENT_LENGTH, size.to_string()),
        (
            CONTENT_DISPOSITION,
            format!("attachment; filename=\"mosaic-{id}.png\""),
        ),
        (CACHE_CONTROL, "no-store".to_owned()),
    ];
    let bytes = bytes.map_err(io::Error::other);
    Ok((headers, Body::from_stream(bytes)).into_response())
}

/// Works on a thread of its own. The turn ends with the work, also if nobody waits for it any more.
async fn in_turn<T: Send + 'static>(
    turn: OwnedSemaphorePermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let working = spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    Ok(working.await?)
}

fn request(id: &str) -> Result<RequestId, Problem> {
    RequestId::new(id).map_err(|_| Problem::NoPage)
}

//! The job controller: cuts pictures into slices, and joins rendered slices into mosaics.
//!
//! ```text
//!  imagerequest:  cut ─► record the plan ─► write the slices ─► [acknowledge + all slice requests]
//!  sliceresponse: record the slice ─► count ─┬─ incomplete ─► [acknowledge]
//!                                            └─ complete or failed ─► answer, once ─► [acknowledge + response]
//! ```
//!
//! Each bracket is one storage transaction if the backend has them. Everything before it may be
//! repeated, also concurrently in another process: every step writes the same bytes under the same
//! name, or creates a record that only one handler can create. A slice is recorded before the records
//! are counted, so the handler that records last counts all of them. Several handlers may count all: one
//! of them makes the answer, by a claim in the result store, and the answer names its message. Only the
//! handler of that message responds, also if its process is killed after the answer was recorded and the message
//! comes again. If it is killed before, another handler claims the answer when the lease ends.

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use queue_runtime::receive::Poisoned;
use queue_runtime::{
    Disposition, Failure, FollowUp, QueueService, Received, RequestId, StartError,
};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::handling::{Handling, reason};
use super::join::join;
use super::results::Results;
use super::role::{Role, Settings};
use crate::storage::blob::BlobName;
use crate::storage::library_store::{LibraryStore, MAX_PICTURE};
use crate::storage::records::{PlanRecord, Records, SliceRecord};
use crate::storage::store::Store;
use crate::workflow::messages::{
    Figures, ImageRequest, ImageResponse, MAX_SLICES, SliceOutcome, SliceRequest, SliceResponse,
};
use pictures::{Layout, Picture, Plan, Slice, TileSize};

/// The maximum number of concurrent reads or writes of blobs.
const CONCURRENCY: usize = 8;

/// Starts a job controller.
///
/// # Errors
/// [`StartError`] if a setting is invalid.
pub fn controller(
    service: &QueueService,
    store: &Store,
    settings: &Settings,
) -> Result<Role, StartError> {
    let controller = Controller {
        store: store.clone(),
        records: Records::new(store.clone()),
        libraries: LibraryStore::new(store.clone()),
        results: Results::new(service, store, settings),
    };
    let requests = service.listener_with(controller.clone(), Controller::handle_request);
    let responses = service.listener_with(controller, Controller::handle_response);
    let requests = settings
        .listen(service, requests, 1)
        .on_poison(request_failed);
    let responses = settings
        .listen(service, responses, 1)
        .on_poison(join_failed);
    let requests = requests.start()?.stop_on_drop();
    let responses = responses.start()?.stop_on_drop();
    Ok(Role::listening("controller", vec![requests, responses]))
}

#[derive(Debug, Clone)]
struct Controller {
    store: Store,
    records: Records,
    libraries: LibraryStore,
    results: Results,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The id of the message whose handler responds.
    by: String,
    response: ImageResponse,
}

impl Controller {
    async fn handle_request(
        self,
        received: Received<ImageRequest>,
    ) -> Result<Disposition, Failure> {
        let request = received.envelope().request_id.clone();
        let handled = self.request(received).await;
        self.records.unless_answered(&request, handled).await
    }

    async fn handle_response(
        self,
        received: Received<SliceResponse>,
    ) -> Result<Disposition, Failure> {
        let request = received.envelope().request_id.clone();
        let handled = self.response(received).await;
        self.records.unless_answered(&request, handled).await
    }

    /// Cuts the picture of an image request, and submits a request for each slice.
    async fn request(&self, received: Received<ImageRequest>) -> Result<Disposition, Failure> {
        let _handling = Handling::of(&received);
        let request = &received.envelope().request_id;
        if self.records.is_answered(request).await? {
            return Ok(Disposition::complete());
        }
        let asked = self.first_planned(request, received.message()).await?;
        let layout = layout(&asked)?;
        let source = self.store.read(&asked.image, MAX_PICTURE);
        let source = source.await?;
        let prepared = self.libraries.prepare(asked.library);
        prepared.await?;

        let name = asked.image_name.clone();
        let cut = spawn_blocking(move || cut_up(&name, &source, layout)).await?;
        let (size, slices) = cut?;
        let count = u32::try_from(slices.len())?;
        let plan = PlanRecord {
            asked,
            source: size,
            slices: count,
        };
        // Before the slices, so that only those of the recorded plan are ever written.
        let held = self.records.record_plan(request, plan.clone()).await;
        if held? != plan {
            return Err("another plan of the request was recorded concurrently".into());
        }
        let writes = (slices.into_iter().zip(0..)).map(|(slice, sequence)| async move {
            let blob = BlobName::slice(request, sequence);
            self.store.write(&blob, slice).await
        });
        let written = stream::iter(writes)
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>();
        written.await?;

        let asked = &plan.asked;
        Ok(
            (0..count).fold(Disposition::complete(), |disposition, sequence| {
                disposition.then(&SliceRequest {
                    slice_sequence: sequence,
                    slice: BlobName::slice(request, sequence),
                    library: asked.library,
                    tile_size: asked.tile_size,
                    tint: asked.tint,
                })
            }),
        )
    }

    /// Returns the request as it was first planned, even if a repetition of it asks for something else.
    async fn first_planned(
        &self,
        request: &RequestId,
        asked: &ImageRequest,
    ) -> Result<ImageRequest, Failure> {
        let held = self.records.plan(request).await?;
        let Some(held) = held else {
            return Ok(asked.clone());
        };
        if held.asked != *asked {
            tracing::warn!(%request, "ignored the changes in a repeated request");
        }
        Ok(held.asked)
    }

    /// Records the outcome of a slice, and answers the request if it was the last one or failed.
    async fn response(&self, received: Received<SliceResponse>) -> Result<Disposition, Failure> {
        let _handling = Handling::of(&received);
        let request = &received.envelope().request_id;
        if self.records.is_answered(request).await? {
            return Ok(Disposition::complete());
        }
        let plan = self.records.plan(request).await?;
        let record = plan.ok_or_else(|| Failure::reject("the request has no plan"))?;
        let plan = record
            .plan()
            .ok_or_else(|| Failure::reject("the recorded plan is invalid"))?;
        let sequence = received.slice_sequence;
        if sequence >= record.slices {
            let slices = record.slices;
            return Err(Failure::reject(format!(
                "there is no slice at index {sequence}: the plan has {slices}"
            )));
        }

        let (outcome, attempts) = (received.outcome.clone(), received.attempts);
        let slice = SliceRecord { outcome, attempts };
        let held = self.records.record_slice(request, sequence, slice).await;
        let failure = match held?.outcome {
            SliceOutcome::Failed { reason } => Some(failure(sequence, record.slices, &reason)),
            SliceOutcome::Rendered { .. } => None,
        };
        if failure.is_none() {
            let recorded = self.records.slices_recorded(request).await;
            if recorded?.len() < record.slices as usize {
                return Ok(Disposition::complete());
            }
        }
        let by = received.envelope().id.as_str();
        let answer = async {
            let response = match failure {
                Some(reason) => ImageResponse::failed(request, reason),
                None => self.join(request, plan).await?,
            };
            let by = by.to_owned();
            Ok(Answer { by, response })
        };
        let answer = self.results.once("answer", request, answer).await?;
        Ok(if answer.by == by {
            Disposition::complete().then(&answer.response)
        } else {
            Disposition::complete()
        })
    }

    /// Joins a request's slices, all of which have a record, unless one of them failed. Returns the response.
    async fn join(&self, request: &RequestId, plan: Plan) -> Result<ImageResponse, Failure> {
        let records = (0..plan.slices()).map(|sequence| self.records.slice(request, sequence));
        let records = stream::iter(records)
            .buffered(CONCURRENCY)
            .try_collect::<Vec<_>>();
        let records = records.await?;
        let (mut blobs, mut retries) = (Vec::with_capacity(records.len()), 0);
        for (record, sequence) in records.into_iter().zip(0..) {
            let record = record.ok_or("the record of a slice was counted but is missing")?;
            match record.outcome {
                SliceOutcome::Rendered { blob, .. } => blobs.push(blob),
                SliceOutcome::Failed { reason } => {
                    let reason = failure(sequence, plan.slices(), &reason);
                    return Ok(ImageResponse::failed(request, reason));
                }
            }
            retries += record.attempts.saturating_sub(1);
        }
        let mosaic = BlobName::mosaic(request);
        if !self.store.exists(&mosaic).await? {
            join(&self.store, plan, blobs, &mosaic).await?;
            tracing::info!(%request, slices = plan.slices(), "joined the mosaic");
        }
        let (width, height) = plan.output_size();
        let figures = Figures {
            width,
            height,
            tiles: plan.columns() * plan.rows(),
            slices: plan.slices(),
            retries,
        };
        Ok(ImageResponse::done(request, figures))
    }
}

fn failure(sequence: u32, slices: u32, reason: &str) -> String {
    format!("slice {} of {slices}: {reason}", sequence + 1)
}

fn layout(asked: &ImageRequest) -> Result<Layout, Failure> {
    if asked.slices > MAX_SLICES {
        let found = asked.slices;
        return Err(Failure::reject(format!(
            "the number of slices is {found}; 1 to {MAX_SLICES} are allowed"
        )));
    }
    let tile_size = TileSize::try_from(asked.tile_size)?;
    Ok(Layout {
        across: asked.across,
        tile_size,
        slices: asked.slices,
    })
}

type Cut = ((u32, u32), Vec<Vec<u8>>);

fn cut_up(name: &str, source: &Bytes, layout: Layout) -> Result<Cut, Failure> {
    let source = Picture::decode(name, source)?;
    let plan = layout.plan(source.dimensions())?;
    let slices = Slice::cut(&source, &plan).map(|slice| slice.encode());
    Ok((source.dimensions(), slices.collect()))
}

fn request_failed(poisoned: Poisoned<ImageRequest>) -> Option<FollowUp> {
    let reason = reason(&poisoned.record);
    Some(FollowUp::new(&ImageResponse::failed(
        &poisoned.envelope.request_id,
        reason,
    )))
}

fn join_failed(poisoned: Poisoned<SliceResponse>) -> Option<FollowUp> {
    let reason = format!(
        "the slices could not be joined: {}",
        reason(&poisoned.record)
    );
    Some(FollowUp::new(&ImageResponse::failed(
        &poisoned.envelope.request_id,
        reason,
    )))
}

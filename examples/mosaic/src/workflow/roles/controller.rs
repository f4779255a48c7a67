//! The job controller: cuts pictures into slices, and joins rendered slices into mosaics.
//!
//! ```text
//!  imagerequest:  cut ─► record the plan ─► write the slices ─► [acknowledge + all slice requests]
//!  sliceresponse: record the slice ─► count ─┬─ incomplete, or another answers ─► [acknowledge]
//!                                            └─ complete or failed ─► join ─► [acknowledge + response]
//! ```
//!
//! An acknowledgement and its submissions are one storage transaction if the backend has them. Every step before the
//! acknowledgement may be repeated, also concurrently in another process: it writes the same bytes under the same name,
//! or creates a record that only one handler can create. A slice is recorded before the records are counted, so the
//! handler that records last counts all. Several handlers may count all slices: the first to create the record of the
//! answer joins the slices and responds. The answer's record names its handler's message, so that joining goes on when
//! the message comes again after a kill.

use std::io::Write as _;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use queue_runtime::receive::Poisoned;
use queue_runtime::{
    Disposition, Failure, FollowUp, QueueService, Received, RequestId, StartError,
};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::role::{Handling, Role, Settings, reason};
use crate::storage::blob::BlobName;
use crate::storage::libraries::MAX_PICTURE;
use crate::storage::mosaics::MosaicWriter;
use crate::storage::records::{AnswerRecord, PlanRecord, Records, SliceRecord};
use crate::storage::store::{CONCURRENCY, Store};
use crate::workflow::messages::{
    Figures, ImageRequest, ImageResponse, SliceOutcome, SliceRequest, SliceResponse,
};
use pictures::{Layout, Picture, Plan, Slice, join};

/// The size limit of a rendered slice, in bytes: more than the largest mosaic takes uncompressed.
const MAX_RENDERED: u64 = 2 << 30;

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
        let layout = asked.layout()?;
        let source = self.store.read(&asked.image, MAX_PICTURE).await?;
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
        if self.records.record(request, plan.clone()).await? != plan {
            return Err("another plan of the request was recorded concurrently".into());
        }
        let writes = (slices.into_iter().zip(0..)).map(|(slice, sequence)| async move {
            let blob = BlobName::slice(request, sequence);
            self.store.create(&blob, slice).await.map(drop)
        });
        let written = stream::iter(writes).buffer_unordered(CONCURRENCY);
        written.try_collect::<()>().await?;

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

    /// Returns the request as it was first planned, even if a repetition asks for something else.
    async fn first_planned(
        &self,
        request: &RequestId,
        asked: &ImageRequest,
    ) -> Result<ImageRequest, Failure> {
        let held: Option<PlanRecord> = self.records.find(request).await?;
        let Some(held) = held else {
            return Ok(asked.clone());
        };
        if held.asked != *asked {
            tracing::warn!(%request, "ignored the changes in a repeated request");
        }
        Ok(held.asked)
    }

    /// Records the outcome of a slice, and answers the request if it was the last or failed.
    async fn response(&self, received: Received<SliceResponse>) -> Result<Disposition, Failure> {
        let _handling = Handling::of(&received);
        let request = &received.envelope().request_id;
        if self.records.is_answered(request).await? {
            return Ok(Disposition::complete());
        }
        let record: Option<PlanRecord> = self.records.find(request).await?;
        let record = record.ok_or_else(|| Failure::reject("the request has no plan"))?;
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
        let by = received.envelope().id.to_string();
        let answer = AnswerRecord { by };
        if self.records.record(request, answer.clone()).await? != answer {
            return Ok(Disposition::complete());
        }
        let response = match failure {
            Some(reason) => ImageResponse::failed(request, reason),
            None => self.join(request, plan).await?,
        };
        Ok(Disposition::complete().then(&response))
    }

    /// Joins a request's slices, all of which have a record, unless one failed. Returns the response.
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
        let (store, runtime) = (self.store.clone(), Handle::current());
        // Not the name of an earlier attempt, which may have failed in the middle of a part.
        let name = BlobName::mosaic(request, RequestId::random().as_str());
        let mut mosaic = MosaicWriter::buffered(&store, name.clone());
        let joining = spawn_blocking(move || {
            let slice = |index: u32| {
                let slice = store.read(&blobs[index as usize], MAX_RENDERED);
                Ok::<_, Failure>(runtime.block_on(slice)?)
            };
            let joined = join(&plan, &mut mosaic, slice);
            mosaic.get_mut().failed |= joined.is_err();
            joined?;
            mosaic.flush()?;
            Ok::<_, Failure>(mosaic.get_ref().size)
        });
        let bytes = joining.await??;
        tracing::info!(%request, slices = plan.slices(), "joined the mosaic");
        let (width, height) = plan.output_size();
        let figures = Figures {
            width,
            height,
            bytes,
            tiles: plan.columns() * plan.rows(),
            slices: plan.slices(),
            retries,
        };
        Ok(ImageResponse::done(request, name, figures))
    }
}

fn failure(sequence: u32, slices: u32, reason: &str) -> String {
    format!("slice {} of {slices}: {reason}", sequence + 1)
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

//! The image processor: renders slices, with no state but the tile libraries that it has loaded.

use std::time::Instant;

use queue_runtime::receive::Poisoned;
use queue_runtime::{Disposition, Failure, FollowUp, QueueService, Received, StartError};
use tokio::task::spawn_blocking;

use super::role::{Handling, Role, Settings, reason};
use crate::storage::blob::BlobName;
use crate::storage::libraries::Libraries;
use crate::storage::records::{PlanRecord, Records};
use crate::storage::store::Store;
use crate::workflow::messages::{ImageResponse, SliceOutcome, SliceRequest, SliceResponse};
use pictures::{Slice, TileSize};

/// The size limit of a slice of a source picture, in bytes: more than the largest takes uncompressed.
const MAX_SLICE: u64 = 256 << 20;

/// Starts an image processor.
///
/// # Errors
/// [`StartError`] if a setting is invalid.
pub fn processor(
    service: &QueueService,
    store: &Store,
    settings: &Settings,
) -> Result<Role, StartError> {
    let processor = Processor {
        store: store.clone(),
        records: Records::new(store.clone()),
        libraries: Libraries::new(store.clone()),
        settings: *settings,
        client: service.client_id().to_string(),
    };
    let listener = service.listener_with(processor, Processor::handle);
    let listener = settings
        .listen(service, listener, settings.tasks)
        .on_poison(slice_failed);
    let listener = listener.start()?.stop_on_drop();
    Ok(Role::listening("processor", vec![listener]))
}

#[derive(Debug, Clone)]
struct Processor {
    store: Store,
    records: Records,
    libraries: Libraries,
    settings: Settings,
    client: String,
}

impl Processor {
    async fn handle(self, received: Received<SliceRequest>) -> Result<Disposition, Failure> {
        let request = received.envelope().request_id.clone();
        let processed = self.process(received).await;
        self.records.unless_answered(&request, processed).await
    }

    async fn process(&self, received: Received<SliceRequest>) -> Result<Disposition, Failure> {
        let _handling = Handling::of(&received);
        let begun = Instant::now();
        let blob = BlobName::rendered(&received.envelope().request_id, received.slice_sequence);
        if !self.store.exists(&blob).await? {
            let rendered = self.render(&received).await?;
            self.store.create(&blob, rendered).await?;
        }
        tokio::time::sleep(self.settings.pace.saturating_sub(begun.elapsed())).await;
        Ok(Disposition::complete().then(&SliceResponse {
            slice_sequence: received.slice_sequence,
            outcome: SliceOutcome::Rendered {
                blob,
                by: self.client.clone(),
                millis: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            },
            attempts: received.attempt(),
        }))
    }

    async fn render(&self, received: &Received<SliceRequest>) -> Result<Vec<u8>, Failure> {
        let asked = received.message();
        let plan: Option<PlanRecord> = self.records.find(&received.envelope().request_id).await?;
        let plan = plan.and_then(|plan| plan.plan());
        let plan = plan.ok_or_else(|| Failure::reject("the request has no valid plan"))?;
        let tile_size = TileSize::try_from(asked.tile_size)?;
        let (sequence, tint) = (asked.slice_sequence, asked.tint);
        let slice = self.store.read(&asked.slice, MAX_SLICE).await?;
        let renderer = self.libraries.renderer(asked.library).await?;
        let rendering = move || {
            let slice = Slice::decode(&slice, &plan, sequence)?;
            Ok(renderer.render(&slice, tile_size, tint).to_png())
        };
        spawn_blocking(rendering).await?
    }
}

/// Reports the failure of a slice whose request was moved to the poison queue, or of the whole image
/// request if the message cannot be decoded.
fn slice_failed(poisoned: Poisoned<SliceRequest>) -> Option<FollowUp> {
    let reason = reason(&poisoned.record);
    Some(match poisoned.message {
        Some(asked) => FollowUp::new(&SliceResponse {
            slice_sequence: asked.slice_sequence,
            outcome: SliceOutcome::Failed { reason },
            attempts: poisoned.record.attempts,
        }),
        None => {
            let reason = format!("a slice request could not be handled: {reason}");
            FollowUp::new(&ImageResponse::failed(
                &poisoned.envelope.request_id,
                reason,
            ))
        }
    })
}

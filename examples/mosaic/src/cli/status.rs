use mosaic::storage::records::{Records, RequestState};
use mosaic::workflow::messages::{ImageOutcome, ImageRequest};
use queue_runtime::{Failure, RequestId};

use super::arguments::Status;
use super::location::existing_store;

/// Lists all requests, or describes one.
pub(crate) async fn status(arguments: Status) -> Result<(), Failure> {
    let records = Records::new(existing_store(&arguments.location).await?);
    let Some(id) = arguments.request_id else {
        let mut requests = records.states().await?;
        requests.sort_by(|a, b| a.record.submitted.cmp(&b.record.submitted));
        if requests.is_empty() {
            println!("there are no requests");
        }
        for request in &requests {
            print(request);
        }
        return Ok(());
    };
    let Some(found) = records.state(&RequestId::new(id.clone())?).await? else {
        return Err(format!("find the request `{id}`: there is no record of it").into());
    };
    print(&found);
    describe(&found.record.asked);
    for (slice, reason) in found.failures() {
        println!("  slice {}: {reason}", slice + 1);
    }
    Ok(())
}

/// A line for a request, and another for the reason if it failed.
fn print(found: &RequestState) {
    let (record, recorded) = (&found.record, found.slices.len());
    let state = match (&found.outcome, found.planned()) {
        (Some(ImageOutcome::Done { .. }), _) => "done".to_owned(),
        (Some(ImageOutcome::Failed { .. }), _) => "failed".to_owned(),
        (None, None) => "not planned".to_owned(),
        (None, Some(all)) if recorded == all as usize => "joining".to_owned(),
        (None, Some(_)) => "rendering".to_owned(),
    };
    let slices = match found.planned() {
        Some(all) => format!("{recorded} of {all} slices"),
        None => "no slices".to_owned(),
    };
    println!(
        "{}  {}  {}  {state}: {slices}, {} attempts, {} failures",
        record.request,
        record.submitted,
        record.client,
        found.attempts(),
        found.failures().count(),
    );
    if let Some(ImageOutcome::Failed { reason }) = &found.outcome {
        println!("  {reason}");
    }
}

fn describe(asked: &ImageRequest) {
    println!(
        "  {}: {} tiles across, tile size {}, {} slices, tint {}, library {}",
        asked.image_name, asked.across, asked.tile_size, asked.slices, asked.tint, asked.library,
    );
}

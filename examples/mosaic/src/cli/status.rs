use crate::storage::cleaning;
use crate::storage::records::{Records, RequestState};
use queue_runtime::{Failure, RequestId};

use super::arguments::{Clean, Status};
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
        requests.iter().for_each(print);
        return Ok(());
    };
    let Some(found) = records.state(&RequestId::new(id.clone())?).await? else {
        return Err(format!("find the request `{id}`: there is no record of it").into());
    };
    print(&found);
    let asked = &found.record.asked;
    println!(
        "  {}: {} tiles across, tile size {}, {} slices, tint {}, library {}",
        asked.image_name, asked.across, asked.tile_size, asked.slices, asked.tint, asked.library,
    );
    for (slice, reason) in found.failures() {
        println!("  slice {}: {reason}", slice + 1);
    }
    Ok(())
}

/// Removes the blobs that are no longer needed.
pub(crate) async fn clean(arguments: Clean) -> Result<(), Failure> {
    let store = existing_store(&arguments.location).await?;
    let removed = cleaning::clean(&store, arguments.all).await?;
    let megabytes = removed.bytes as f64 / 1e6;
    println!("removed {} blobs, {megabytes:.1} MB", removed.blobs);
    Ok(())
}

/// A line for a request, and another for the reason if it failed.
fn print(found: &RequestState) {
    let (record, recorded) = (&found.record, found.slices.len());
    let slices = match found.planned() {
        Some(all) => format!("{recorded} of {all} slices"),
        None => "no slices".to_owned(),
    };
    println!(
        "{}  {}  {}  {}: {slices}, {} attempts, {} failures",
        record.request,
        record.submitted,
        record.client,
        found.stage(),
        found.attempts(),
        found.failures().count(),
    );
    if let Some(reason) = found.reason() {
        println!("  {reason}");
    }
}

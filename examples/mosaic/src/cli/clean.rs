use mosaic::storage::cleaning;
use queue_runtime::Failure;

use super::arguments::Clean;
use super::location::existing_store;

/// Removes the blobs that are no longer needed.
pub(crate) async fn clean(arguments: Clean) -> Result<(), Failure> {
    let store = existing_store(&arguments.location).await?;
    let removed = cleaning::clean(&store, arguments.all).await?;
    let megabytes = removed.bytes as f64 / 1e6;
    println!("removed {} blobs, {megabytes:.1} MB", removed.blobs);
    Ok(())
}

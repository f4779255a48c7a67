//! Removal of blobs that are no longer needed.
//!
//! A client removes the picture, the slices and the mosaic of its request when it has saved the mosaic.
//! The records stay, so that late messages of the request have no effect. [`clean`] removes these, too, and
//! what interrupted clients have left.

use std::collections::HashSet;

use queue_runtime::RequestId;

use crate::storage::blob::{BlobName, Container};
use crate::storage::records::Records;
use crate::storage::store::{Removed, Store, StoreError};

/// Removes the blobs of a finished request, except its records.
///
/// # Errors
/// [`StoreError::Storage`].
pub async fn discard(store: &Store, request: &RequestId) -> Result<Removed, StoreError> {
    let own = [BlobName::source(request), BlobName::mosaic(request)];
    let mut removed = Removed::default();
    for blob in own {
        removed += store.remove(&blob).await?;
    }
    for container in [Container::SliceRequest, Container::SliceResponse] {
        let folder = BlobName::new(container, &[request.as_str()]);
        removed += store
            .remove_where(container, |path| is_below(path, &folder))
            .await?;
    }
    Ok(removed)
}

/// Removes all blobs except those of requests that have no response, and of their libraries; with `all`,
/// those too. Call it while no client uploads.
///
/// # Errors
/// [`StoreError`].
pub async fn clean(store: &Store, all: bool) -> Result<Removed, StoreError> {
    let (mut folders, mut mosaics, mut libraries) =
        <(HashSet<_>, HashSet<_>, HashSet<_>)>::default();
    if !all {
        for found in Records::new(store.clone()).open_requests().await? {
            folders.insert(found.folder);
            if let Some((request, record)) = found.taken_in {
                mosaics.insert(path(&BlobName::mosaic(&request)));
                libraries.insert(record.asked.library.to_string());
            }
        }
    }
    let mut removed = Removed::default();
    for container in Container::ALL {
        let is_kept = |path: &str| {
            let first = path.split('/').next().unwrap_or(path);
            match container {
                Container::ImageLibrary => libraries.contains(first),
                Container::ImageOutput => mosaics.contains(path),
                // Named by hashes. Brokers remove those that are no longer needed.
                Container::Results => !all,
                _ => folders.contains(first),
            }
        };
        removed += store.remove_where(container, |path| !is_kept(path)).await?;
    }
    Ok(removed)
}

/// The path of a blob in its container.
fn path(blob: &BlobName) -> String {
    blob.location().1.to_string()
}

fn is_below(path: &str, folder: &BlobName) -> bool {
    let (_, folder) = folder.location();
    path.strip_prefix(folder.as_ref())
        .is_some_and(|rest| rest.starts_with('/'))
}

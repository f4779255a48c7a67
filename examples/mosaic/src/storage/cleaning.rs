//! Removal of blobs that are no longer needed.
//!
//! A client removes the picture, the slices and the mosaic of its request when it has saved the mosaic.
//! The records stay, so that late messages of the request have no effect. [`clean`] removes records, too, and what
//! interrupted clients have left.

use std::collections::HashSet;

use queue_runtime::RequestId;

use crate::storage::blob::{BlobName, Container};
use crate::storage::records::{Record, Records};
use crate::storage::store::{Removed, Store, StoreError};
use crate::workflow::messages::ImageOutcome;

/// Removes the blobs of a finished request, except its records.
pub async fn discard(store: &Store, request: &RequestId) -> Result<Removed, StoreError> {
    let mut removed = Removed::default();
    for container in Container::OF_REQUESTS {
        let folder = BlobName::new(container, &[request.as_str()]);
        removed += store.remove_where(&format!("{folder}/"), |_| true).await?;
    }
    Ok(removed)
}

/// Removes all blobs except those of requests that have no response, and of their libraries; with `all`,
/// those too. Call `clean` while no client uploads.
pub async fn clean(store: &Store, all: bool) -> Result<Removed, StoreError> {
    let (mut folders, mut libraries) = <(HashSet<_>, HashSet<_>)>::default();
    let records = Records::new(store.clone());
    for folder in records.folders().await?.into_iter().filter(|_| !all) {
        let response = BlobName::try_from(format!("status/{folder}/{}", ImageOutcome::FILE));
        if let Ok(response) = response
            && store.exists(&response).await?
        {
            continue;
        }
        if let Some((_, record)) = records.taken_in(&folder).await? {
            libraries.insert(record.asked.library.to_string());
        }
        folders.insert(folder);
    }
    let is_kept = |name: &str| {
        let mut parts = name.split('/');
        match (parts.next(), parts.next()) {
            (Some(container), Some(library)) if container == Container::ImageLibrary.name() => {
                libraries.contains(library)
            }
            (_, Some(folder)) => folders.contains(folder),
            // The mark of the store itself.
            (_, None) => true,
        }
    };
    store.remove_where("", |name| !is_kept(name)).await
}

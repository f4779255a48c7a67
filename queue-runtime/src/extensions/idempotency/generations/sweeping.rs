//! Removing the objects of keys whose results are no longer kept.
//!
//! An object's age is the time from its modification to that of a marker which the sweep writes first, by the object
//! store's clock. Of a key, the last generation is removed last, and the end of that generation after everything else,
//! so that a finished key never looks unfinished.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt as _};
use queue_core::idempotency::Swept;
use queue_core::internal::between;
use queue_core::{Result, Timestamp};

use super::failed;
use super::objects::{Name, retention};
use crate::extensions::objects::Folder;
use crate::kernel::policy::jitter;

/// How long objects are kept that hold no result: a stopped owner must not find its generation gone and begun anew.
const KEEP_WITHOUT_RESULT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The most keys that one sweep removes.
const MAX_KEYS: usize = 1000;
/// The most results that one sweep reads to learn how long they are kept.
const MAX_READ: u64 = 2000;
/// The folder and the object whose modification is the store's current time. No key has a folder of this name.
const NOW: [&str; 2] = ["sweep", "now"];

/// Removes objects that are no longer needed.
pub(super) async fn sweep(
    objects: &dyn ObjectStore,
    prefix: &Path,
    folder: Option<&Folder>,
) -> Result<Swept> {
    let swept = sweep_at(objects, prefix, Duration::ZERO).await?;
    if let Some(folder) = folder {
        let now = Timestamp::now();
        for file in folder.list_partial().await? {
            if between(file.created, now) > KEEP_WITHOUT_RESULT {
                folder.delete_partial(&file.name).await?;
            }
        }
    }
    Ok(swept)
}

/// Removes objects that are no longer needed this long after the store's current time.
pub(super) async fn sweep_at(
    objects: &dyn ObjectStore,
    prefix: &Path,
    later: Duration,
) -> Result<Swept> {
    let marker = NOW
        .iter()
        .fold(prefix.clone(), |path, part| path.join(*part));
    objects
        .put(&marker, Bytes::new().into())
        .await
        .map_err(failed)?;
    let now = objects.head(&marker).await.map_err(failed)?.last_modified;
    let age = |object: &ObjectMeta| {
        let age = now.signed_duration_since(object.last_modified);
        age.to_std().unwrap_or_default().saturating_add(later)
    };
    let mut listed = objects.list(Some(prefix));
    let mut keys: BTreeMap<Path, Vec<(Name, ObjectMeta)>> = BTreeMap::new();
    while let Some(object) = listed.try_next().await.map_err(failed)? {
        let Some(name) = object.location.filename().and_then(Name::parse) else {
            continue;
        };
        let parts: Vec<_> = object.location.parts().collect();
        let folder = parts[..parts.len() - 1].iter().cloned().collect();
        keys.entry(folder).or_default().push((name, object));
    }
    let mut keys: Vec<_> = keys.into_values().collect();
    // Each sweep begins at another key, so that all keys have their turn.
    let first = (jitter() * keys.len() as f64) as usize;
    let first = first.min(keys.len());
    keys.rotate_left(first);
    let (mut removed, mut read) = (0, 0);
    for mut key in keys {
        key.sort_by_key(|(name, _)| order(*name));
        let Some((last, newest)) = key.last() else {
            continue;
        };
        let youngest = key.iter().map(|(_, object)| age(object)).min();
        let keep = match last {
            // Reading the end would be a request for each key at each sweep, so young ends are left alone.
            Name::End(_) if age(newest) >= Duration::from_secs(60) => {
                read += 1;
                if read > MAX_READ {
                    return Ok(Swept::new(removed, false));
                }
                kept(objects, &newest.location).await
            }
            _ => KEEP_WITHOUT_RESULT,
        };
        if youngest.is_none_or(|age| age < keep) {
            continue;
        }
        if removed == MAX_KEYS {
            return Ok(Swept::new(removed, true));
        }
        for (_, object) in &key {
            match objects.delete(&object.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        removed += 1;
    }
    Ok(Swept::new(removed, false))
}

/// Sorts by generation, the end last.
fn order(name: Name) -> (u64, Name) {
    (name.generation(), name)
}

/// Returns how long the object that ends a generation is kept.
async fn kept(objects: &dyn ObjectStore, name: &Path) -> Duration {
    let read = async { objects.get(name).await?.bytes().await };
    let bytes = match read.await {
        Ok(bytes) => bytes,
        Err(object_store::Error::NotFound { .. }) => return KEEP_WITHOUT_RESULT,
        Err(error) => {
            tracing::warn!(object = %name, %error, "failed to read an object of a result store; the sweep keeps the object");
            return Duration::MAX;
        }
    };
    match retention(&bytes) {
        Ok(retention) => retention.unwrap_or(KEEP_WITHOUT_RESULT),
        Err(problem) => {
            tracing::warn!(object = %name, problem, "an object of a result store has an unknown form; the sweep keeps the object");
            Duration::MAX
        }
    }
}

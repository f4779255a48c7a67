use std::path::Path;

use crate::storage::libraries::MAX_LIBRARY;
use crate::storage::store::Store;
use crate::workflow::queues::create_queues;
use queue_runtime::{Failure, QueueService};

use super::arguments::Location;
use super::job::Files;

/// Opens the queues and the blobs.
pub(super) async fn open(
    data: &Path,
    location: &Location,
) -> Result<(QueueService, Store), Failure> {
    let store = store(data, location).await?;
    let queue = match &location.queue {
        Some(url) => url.clone(),
        None => {
            std::fs::create_dir_all(data)?;
            format!("sqlite:{}", data.join("queues.db").display())
        }
    };
    let mut service = QueueService::builder(&queue);
    if let Some(client_id) = &location.client_id {
        service = service.client_id(client_id);
    }
    if let Ok(url) = std::env::var("NATS_URL") {
        #[cfg(feature = "nats")]
        {
            let nats = queue_runtime::notify::NatsNotifier::connect(&url).await?;
            service = service.notifier(std::sync::Arc::new(nats));
        }
        #[cfg(not(feature = "nats"))]
        return Err(format!(
            "`NATS_URL` is set to {url:?}, and this program was built without the feature `nats`; build it with \
             `cargo build --release -p mosaic --features nats`"
        )
        .into());
    }
    let service = service.connect().await?;
    create_queues(&service).await?;
    Ok((service, store))
}

async fn store(data: &Path, location: &Location) -> Result<Store, Failure> {
    Ok(match account(location) {
        Some(url) => Store::beside(&QueueService::connect(url).await?).await?,
        None => Store::folder(&data.join("blobs"))?,
    })
}

/// Opens blobs that other commands have written.
pub(super) async fn existing_store(location: &Location) -> Result<Store, Failure> {
    let data = location.folder();
    if account(location).is_none() && !data.join("blobs").is_dir() {
        let data = data.display();
        return Err(
            format!("open `{data}`: there are no blobs; choose a folder with `--data`").into(),
        );
    }
    store(&data, location).await
}

/// Reads the pictures in a container beside the blobs, with their names.
pub(super) async fn pictures(container: &str, location: &Location) -> Result<Files, Failure> {
    let failed =
        |reason: &str| Failure::from(format!("read the container `{container}`: {reason}"));
    let Some(url) = account(location) else {
        return Err(failed(
            "the blobs are in a folder; use `--library FOLDER`, or name a storage account",
        ));
    };
    let store = Store::in_container(&QueueService::connect(url).await?, container)?;
    let files = store.pictures(MAX_LIBRARY).await?;
    if files.is_empty() {
        return Err(failed(
            "it has no pictures; blobs that end in .png, .jpg or .jpeg were looked for",
        ));
    }
    Ok(files)
}

/// Whether requests outlive a run without a data folder of its own.
pub(crate) fn is_durable(location: &Location) -> bool {
    location.data.is_some() || account(location).is_some()
}

/// The account that has the blobs, unless a folder has them.
fn account(location: &Location) -> Option<&str> {
    match (&location.blobs, &location.queue) {
        (Some(blobs), _) => Some(blobs),
        (None, Some(queue)) if location.data.is_none() && is_azure(queue) => Some(queue),
        _ => None,
    }
}

/// Whether queues are in a storage account. Connection strings have no scheme.
fn is_azure(queue: &str) -> bool {
    let (scheme, _) = queue.split_once(':').unwrap_or_default();
    matches!(scheme, "azure" | "https" | "http")
        || !scheme.chars().all(|c| c.is_ascii_lowercase())
        || (scheme.is_empty() && queue.contains('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_in_an_account_are_recognised_by_their_url() {
        for queue in [
            "azure://acct",
            "https://acct.queue.core.windows.net/?sig=x",
            "UseDevelopmentStorage=true",
            "accountname=a;accountkey=b;QueueEndpoint=http://127.0.0.1:1/a",
        ] {
            assert!(is_azure(queue), "{queue}");
        }
        for queue in ["sqlite:queues.db", "memory:", "ftp:x", "junk"] {
            assert!(!is_azure(queue), "{queue}");
        }
    }
}

use std::path::Path;

use mosaic::storage::store::Store;
use mosaic::workflow::queues::create_queues;
use queue_runtime::{Failure, QueueService};

use super::arguments::Location;

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
        service = service.notifier(nats::connect(&url).await?);
    }
    let service = service.connect().await?;
    create_queues(&service).await?;
    Ok((service, store))
}

async fn store(data: &Path, location: &Location) -> Result<Store, Failure> {
    Ok(match account(location) {
        Some(Account::Blobs(url)) => azure::open(url).await?,
        Some(Account::Queues(url)) => azure::open_beside(url).await?,
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
pub(super) async fn pictures(
    container: &str,
    location: &Location,
) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    match account(location) {
        Some(Account::Blobs(url)) => azure::pictures(url, container).await,
        Some(Account::Queues(url)) => azure::pictures_beside(url, container).await,
        None => Err(format!(
            "read the container `{container}`: the blobs are in a folder; use `--library FOLDER`, or name a \
             storage account"
        )
        .into()),
    }
}

/// Whether requests outlive a run without a data folder of its own.
pub(crate) fn is_durable(location: &Location) -> bool {
    location.data.is_some() || account(location).is_some()
}

/// The account that has the blobs.
enum Account<'a> {
    Blobs(&'a str),
    Queues(&'a str),
}

fn account(location: &Location) -> Option<Account<'_>> {
    match (&location.blobs, &location.queue) {
        (Some(blobs), _) => Some(Account::Blobs(blobs)),
        (None, Some(queue)) if location.data.is_none() && is_azure(queue) => {
            Some(Account::Queues(queue))
        }
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

#[cfg(feature = "azure")]
mod azure {
    use mosaic::storage::azure::{Account, AzureError, container_pictures};
    use mosaic::storage::store::Store;
    use queue_runtime::Failure;

    pub(super) async fn open(blobs: &str) -> Result<Store, AzureError> {
        Store::azure(Account::parse(blobs)).await
    }

    pub(super) async fn open_beside(queue: &str) -> Result<Store, AzureError> {
        Store::azure(Account::beside(queue)).await
    }

    type Pictures = Result<Vec<(String, Vec<u8>)>, Failure>;

    pub(super) async fn pictures(blobs: &str, container: &str) -> Pictures {
        Ok(container_pictures(Account::parse(blobs), container).await?)
    }

    pub(super) async fn pictures_beside(queue: &str, container: &str) -> Pictures {
        Ok(container_pictures(Account::beside(queue), container).await?)
    }
}

#[cfg(not(feature = "azure"))]
mod azure {
    use mosaic::storage::store::Store;
    use queue_runtime::Failure;

    const MISSING_FEATURE: &str = "this program was built without the feature `azure`; build it with \
                                   `cargo build --release -p mosaic --features azure`";

    pub(super) async fn open(_blobs: &str) -> Result<Store, Failure> {
        Err(MISSING_FEATURE.into())
    }

    pub(super) async fn open_beside(_queue: &str) -> Result<Store, Failure> {
        Err(MISSING_FEATURE.into())
    }

    type Pictures = Result<Vec<(String, Vec<u8>)>, Failure>;

    pub(super) async fn pictures(_blobs: &str, _container: &str) -> Pictures {
        Err(MISSING_FEATURE.into())
    }

    pub(super) async fn pictures_beside(_queue: &str, _container: &str) -> Pictures {
        Err(MISSING_FEATURE.into())
    }
}

#[cfg(feature = "nats")]
mod nats {
    use std::sync::Arc;

    use queue_runtime::Failure;
    use queue_runtime::notify::{NatsNotifier, Notifier};

    pub(super) async fn connect(url: &str) -> Result<Arc<dyn Notifier>, Failure> {
        Ok(Arc::new(NatsNotifier::connect(url).await?))
    }
}

#[cfg(not(feature = "nats"))]
mod nats {
    use std::sync::Arc;

    use queue_runtime::Failure;
    use queue_runtime::notify::Notifier;

    pub(super) async fn connect(_url: &str) -> Result<Arc<dyn Notifier>, Failure> {
        Err(
            "`NATS_URL` is set, and this program was built without the feature `nats`; build it with \
             `cargo build --release -p mosaic --features nats`"
                .into(),
        )
    }
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
            "AccountName=a;AccountKey=b;QueueEndpoint=http://127.0.0.1:1/a",
            "accountname=a;accountkey=b",
        ] {
            assert!(is_azure(queue), "{queue}");
        }
        for queue in ["sqlite:queues.db", "memory:", "ftp:x", "junk"] {
            assert!(!is_azure(queue), "{queue}");
        }
    }
}

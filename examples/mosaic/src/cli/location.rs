use std::path::Path;

use mosaic::store::Store;
use queue_runtime::{Failure, QueueService};

use super::arguments::Location;

/// Opens the queues and the blobs.
pub(super) async fn open(
    data: &Path,
    location: &Location,
) -> Result<(QueueService, Store), Failure> {
    let store = match (&location.blobs, &location.queue) {
        (Some(blobs), _) => azure::open(blobs).await?,
        (None, Some(queue)) if location.data.is_none() && is_azure(queue) => {
            azure::open_beside(queue).await?
        }
        _ => Store::folder(&data.join("blobs"))?,
    };
    let queue = match &location.queue {
        Some(url) => url.clone(),
        None => {
            std::fs::create_dir_all(data)?;
            format!("sqlite:{}", data.join("queues.db").display())
        }
    };
    Ok((QueueService::connect(&queue).await?, store))
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
    use mosaic::azure::{Account, AzureError};
    use mosaic::store::Store;

    pub(super) async fn open(blobs: &str) -> Result<Store, AzureError> {
        Store::azure(Account::parse(blobs)).await
    }

    pub(super) async fn open_beside(queue: &str) -> Result<Store, AzureError> {
        Store::azure(Account::beside(queue)).await
    }
}

#[cfg(not(feature = "azure"))]
mod azure {
    use mosaic::store::Store;
    use queue_runtime::Failure;

    const MISSING_FEATURE: &str = "this program was built without the feature `azure`; build it with \
                                   `cargo build --release -p mosaic --features azure`";

    pub(super) async fn open(_blobs: &str) -> Result<Store, Failure> {
        Err(MISSING_FEATURE.into())
    }

    pub(super) async fn open_beside(_queue: &str) -> Result<Store, Failure> {
        Err(MISSING_FEATURE.into())
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

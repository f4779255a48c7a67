use mosaic::storage::blob::BlobName;
use mosaic::storage::cleaning;
use mosaic::storage::records::RequestRecord;
use mosaic::workflow::client::Job;
use queue_runtime::RequestId;

use crate::workflow::support::{Fixture, GUARD, job, library};

#[tokio::test(flavor = "multi_thread")]
async fn cleaning_spares_requests_without_a_response() {
    let done = Fixture::new().await;
    let mut roles = done.start(1);
    done.submit(job()).await;
    let mosaic = done.mosaic().await;
    done.drained().await;
    roles.shutdown(GUARD).await;

    let open = Fixture {
        request: RequestId::random(),
        client: done.client.clone(),
        records: done.records.clone(),
        service: done.service.clone(),
        store: done.store.clone(),
    };
    let library = library(30);
    open.submit(Job { library, ..job() }).await;
    let cleaned = cleaning::clean(&done.store, false).await.expect("cleaned");
    // A picture, 4 slices twice, a mosaic, 8 records; a library.
    assert_eq!(cleaned.blobs, 18 + 1);
    let record = done.records.find::<RequestRecord>(&done.request).await;
    assert_eq!(record.expect("readable"), None);

    let _roles = open.start(1);
    assert!(open.mosaic().await.len() > mosaic.len() / 2);
    let all = cleaning::clean(&done.store, true).await.expect("cleaned");
    assert_eq!(all.blobs, 18 + 1);
    let source = BlobName::source(&open.request);
    assert!(!done.store.exists(&source).await.expect("the store answers"));
}

//! A process of one role.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::policy::{Objective, StorageRetry};
use queue_runtime::{Failure, QueueService};
use tokio::runtime::Runtime;

use crate::books::Books;
use crate::{Kind, Place, agent as workers, roles};

/// The promise for the records, a part of that for the invoices.
pub(crate) const RECORDS: Objective = Objective::p99(RECORDS_WITHIN);

/// Within how long nearly all records are to be handled.
pub(crate) const RECORDS_WITHIN: Duration = Duration::from_secs(20);

/// The time that handlers have to finish after the end of the input.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a role until the end of the standard input.
pub(crate) fn role(kind: Kind, place: &Place) -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let service = runtime.block_on(connect(&place.url))?;
    if kind == Kind::Agent {
        return runtime.block_on(workers::agent(&service, place));
    }
    let books = Arc::new(Books::open(&service, &place.data)?);
    runtime.block_on(async { roles::start(kind, &service, &books) })?;
    let attached = runtime.block_on(async { queue_agent::attach(&service) })?;
    if attached.is_attached() {
        runtime.block_on(attached.stopped());
    } else {
        until_end_of_input();
    }
    runtime.block_on(service.shutdown(GRACE));
    Ok(())
}

/// Connects to the queues. The container is for the payloads of work items on Azure. Each step can be repeated, so submissions
/// of unknown outcome are repeated.
pub(crate) async fn connect(url: &str) -> Result<QueueService, Failure> {
    let service = QueueService::builder(url)
        .payload_container("billing-payloads")
        .storage_retry(StorageRetry::default().with_unknown());
    Ok(service.connect().await?)
}

/// Blocks until the end of the standard input. A read error is an end, too.
pub(crate) fn until_end_of_input() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

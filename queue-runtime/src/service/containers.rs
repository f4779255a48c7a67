//! What a service keeps in containers beside the queues.

use std::sync::Arc;

use queue_core::backend::{Attachments, Backend};
use queue_core::clock::Clock;
use queue_core::idempotency::ResultStore;
use queue_core::{Error, ErrorKind, Operation};

use super::connect_error::ConnectErrorKind;
use crate::extensions::payloads::PayloadStore;
#[cfg(feature = "object-store")]
use crate::idempotency::ObjectResults;
use crate::kernel::settings::InvalidSetting;

#[derive(Debug)]
pub(super) enum Payloads {
    Store(Arc<dyn PayloadStore>),
    Container(String),
}

/// Opens the store of results in a container beside the queues, unless their storage keeps results.
pub(super) fn results_beside(
    backend: &dyn Backend,
    container: Option<String>,
    payloads: Option<&Payloads>,
    clock: &Arc<dyn Clock>,
) -> Result<Option<Arc<dyn ResultStore>>, ConnectErrorKind> {
    let Some(name) = container.filter(|_| backend.results().is_none()) else {
        return Ok(None);
    };
    let is_of_payloads = matches!(payloads, Some(Payloads::Container(other)) if *other == name);
    InvalidSetting::check(
        !is_of_payloads,
        "container of results",
        format_args!("`{name}`"),
        || "another one than that of the payloads".to_owned(),
    )?;
    let container = beside(backend, &name)?;
    #[cfg(feature = "object-store")]
    return Ok(container.map(|container| {
        let results = ObjectResults::in_container(container).with_clock(Arc::clone(clock));
        Arc::new(results) as Arc<dyn ResultStore>
    }));
    #[cfg(not(feature = "object-store"))]
    Ok({
        let _ = (container, clock);
        None
    })
}

/// Returns a container beside the queues, unless their storage keeps payloads itself.
pub(super) fn beside(
    backend: &dyn Backend,
    container: &str,
) -> Result<Option<Arc<dyn PayloadStore>>, ConnectErrorKind> {
    let store = backend.payload_store(container)?;
    if store.is_none() && backend.capabilities().attachments == Attachments::Unsupported {
        let refused = Error::new(ErrorKind::Unsupported, Operation::Open);
        let detail = format!(
            "this storage has no container `{container}` beside its queues: use a store of your own"
        );
        return Err(ConnectErrorKind::Storage(refused.with_detail(detail)));
    }
    Ok(store)
}

//! Which errors a retry can mend. Handlers return them by `?`, and the listeners classify them by type.

use queue_runtime::{ListenerBuilder, Message, OnError};

use crate::storage::library_store::LibraryStoreError;
use crate::storage::store::StoreError;
use pictures::{JoinError, PlanError, SliceError, SourceError, TileSizeError};

/// Has the listener reject messages whose blobs or settings are at fault, and retry after other errors.
pub(super) fn classify<M: Message>(listener: ListenerBuilder<M>) -> ListenerBuilder<M> {
    listener
        .classify(on_store_error)
        .classify(|error: &LibraryStoreError| match error {
            LibraryStoreError::Store(error) => on_store_error(error),
            LibraryStoreError::Stopped(_) => OnError::Retry,
            LibraryStoreError::Library(_)
            | LibraryStoreError::TooMany { .. }
            | LibraryStoreError::TooLarge { .. }
            | LibraryStoreError::Altered(_) => OnError::Reject,
        })
        .classify(|error: &JoinError| match error {
            JoinError::Write(_) => OnError::Retry,
            _ => OnError::Reject,
        })
        .classify(|_: &TileSizeError| OnError::Reject)
        .classify(|_: &SourceError| OnError::Reject)
        .classify(|_: &PlanError| OnError::Reject)
        .classify(|_: &SliceError| OnError::Reject)
}

fn on_store_error(error: &StoreError) -> OnError {
    match error {
        StoreError::Storage { .. } => OnError::Retry,
        StoreError::Missing(_) | StoreError::TooLarge { .. } | StoreError::Record { .. } => {
            OnError::Reject
        }
    }
}

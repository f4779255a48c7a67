//! Which errors a retry can mend. Handlers return them by `?`, and the listeners classify them by type.

use queue_runtime::{ListenerBuilder, Message, OnError};

use crate::storage::library_store::LibraryStoreError;
use crate::storage::store::StoreError;
use pictures::PictureError;

/// Has the listener reject messages whose blobs or settings are at fault, and retry after other errors.
pub(super) fn classify<M: Message>(listener: ListenerBuilder<M>) -> ListenerBuilder<M> {
    listener
        .classify(on_store_error)
        .classify(on_picture_error)
        .classify(|error: &LibraryStoreError| match error {
            LibraryStoreError::Store(error) => on_store_error(error),
            LibraryStoreError::Library(error) => on_picture_error(error),
            LibraryStoreError::Stopped(_) => OnError::Retry,
            LibraryStoreError::TooMany { .. }
            | LibraryStoreError::TooLarge { .. }
            | LibraryStoreError::Altered(_) => OnError::Reject,
        })
}

fn on_picture_error(error: &PictureError) -> OnError {
    if error.is_permanent() {
        OnError::Reject
    } else {
        OnError::Retry
    }
}

fn on_store_error(error: &StoreError) -> OnError {
    match error {
        StoreError::Storage { .. } => OnError::Retry,
        StoreError::Missing(_) | StoreError::TooLarge { .. } | StoreError::Record { .. } => {
            OnError::Reject
        }
    }
}

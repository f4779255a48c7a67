//! Which errors a retry can mend. Handlers return them by `?`, and the consumers classify them by type.

use queue_runtime::receive::OnError;

use crate::storage::library_store::LibraryStoreError;
use crate::storage::store::StoreError;
use pictures::PictureError;

/// Has a consumer reject messages whose blobs or settings are at fault, and retry after other errors.
macro_rules! classify {
    ($consumer:expr) => {
        $consumer
            .classify($crate::workflow::roles::errors::on_store_error)
            .classify($crate::workflow::roles::errors::on_picture_error)
            .classify($crate::workflow::roles::errors::on_library_error)
    };
}

pub(super) use classify;

pub(super) fn on_library_error(error: &LibraryStoreError) -> OnError {
    match error {
        LibraryStoreError::Store(error) => on_store_error(error),
        LibraryStoreError::Library(error) => on_picture_error(error),
        LibraryStoreError::Stopped(_) => OnError::Retry,
        LibraryStoreError::TooMany { .. }
        | LibraryStoreError::TooLarge { .. }
        | LibraryStoreError::Altered(_) => OnError::Reject,
    }
}

pub(super) fn on_picture_error(error: &PictureError) -> OnError {
    if error.is_permanent() {
        OnError::Reject
    } else {
        OnError::Retry
    }
}

pub(super) fn on_store_error(error: &StoreError) -> OnError {
    match error {
        StoreError::Storage { .. } => OnError::Retry,
        StoreError::Missing(_) | StoreError::TooLarge { .. } | StoreError::Record { .. } => {
            OnError::Reject
        }
    }
}

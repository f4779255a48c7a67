//! Errors of the object store and its objects.

use queue_core::{Error, ErrorKind, Operation, Retry};

/// Converts an error of the object store.
pub(super) fn failed(error: object_store::Error) -> Error {
    let (kind, retry) = match &error {
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => (ErrorKind::Denied, Retry::Permanent),
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            (ErrorKind::Unsupported, Retry::Permanent)
        }
        object_store::Error::InvalidPath { .. }
        | object_store::Error::UnknownConfigurationKey { .. } => {
            (ErrorKind::InvalidInput, Retry::Permanent)
        }
        _ => (ErrorKind::Unreachable, Retry::Temporary),
    };
    Error::new(kind, Operation::Idempotency)
        .with_retry(retry)
        .with_source(error)
}

/// Returns the error of an object that cannot be understood.
pub(super) fn corrupt(problem: String) -> Error {
    Error::new(ErrorKind::Corrupt, Operation::Idempotency).with_detail(problem)
}

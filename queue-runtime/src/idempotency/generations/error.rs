//! Errors of the object store and its objects.

use queue_core::{Error, ErrorKind, Operation, RetryAdvice};

/// Converts an error of the object store.
pub(super) fn failed(error: object_store::Error) -> Error {
    let (kind, retry) = match &error {
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => {
            (ErrorKind::Denied, RetryAdvice::Permanent)
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            (ErrorKind::Unsupported, RetryAdvice::Permanent)
        }
        object_store::Error::InvalidPath { .. }
        | object_store::Error::UnknownConfigurationKey { .. } => {
            (ErrorKind::InvalidInput, RetryAdvice::Permanent)
        }
        _ => (ErrorKind::Unreachable, RetryAdvice::Temporary),
    };
    Error::new(kind, Operation::Idempotency)
        .with_retry(retry)
        .with_source(error)
}

/// Returns the error of an object that cannot be understood.
pub(super) fn corrupt(problem: String) -> Error {
    Error::new(ErrorKind::Corrupt, Operation::Idempotency).with_detail(problem)
}

//! What the stores over an `object_store` share.

use std::fs::DirBuilder;

use queue_core::{Error, ErrorKind, Operation, RetryAdvice};

/// Converts an error of the object store.
pub(crate) fn failed(error: object_store::Error, operation: Operation) -> Error {
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
    Error::new(kind, operation)
        .with_retry(retry)
        .with_source(error)
}

/// Creates a folder, and those above it, for the current user alone.
#[cfg(unix)]
pub(crate) fn create_private(folder: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)
}

/// Creates a folder, and those above it.
#[cfg(not(unix))]
pub(crate) fn create_private(folder: &std::path::Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).create(folder)
}

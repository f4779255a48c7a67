//! Errors of the object store and its objects.

use queue_core::{Error, ErrorKind, Operation};

use crate::extensions::objects;

/// Converts an error of the object store.
pub(super) fn failed(error: object_store::Error) -> Error {
    objects::failed(error, Operation::Idempotency)
}

/// Returns the error of an object that cannot be understood.
pub(super) fn corrupt(problem: String) -> Error {
    Error::new(ErrorKind::Corrupt, Operation::Idempotency).with_detail(problem)
}

use queue_core::Error;
use queue_core::payload_store::StoredObject;

/// What a sweep did, or would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SweepReport {
    /// Payloads that were looked at.
    pub examined: u64,
    /// Payloads that were deleted.
    pub payloads: u64,
    /// Their size, in bytes.
    pub bytes: u64,
    /// Marks that were deleted.
    pub marks: u64,
    /// Temporary files of killed processes that were deleted.
    pub partial: u64,
    /// Objects whose names are not those of payloads. They are left.
    pub unknown: u64,
}

/// An object that a sweep deletes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SweepStep<'a> {
    /// The object.
    pub object: &'a StoredObject,
    /// Why nobody needs it.
    pub reason: SweepReason,
}

/// Why nobody needs an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SweepReason {
    /// The message of the payload is done, or was never submitted.
    Done,
    /// The message of the payload has expired.
    Expired,
    /// The queue of the payload is empty.
    Cleared,
    /// It is a mark whose retention is over.
    OldMark,
    /// It is the temporary file of a process that was killed.
    Partial,
}

/// A sweep that ended before its end.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the sweep stopped after {} payloads: {error}", so_far.payloads)]
#[non_exhaustive]
pub struct SweepError {
    /// What was deleted until then.
    pub so_far: SweepReport,
    /// The error.
    pub error: Error,
}

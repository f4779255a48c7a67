use std::time::Duration;

use bytes::Bytes;

use super::model::PutReceipt;
use crate::idempotency::WorkKey;

/// The compare-and-swap of a recorded value, on which a [conditional put](super::Backend::put_if) or an
/// [`apply`](super::Op::Swap) depends.
///
/// ```
/// use std::time::Duration;
/// use queue_core::backend::Swap;
/// use queue_core::idempotency::WorkKey;
///
/// // At most one message about the order within an hour.
/// let swap = Swap::new(WorkKey::new("reminder", "order-1234"), "sent", Duration::from_secs(3600));
/// assert_eq!(swap.expected, None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swap {
    /// The key of the value. It must not be in use in [`results`](super::Backend::results), which may be the same
    /// table.
    pub key: WorkKey,
    /// The value that must be recorded. `None`, the default, if there must be none, except one whose retention is
    /// over.
    pub expected: Option<Bytes>,
    /// The value that takes its place.
    pub value: Bytes,
    /// How long the new value is kept, in the storage's time. With zero, nothing is recorded afterwards.
    pub retention: Duration,
}

/// The answer to a [conditional put](super::Backend::put_if).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutIf {
    /// The value was recorded and the message, if there was one, was put.
    Swapped(Option<PutReceipt>),
    /// Another value is recorded, or none, and nothing was changed.
    Differs(Option<Bytes>),
}

impl Swap {
    /// Records `value` where nothing is recorded.
    #[must_use]
    pub fn new(key: WorkKey, value: impl Into<Bytes>, retention: Duration) -> Self {
        Self {
            key,
            expected: None,
            value: value.into(),
            retention,
        }
    }

    /// Forgets whatever is recorded: add the value that must be recorded by [`in_place_of`](Self::in_place_of).
    #[must_use]
    pub fn forget(key: WorkKey) -> Self {
        Self::new(key, Bytes::new(), Duration::ZERO)
    }

    /// Sets the value that must be recorded.
    #[must_use]
    pub fn in_place_of(mut self, expected: impl Into<Bytes>) -> Self {
        self.expected = Some(expected.into());
        self
    }
}

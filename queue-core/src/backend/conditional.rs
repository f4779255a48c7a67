use std::time::Duration;

use bytes::Bytes;

use super::model::PutReceipt;
use crate::idempotency::WorkKey;

/// A compare-and-swap of a recorded value: the condition of a [conditional put](super::Backend::put_if) or an
/// [`apply`](super::Op::Swap).
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
    /// The expected value. With `None`, the default, no value may be recorded; one whose retention is over counts as
    /// none.
    pub expected: Option<Bytes>,
    /// The new value.
    pub value: Bytes,
    /// How long the new value is kept, in the storage's time. With zero, nothing is recorded afterwards.
    pub retention: Duration,
    /// Whether the new value counts as none as soon as the message is gone that is put with it: by the same
    /// [`put_if`](super::Backend::put_if), or by the last put before it in an [`apply`](super::Op::Swap). It does not matter how
    /// the message goes: it is deleted or expires, or its queue is cleared or deleted. A swap that expects the value still
    /// replaces it.
    pub ends_with_message: bool,
}

/// The answer to a [conditional put](super::Backend::put_if).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutIf {
    /// The value was recorded and the message, if there was one, was put.
    Swapped(Option<PutReceipt>),
    /// The recorded value, if there is one, is not the expected one. Nothing was changed.
    Differs(Option<Bytes>),
}

impl Swap {
    /// Creates a swap that records `value` if no value is recorded.
    #[must_use]
    pub fn new(key: WorkKey, value: impl Into<Bytes>, retention: Duration) -> Self {
        Self {
            key,
            expected: None,
            value: value.into(),
            retention,
            ends_with_message: false,
        }
    }

    /// Creates a swap that removes the recorded value. Set the expected value with [`in_place_of`](Self::in_place_of).
    #[must_use]
    pub fn forget(key: WorkKey) -> Self {
        Self::new(key, Bytes::new(), Duration::ZERO)
    }

    /// Has the new value end with the [message](Self::ends_with_message) that is put with it.
    #[must_use]
    pub fn ending_with_message(mut self) -> Self {
        self.ends_with_message = true;
        self
    }

    /// Sets the expected value.
    #[must_use]
    pub fn in_place_of(mut self, expected: impl Into<Bytes>) -> Self {
        self.expected = Some(expected.into());
        self
    }
}

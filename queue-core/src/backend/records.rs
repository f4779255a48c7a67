//! Records: values and claims under keys, in the storage's time, and the swaps that change them.

use std::time::Duration;

use bytes::Bytes;

use super::messages::PutReceipt;
use crate::idempotency::{Claim, ClaimStatus, Owner, WorkKey};

/// A conditional change of the record of a key: of an [`apply`](super::Op::Swap), a
/// [conditional put](super::BackendExt::put_if) or a [result store](crate::idempotency::ResultStore::swap).
///
/// ```
/// use std::time::Duration;
/// use queue_core::backend::{Swap, SwapIf};
/// use queue_core::idempotency::WorkKey;
///
/// // At most one message about the order within an hour.
/// let swap = Swap::new(WorkKey::new("reminder", "order-1234"), "sent", Duration::from_secs(3600));
/// assert_eq!(swap.condition, SwapIf::Absent);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swap {
    /// The key of the record.
    pub key: WorkKey,
    /// What must be recorded under the key, so that the swap is carried out.
    pub condition: SwapIf,
    /// What the swap leaves recorded: with `None`, nothing.
    pub record: Option<Record>,
}

/// The condition of a [`Swap`]. A value counts as none when its retention is over, and when the message is gone
/// [with which it ends](Record::ends_with_message); a claim whose lease has ended is still a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapIf {
    /// Nothing is recorded.
    Absent,
    /// Nothing is recorded, or a claim whose lease has ended.
    AbsentOrEnded,
    /// This value is recorded. A value that counts as none only because its message is gone is still replaced.
    Value(Bytes),
    /// A claim of this owner is recorded, whether or not its lease has ended. A value that the owner has recorded is found
    /// even once its retention is over.
    Owner(Owner),
}

/// A value, or a claim, that a [`Swap`] records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Whose claim is recorded, or was finished by the value.
    pub owner: Owner,
    /// The value. `None` for a claim.
    pub value: Option<Bytes>,
    /// The lease of a claim, or the retention of a value, in the storage's time.
    pub duration: Duration,
    /// Whether the value counts as none as soon as the message is gone that is put with it: by the same
    /// [`put_if`](super::BackendExt::put_if), or by the last put before the swap in an [`apply`](super::Op::Swap). A
    /// message is gone when it is deleted or expires, or its queue is cleared or deleted.
    pub ends_with_message: bool,
}

/// What a [`Swap`] has found in place of what it requires.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundRecord {
    /// Whose claim is recorded, or was finished by the value.
    pub owner: Owner,
    /// The value. `None` for a claim.
    pub value: Option<Bytes>,
    /// The time until the end of the lease or of the retention, in the storage's time; zero after the end.
    pub remaining: Duration,
}

/// The answer of a [result store](crate::idempotency::ResultStore::swap) to a [`Swap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The swap was carried out.
    Swapped,
    /// Something else than the swap requires is recorded, or nothing. Nothing was changed.
    Differs(Option<FoundRecord>),
}

/// The answer to a [conditional put](super::BackendExt::put_if).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutIf {
    /// The record was changed and the message, if there was one, was put.
    Swapped(Option<PutReceipt>),
    /// The recorded value, if there is one, is not the expected one. Nothing was changed.
    Differs(Option<Bytes>),
}

/// The owner of values that are recorded without a claim.
const NOBODY: Owner = Owner::from_u64(0);

impl Swap {
    /// Creates a swap that records a value, and keeps it for `retention`, if nothing is recorded.
    #[must_use]
    pub fn new(key: WorkKey, value: impl Into<Bytes>, retention: Duration) -> Self {
        let record = Record::value(NOBODY, value, retention);
        Self::of(key, SwapIf::Absent, Some(record))
    }

    /// Creates a swap that removes the recorded value. Set the expected value with [`in_place_of`](Self::in_place_of).
    #[must_use]
    pub fn forget(key: WorkKey) -> Self {
        Self::of(key, SwapIf::Absent, None)
    }

    /// Creates the swap that [begins](crate::idempotency::ResultStore::begin) the work of a key.
    #[must_use]
    pub fn begin(key: WorkKey, owner: Owner, lease: Duration) -> Self {
        Self::of(
            key,
            SwapIf::AbsentOrEnded,
            Some(Record::claim(owner, lease)),
        )
    }

    /// Creates the swap that [renews](crate::idempotency::ResultStore::renew) a claim.
    #[must_use]
    pub fn renew(key: WorkKey, claim: Claim, lease: Duration) -> Self {
        let owner = claim.owner;
        Self::of(key, SwapIf::Owner(owner), Some(Record::claim(owner, lease)))
    }

    /// Creates the swap that [finishes](crate::idempotency::ResultStore::finish) a claim.
    #[must_use]
    pub fn finish(
        key: WorkKey,
        claim: Claim,
        result: impl Into<Bytes>,
        retention: Duration,
    ) -> Self {
        let owner = claim.owner;
        let record = Record::value(owner, result, retention);
        Self::of(key, SwapIf::Owner(owner), Some(record))
    }

    /// Creates the swap that [releases](crate::idempotency::ResultStore::release) a claim.
    #[must_use]
    pub fn release(key: WorkKey, claim: Claim) -> Self {
        Self::of(key, SwapIf::Owner(claim.owner), None)
    }

    fn of(key: WorkKey, condition: SwapIf, record: Option<Record>) -> Self {
        Self {
            key,
            condition,
            record,
        }
    }

    /// Has the new value end with the [message](Record::ends_with_message) that is put with it.
    #[must_use]
    pub fn ending_with_message(mut self) -> Self {
        if let Some(record) = &mut self.record {
            record.ends_with_message = true;
        }
        self
    }

    /// Has the swap also replace a claim whose lease has ended, if it expects that nothing is recorded.
    #[must_use]
    pub fn or_ended(mut self) -> Self {
        if self.condition == SwapIf::Absent {
            self.condition = SwapIf::AbsentOrEnded;
        }
        self
    }

    /// Sets the expected value.
    #[must_use]
    pub fn in_place_of(mut self, expected: impl Into<Bytes>) -> Self {
        self.condition = SwapIf::Value(expected.into());
        self
    }

    /// The value that the swap records, if any.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        self.record.as_ref()?.value.as_ref()
    }
}

impl SwapIf {
    /// Returns whether the condition holds for what is recorded. An engine passes a value whose retention is over
    /// only to [`Owner`](Self::Owner).
    #[must_use]
    pub fn holds(&self, found: Option<&FoundRecord>) -> bool {
        match self {
            Self::Absent => found.is_none(),
            Self::AbsentOrEnded => found.is_none_or(FoundRecord::is_ended_claim),
            Self::Value(value) => found.is_some_and(|found| found.value.as_ref() == Some(value)),
            Self::Owner(owner) => {
                found.is_some_and(|found| found.value.is_none() && found.owner == *owner)
            }
        }
    }
}

impl Record {
    /// Creates a claim with a lease of this length.
    #[must_use]
    pub fn claim(owner: Owner, lease: Duration) -> Self {
        Self {
            owner,
            value: None,
            duration: lease,
            ends_with_message: false,
        }
    }

    /// Creates a value that is kept for this time.
    #[must_use]
    pub fn value(owner: Owner, value: impl Into<Bytes>, retention: Duration) -> Self {
        Self {
            owner,
            value: Some(value.into()),
            duration: retention,
            ends_with_message: false,
        }
    }
}

impl FoundRecord {
    /// Creates what was found: a value, or with `None` a claim.
    #[must_use]
    pub fn new(owner: Owner, value: Option<Bytes>, remaining: Duration) -> Self {
        Self {
            owner,
            value,
            remaining,
        }
    }

    fn is_ended_claim(&self) -> bool {
        self.value.is_none() && self.remaining.is_zero()
    }
}

impl SwapOutcome {
    /// Returns whether the claim was held when a swap that requires its [owner](SwapIf::Owner) was asked for. A claim that
    /// is finished counts as held, so that a repeated call has the answer of the first one.
    #[must_use = "a claim may be lost"]
    pub fn status_of(&self, claim: Claim) -> ClaimStatus {
        match self {
            Self::Swapped => ClaimStatus::Held,
            Self::Differs(Some(found)) if found.owner == claim.owner => ClaimStatus::Held,
            Self::Differs(_) => ClaimStatus::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_holds_for_what_it_names_and_nothing_else() {
        let (own, other) = (Owner::from_u64(1), Owner::from_u64(2));
        let second = Duration::from_secs(1);
        let claim = |owner, remaining| Some(FoundRecord::new(owner, None, remaining));
        let value =
            |value: &'static str| Some(FoundRecord::new(own, Some(Bytes::from(value)), second));
        let conditions = [
            SwapIf::Absent,
            SwapIf::AbsentOrEnded,
            SwapIf::Value(Bytes::from("own")),
            SwapIf::Owner(own),
        ];
        for (found, holds) in [
            (None, [true, true, false, false]),
            (claim(own, second), [false, false, false, true]),
            (claim(own, Duration::ZERO), [false, true, false, true]),
            (claim(other, second), [false, false, false, false]),
            (claim(other, Duration::ZERO), [false, true, false, false]),
            (value("own"), [false, false, true, false]),
            (value("other"), [false, false, false, false]),
        ] {
            let held = conditions.each_ref().map(|one| one.holds(found.as_ref()));
            assert_eq!(held, holds, "{found:?}");
        }
    }
}

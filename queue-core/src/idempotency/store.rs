//! The stores of results, and the protocols of claims over conditional changes of records.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::recorded::{Forgotten, Recorded, RecordedPage, unsupported};
use super::{Claim, Owner, WorkKey};
use crate::backend::{FoundRecord, PageMark, Swap, SwapOutcome};
use crate::clock::Clock;
use crate::error::Result;

/// The largest result that is recorded, in bytes: 8 MiB, as much as the messages of one operation of a local storage.
/// While a store writes a large result, other work may have to wait.
pub const MAX_RESULT: usize = 8 * 1024 * 1024;

/// A store of the results of work, so that work that is requested several times is done once.
///
/// A worker [begins](Self::begin) the work of a key, renews its claim while it works, and [finishes](Self::finish) it
/// with a result. Whoever begins a key that is in flight learns so, and later, until the result's retention is over,
/// gets the result.
///
/// ```text
///                 begin            finish
///      nothing ──────────► claimed ──────────► done ──┐
///         ▲                │  ▲  │                    │
///         │        release │  │  │ renewed too late,  │ the retention is over
///         └────────────────┘  └──┘ begun by another   │
///         ▲                                           │
///         └───────────────────────────────────────────┘
/// ```
///
/// # Guarantees
/// - Of all that begin one key, at most one at a time holds its claim, as long as it renews the claim within the
///   lease.
/// - At most one claim of a key is finished, and its result is what all later calls of `begin` return.
/// - A claim that was taken over can never be finished: `finish` and `renew` return [`ClaimStatus::Lost`]. Until
///   another owner takes the work over, a claim whose lease has ended can be finished and renewed.
///
/// A worker that stops for longer than its lease, and then goes on, may work at the same time as the worker that has
/// taken over, but only one of the two can record its result.
///
/// # Repeated calls
/// Every operation may be repeated after an error, whatever its [outcome](crate::Outcome): `begin` by the same
/// owner returns the same claim, and `finish` of a finished claim returns [`ClaimStatus::Held`].
///
/// # Time
/// Leases are timed by [`clock`](Self::clock), or by a time that all users of the store share. A store never compares
/// the clocks of two machines.
///
/// # Cancel safety
/// An operation whose future was dropped may still be carried out.
#[async_trait]
pub trait ResultStore: fmt::Debug + Send + Sync + 'static {
    /// The clock by which the caller times renewals and pauses.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Returns what tells the store from all others. A claim of a store that is the [own](crate::backend::Backend::results)
    /// one of the storage with a message may be [finished](crate::backend::Swap::finish) by the
    /// [`apply`](crate::backend::Backend::apply) that deletes the message, without a call of [`finish`](Self::finish).
    ///
    /// The default is `None`, for stores of their own, and for those around another store that have to see each call.
    fn identity(&self) -> Option<&StoreIdentity> {
        None
    }

    /// Changes the record of a key on a condition. The methods for claims, [`begin`](Self::begin) to
    /// [`release`](Self::release), are protocols over `swap`. A value that [ends with its
    /// message](crate::backend::Record::ends_with_message) counts here until its retention is over.
    ///
    /// The default implementation is for stores that have no conditional changes in their own time, but implement the
    /// methods for claims.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported); [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if
    /// the record cannot be read; an error if the store is not available.
    async fn swap(&self, swap: &Swap) -> Result<SwapOutcome> {
        let _ = swap;
        Err(unsupported())
    }

    /// Begins the work of a key for `owner`, with a lease of this length.
    ///
    /// # Errors
    /// If the store is not available. After an error nothing is known about the key, and the work must not be done.
    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<ClaimOutcome> {
        let fresh = Claim::new(owner, 0);
        let begin = Swap::begin(key.clone(), owner, lease);
        let found = match self.swap(&begin).await? {
            SwapOutcome::Swapped => return Ok(ClaimOutcome::Fresh(fresh)),
            SwapOutcome::Differs(found) => found,
        };
        Ok(match found {
            Some(FoundRecord {
                value: Some(result),
                ..
            }) => ClaimOutcome::Done(result),
            // The answer to an earlier call was lost.
            Some(found) if found.owner == owner => match self.renew(key, fresh, lease).await? {
                ClaimStatus::Held => ClaimOutcome::Fresh(fresh),
                ClaimStatus::Lost => IN_FLIGHT_UNTIL_NOW,
            },
            Some(FoundRecord { remaining, .. }) => ClaimOutcome::InFlight { remaining },
            None => IN_FLIGHT_UNTIL_NOW,
        })
    }

    /// Renews a claim: its lease begins anew.
    ///
    /// # Errors
    /// If the store is not available. After an error, the claim lasts until the end of the lease last confirmed.
    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> Result<ClaimStatus> {
        let renewed = self.swap(&Swap::renew(key.clone(), claim, lease)).await?;
        Ok(renewed.status_of(claim))
    }

    /// Records the result of a claim, and keeps it for `retention`. The result is durable when `finish` returns
    /// [`ClaimStatus::Held`]. The framework records no more than [`MAX_RESULT`] bytes, in any store.
    ///
    /// # Errors
    /// If the store is not available. The result may have been recorded if the outcome is unknown.
    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> Result<ClaimStatus> {
        let finish = Swap::finish(key.clone(), claim, result, retention);
        Ok(self.swap(&finish).await?.status_of(claim))
    }

    /// Gives up a claim without a result, so that another consumer can begin the work at once. `release` has no effect
    /// on a claim that is finished or lost.
    ///
    /// # Errors
    /// If the store is not available. A claim that is not released ends with its lease.
    async fn release(&self, key: &WorkKey, claim: Claim) -> Result<()> {
        let released = self.swap(&Swap::release(key.clone(), claim)).await?;
        match released {
            SwapOutcome::Swapped | SwapOutcome::Differs(_) => Ok(()),
        }
    }

    /// Removes records no longer needed, above all results whose retention is over. One call does a bounded amount of
    /// work.
    ///
    /// # Errors
    /// If the store is not available.
    async fn sweep(&self) -> Result<Swept>;

    /// Returns the records of a scope, or of all scopes, without their values: the first page, or the one at `from`.
    /// Changes nothing. A page holds up to `max` records, at most [`MAX_RECORDS`](super::MAX_RECORDS); it may hold fewer, or none, without
    /// being the last.
    ///
    /// Results whose retention is over are left out. A record that nobody touches between the pages is on exactly one
    /// page. An unreadable record is listed as [damaged](super::RecordState::Damaged), and does not hide other records.
    ///
    /// A list may contain the storage's own records, such as those of schedules, beside the application's. The default
    /// implementation is for stores that cannot list.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported); [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)
    /// for a mark that no page of this scope has returned; if the store is not available.
    async fn list(
        &self,
        scope: Option<&str>,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedPage> {
        let _ = (scope, from, max);
        Err(unsupported())
    }

    /// Returns the record of a key with its value, or `None` if there is no record, or its retention is over. Changes
    /// nothing.
    ///
    /// The default implementation is for stores that cannot look records up.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported); if the store is not available.
    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>> {
        let _ = key;
        Err(unsupported())
    }

    /// Removes the record of a key, also if damaged. The work of the key is done again when requested next, because
    /// nothing shows any more that it was done; under the key of a [swap](crate::backend::Swap), the next swap that
    /// expects no value succeeds.
    ///
    /// Work in flight is not forgotten while its lease lasts. Once the lease of the work has ended, the record is
    /// removed, and the claim is lost as if another owner had taken the work over. Repeating a call is safe.
    ///
    /// The default implementation is for stores that cannot look records up.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported);
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a record of the storage's own that must stay; an
    /// error if the store is not available.
    async fn forget(&self, key: &WorkKey) -> Result<Forgotten> {
        let _ = key;
        Err(unsupported())
    }
}

/// Tells a store from all others of this process, as long as it or a clone of it exists.
#[derive(Debug, Clone, Default)]
pub struct StoreIdentity(Arc<()>);

impl PartialEq for StoreIdentity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for StoreIdentity {}

/// The answer to a `begin` during which the record was removed: to be asked for again at once.
const IN_FLIGHT_UNTIL_NOW: ClaimOutcome = ClaimOutcome::InFlight {
    remaining: Duration::ZERO,
};

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: ResultStore + ?Sized> ResultStore for Arc<S> {
    fn clock(&self) -> Arc<dyn Clock> {
        (**self).clock()
    }

    fn identity(&self) -> Option<&StoreIdentity> {
        (**self).identity()
    }

    async fn swap(&self, swap: &Swap) -> Result<SwapOutcome> {
        (**self).swap(swap).await
    }

    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<ClaimOutcome> {
        (**self).begin(key, owner, lease).await
    }

    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> Result<ClaimStatus> {
        (**self).renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> Result<ClaimStatus> {
        (**self).finish(key, claim, result, retention).await
    }

    async fn release(&self, key: &WorkKey, claim: Claim) -> Result<()> {
        (**self).release(key, claim).await
    }

    async fn sweep(&self) -> Result<Swept> {
        (**self).sweep().await
    }

    async fn list(
        &self,
        scope: Option<&str>,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedPage> {
        (**self).list(scope, from, max).await
    }

    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>> {
        (**self).find(key).await
    }

    async fn forget(&self, key: &WorkKey) -> Result<Forgotten> {
        (**self).forget(key).await
    }
}

/// The answer to [`begin`](ResultStore::begin).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// No other consumer holds the work: the caller does the work, and finishes or releases the claim.
    Fresh(Claim),
    /// Another consumer has begun the work and not finished it.
    InFlight {
        /// The time until the lease of whoever has begun the work ends, if not renewed, after which to ask again.
        remaining: Duration,
    },
    /// The work is done, with this result.
    Done(Bytes),
}

/// Whether a claim was still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ClaimStatus {
    /// The claim was held, and `renew` or `finish` was carried out.
    Held,
    /// Another consumer has taken over the work, or the claim was removed, so `renew` or `finish` was not carried out.
    Lost,
}

/// What a [sweep](ResultStore::sweep) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Swept {
    /// The number of keys that were removed.
    pub removed: usize,
    /// Whether there may be more to remove.
    pub more: bool,
}

impl Swept {
    /// Creates the report of a sweep.
    #[must_use]
    pub fn new(removed: usize, more: bool) -> Self {
        Self { removed, more }
    }
}

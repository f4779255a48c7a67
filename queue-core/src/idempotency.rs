//! Idempotency: the keys by which repeated deliveries are recognised, and the stores of recorded results.

pub(crate) mod recorded;

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use uuid::Uuid;

use crate::backend::PageMark;
use crate::clock::Clock;
use crate::envelope::{MessageId, RequestId};
use crate::error::Result;
use crate::message::{EncodeError, KeyScope, Message, MessageType};
use crate::name::QueueName;
use crate::text::canonical;

use recorded::unsupported;

pub use recorded::{Forgotten, MAX_RECORDS, RecordState, Recorded, RecordedPage};

/// A key that identifies a unit of work, so that repeated deliveries of it can be recognised.
///
/// The key is the canonical JSON array of kind, request id and key fields, or the message id if the type declares
/// no key fields.
///
/// ```
/// use queue_core::{IdempotencyKey, MessageId};
///
/// let key = IdempotencyKey::from_id(&MessageId::new("order-1234")?);
/// assert_eq!(key.as_str(), "order-1234");
/// # Ok::<(), queue_core::InvalidId>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(pub(crate) String);

impl IdempotencyKey {
    /// Returns the key from the key fields of `message`, or `None` if it has none.
    ///
    /// # Errors
    /// [`EncodeErrorKind::Key`](crate::EncodeErrorKind::Key) if the value of a key field cannot be part of a key.
    pub fn declared<M: Message>(
        message: &M,
        request_id: &RequestId,
    ) -> Result<Option<Self>, EncodeError> {
        Ok(message
            .key()?
            .map(|fields| Self::of_fields(&M::TYPE, request_id, &fields)))
    }

    pub(crate) fn of_fields(
        message_type: &MessageType,
        request_id: &RequestId,
        fields: &[Value],
    ) -> Self {
        let mut parts = vec![Value::from(message_type.kind())];
        if message_type.key_scope() == KeyScope::Request {
            parts.push(Value::from(request_id.as_str()));
        }
        parts.extend_from_slice(fields);
        Self(canonical(Value::Array(parts)))
    }

    /// Creates the key of a message without key fields.
    #[must_use]
    pub fn from_id(id: &MessageId) -> Self {
        Self(id.as_str().to_owned())
    }

    /// Creates a key from the `subject` that its sender wrote.
    #[must_use]
    pub fn from_subject(subject: &str) -> Self {
        Self(subject.to_owned())
    }

    /// Returns whether `subject` is the key of a message of this kind. Foreign events may use the attribute `subject`
    /// for something else.
    #[must_use]
    pub fn is_of_kind(subject: &str, kind: &str) -> bool {
        let kind = canonical(Value::from(kind));
        subject
            .strip_prefix('[')
            .and_then(|rest| rest.strip_prefix(&*kind))
            .is_some_and(|rest| rest.starts_with([',', ']']))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Hides the key, which holds fields of the message.
impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey(…)")
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

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
/// A worker that stops for longer than its lease, and then goes on working, may work at the same time as the worker
/// that has taken over, but only one of the two can record its result.
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

    /// Begins the work of a key for `owner`, with a lease of this length.
    ///
    /// # Errors
    /// If the store is not available. After an error nothing is known about the key, and the work must not be done.
    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<ClaimOutcome>;

    /// Renews a claim: its lease begins anew.
    ///
    /// # Errors
    /// If the store is not available. The claim lasts until the end of the lease that was last confirmed.
    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> Result<ClaimStatus>;

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
    ) -> Result<ClaimStatus>;

    /// Gives up a claim without a result, so that another consumer can begin the work at once. Has no effect on a claim
    /// that is finished or lost.
    ///
    /// # Errors
    /// If the store is not available. A claim that is not released ends with its lease.
    async fn release(&self, key: &WorkKey, claim: Claim) -> Result<()>;

    /// Removes records that are no longer needed, above all results whose retention is over. One call does a bounded
    /// amount of work.
    ///
    /// # Errors
    /// If the store is not available.
    async fn sweep(&self) -> Result<Swept>;

    /// Returns the records of a scope, or of all scopes, without their values: the first page, or the one at `from`.
    /// Changes nothing. A page holds up to `max` records, at most [`MAX_RECORDS`]; it may hold fewer, or none, without
    /// being the last.
    ///
    /// Results whose retention is over are left out. A record that nobody touches between the pages is on exactly one
    /// page. A record that cannot be read is listed as [damaged](RecordState::Damaged), and does not hide other
    /// records.
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
    /// The default is for stores that cannot look records up.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported); if the store is not available.
    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>> {
        let _ = key;
        Err(unsupported())
    }

    /// Removes the record of a key, also one that is damaged. The work of the key is done again when it is requested
    /// next, because nothing shows any more that the work was done; under the key of a [swap](crate::backend::Swap),
    /// the next swap that expects no value succeeds.
    ///
    /// Work that is in flight is not forgotten while its lease lasts. Once the lease of the work has ended, the record
    /// is removed, and the claim is lost as if another owner had taken the work over. Repeating a call is safe.
    ///
    /// The default is for stores that cannot look records up.
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

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: ResultStore + ?Sized> ResultStore for Arc<S> {
    fn clock(&self) -> Arc<dyn Clock> {
        (**self).clock()
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

/// The key of a recorded result: unique within a scope. Keys are sorted by scope, then by key, byte by byte.
///
/// ```
/// use queue_core::idempotency::WorkKey;
///
/// let charge = WorkKey::new("charge", "order-1234");
/// assert_ne!(charge, WorkKey::new("ship", "order-1234"));
/// // A key without a scope has that of the function `once`.
/// assert_eq!(WorkKey::from("order-1234"), WorkKey::new("once", "order-1234"));
/// // It is shown with a hash, so that it can be logged.
/// assert_eq!(charge.to_string(), "charge #9a17964255e852ce");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkKey {
    scope: String,
    key: String,
}

/// The identity of one attempt to do some work: different for every attempt, also within one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u64);

/// The right to do the work of a key, and to record its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// The owner that began the work.
    pub owner: Owner,
    /// A number that the store gave to the claim. Later claims of a key have greater generations, if the store numbers
    /// claims.
    pub generation: u64,
}

/// The answer to [`begin`](ResultStore::begin).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// No other consumer holds the work: the caller does the work, and finishes or releases the claim.
    Fresh(Claim),
    /// Another consumer has begun the work and has not finished it.
    InFlight {
        /// The time until the lease of the other claim ends, if not renewed, after which to ask again.
        remaining: Duration,
    },
    /// The work is done, with this result.
    Done(Bytes),
}

/// Whether a claim was still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ClaimStatus {
    /// The claim was held, and the operation was carried out.
    Held,
    /// Another consumer has taken over the work, or the claim was removed. The operation was not carried out.
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

impl WorkKey {
    /// Creates a key within a scope, such as the name of an operation.
    #[must_use]
    pub fn new(scope: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            scope: scope.into(),
            key: key.into(),
        }
    }

    /// Creates the key of the work that a message of this queue asks for.
    #[must_use]
    pub fn of_message(queue: &QueueName, key: &IdempotencyKey) -> Self {
        Self::new(format!("queue {queue}"), key.as_str())
    }

    /// The scope.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// The key within the scope.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// The scope, and a hash of the key: keys are the application's data, which logs must not hold.
impl fmt::Display for WorkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hash, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, self.key.as_bytes()).as_u64_pair();
        write!(f, "{} #{hash:016x}", self.scope)
    }
}

impl fmt::Debug for WorkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkKey({self})")
    }
}

impl From<&str> for WorkKey {
    fn from(key: &str) -> Self {
        Self::new("once", key)
    }
}

impl From<String> for WorkKey {
    fn from(key: String) -> Self {
        Self::new("once", key)
    }
}

impl From<&IdempotencyKey> for WorkKey {
    fn from(key: &IdempotencyKey) -> Self {
        Self::new("once", key.as_str())
    }
}

impl From<IdempotencyKey> for WorkKey {
    fn from(key: IdempotencyKey) -> Self {
        Self::from(&key)
    }
}

impl Owner {
    /// Creates a random identity, different from the identities of all other attempts.
    #[must_use]
    pub fn random() -> Self {
        // The keys of a `RandomState` are random in each process, and differ between two states of a process.
        let process = u64::from(std::process::id());
        Self(RandomState::new().hash_one(process))
    }

    /// Creates an owner from its number.
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The owner's number.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:016x})", self.0)
    }
}

impl Claim {
    /// Creates a claim.
    #[must_use]
    pub fn new(owner: Owner, generation: u64) -> Self {
        Self { owner, generation }
    }
}

impl Swept {
    /// Creates the report of a sweep.
    #[must_use]
    pub fn new(removed: usize, more: bool) -> Self {
        Self { removed, more }
    }
}

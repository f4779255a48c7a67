use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::clock::BoxFuture;
use queue_core::idempotency::{Claim, ClaimOutcome, ClaimStatus, Owner, ResultStore, WorkKey};
use queue_core::internal::{json_error, to_json_perhaps_back};
use queue_core::{Error, ErrorKind, JsonError, Operation, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kernel::claim::{HeldClaim, finish_within};
use crate::kernel::policy::jitter;

/// Does some work once: returns its recorded result if it was done before.
///
/// Equal keys mean the same work, in all processes that use the store. If the work is in flight elsewhere, `once` waits
/// for its result. The result is recorded as JSON, of at most [`MAX_RESULT`](super::MAX_RESULT) bytes. An error of the
/// work is not recorded: the next call does the work again.
///
/// See [`Once`] for the settings, and [`ResultStore`] for what a store guarantees. A process that is killed after
/// the effect of the work and before its result is recorded leaves no trace of the work, which is then done once more.
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::idempotency::{MemoryResults, WorkKey};
/// use queue_runtime::once;
/// use queue_runtime::clock::SystemClock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn charge(_: u32) -> Result<String, std::io::Error> { Ok("receipt 7".into()) }
/// let store = MemoryResults::new(Arc::new(SystemClock::new()));
/// let order = 1234;
/// let receipt = once(&store, WorkKey::new("charge", order.to_string()), charge(order)).await?;
/// let again = once(&store, WorkKey::new("charge", order.to_string()), async {
///     Err::<String, _>(std::io::Error::other("not called"))
/// });
/// assert_eq!(again.await?, receipt);
/// # Ok(())
/// # }
/// ```
pub fn once<'a, S, F>(store: &S, key: impl Into<WorkKey>, work: F) -> Once<'a, F>
where
    S: ResultStore + Clone,
    F: Future + Send + 'a,
{
    Once {
        task: Task {
            store: Arc::new(store.clone()),
            key: key.into(),
            lease: Duration::from_secs(30),
            retention: super::DEFAULT_RETENTION,
            wait: Duration::from_secs(5 * 60),
        },
        work,
        borrows: PhantomData,
    }
}

/// Work that is about to be done [`once`]. Configure the `Once`, then `.await` it, on a Tokio runtime with timers
/// enabled.
///
/// While the work runs, a task of the runtime renews its claim. If renewing the claim fails for a whole lease, another
/// process may have taken the work over, and the work is dropped at its next `await`.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use queue_runtime::idempotency::MemoryResults;
/// use queue_runtime::once;
/// use queue_runtime::clock::SystemClock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryResults::new(Arc::new(SystemClock::new()));
/// let charge = async { Ok::<_, std::io::Error>("receipt 7".to_owned()) };
/// let day = Duration::from_secs(24 * 60 * 60);
/// let receipt = once(&store, "order-1234", charge).retention(day).wait(Duration::ZERO).await?;
/// assert_eq!(receipt, "receipt 7");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`OnceError`] tells whether the work was done.
///
/// # Cancel safety
/// If the future is dropped, the work is dropped, and another process can begin the work at once.
#[must_use = "the work is not done until this is awaited"]
pub struct Once<'a, F> {
    task: Task,
    work: F,
    borrows: PhantomData<&'a ()>,
}

/// What is to be done once, without the work itself.
#[derive(Debug)]
struct Task {
    store: Arc<dyn ResultStore>,
    key: WorkKey,
    lease: Duration,
    retention: Duration,
    wait: Duration,
}

/// An error of doing work [`once`].
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::once;
/// use queue_runtime::clock::SystemClock;
/// use queue_runtime::idempotency::{MemoryResults, OnceError, OnceErrorKind};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = MemoryResults::new(Arc::new(SystemClock::new()));
/// let work = async { "seven".parse::<u32>() };
/// match once(&store, "order-1234", work).await {
///     Ok(number) => println!("{number}"),
///     Err(OnceError { kind: OnceErrorKind::Work(error), .. }) => println!("the work failed, and may be tried again: {error}"),
///     Err(OnceError { kind: OnceErrorKind::NotRecorded { result, .. }, .. }) => println!("done, perhaps not for the last time: {result}"),
///     Err(error) => println!("{error}"),
/// }
/// # }
/// ```
#[non_exhaustive]
pub struct OnceError<T, E> {
    /// The key of the work.
    pub key: WorkKey,
    /// What is wrong.
    pub kind: OnceErrorKind<T, E>,
}

/// Why work was not done [`once`]. The kind of a [`OnceError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OnceErrorKind<T, E> {
    /// The work failed: nothing was recorded.
    #[error("{0}")]
    Work(E),
    /// The store is not available, and the call did not begin the work.
    #[error("the result store failed, and the work was not begun")]
    Store(#[source] Error),
    /// Another process is still doing the work after the maximum [wait](Once::wait), and this call did not do it.
    #[error("the work is still in flight elsewhere")]
    InFlight,
    /// The claim was lost while the work was running, so the work was dropped, and another process may have started it.
    #[error("the claim was lost, and another process may have taken over the work")]
    Lost,
    /// The work was done, and its result could not be recorded: the work may be done again. With a `source` of
    /// [`ErrorKind::TooLarge`], the result has more than [`MAX_RESULT`](super::MAX_RESULT) bytes, and each call does
    /// the work again: record where the result is instead, such as the name of a file. With a `source` of
    /// [`ErrorKind::InvalidInput`], the type does not read the result from JSON as it writes it; the JSON, if any was
    /// written, is recorded: later calls fail with [`OnceErrorKind::Result`], and do not do the work again.
    #[error("the work was done, and may be done again: its result was not recorded")]
    NotRecorded {
        /// The result.
        result: T,
        /// The cause. `None` if another process has taken the work over.
        #[source]
        source: Option<Error>,
    },
    /// The work was done before, and the recorded result is not of this type, or would be read as another value.
    #[error("the work was done before, and its result cannot be read")]
    Result(#[source] JsonError),
}

queue_core::debug_as_text!(OnceErrorKind<T, E>, T, E: fmt::Display);

queue_core::error_around!(kind in OnceError<T, E>, T, E: fmt::Display; |error, f| {
    write!(f, "failed to do `{}` once: {}", error.key, error.kind)
};
    /// Whether this call may have done the work. Work that failed may have been done in part.
    outcome: match &error.kind {
        OnceErrorKind::Store(_) | OnceErrorKind::InFlight | OnceErrorKind::Result(_) => Outcome::NotDone,
        OnceErrorKind::Work(_) | OnceErrorKind::Lost | OnceErrorKind::NotRecorded { .. } => Outcome::Unknown,
    }
);

/// The shortest and the longest pause between two looks at work that is in flight elsewhere.
const SHORTEST_LOOK: Duration = Duration::from_millis(50);
const LONGEST_LOOK: Duration = Duration::from_secs(2);

/// Follows the JSON of a result that its type would read as another value, and makes the record unreadable for every
/// type.
const OTHERWISE_READ: &[u8] = b"\n(read as another value)";

impl<F> Once<'_, F> {
    /// Sets the length of the lease, which is how long other processes wait if this process dies. The lease is renewed
    /// at half its length. The default is 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.task.lease = lease;
        self
    }

    /// Sets how long the result is kept. After the retention, the work may be done again. The default is 7 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.task.retention = retention;
        self
    }

    /// Sets the maximum time to wait while another process does the work. The default is 5 minutes.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.task.wait = wait;
        self
    }

    async fn run<T, E>(self) -> Result<T, OnceError<T, E>>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
    {
        let Self { task, work, .. } = self;
        let claim = match task.begin().await? {
            Begin::Ours(claim) => claim,
            Begin::Done(result) => return task.read(&result),
        };
        let done = tokio::select! {
            biased;
            () = claim.lost() => return Err(task.failed(OnceErrorKind::Lost)),
            done = work => done,
        };
        match done {
            Ok(result) => task.record(&claim, result).await,
            Err(error) => {
                claim.release().await;
                Err(task.failed(OnceErrorKind::Work(error)))
            }
        }
    }
}

impl Task {
    fn failed<T, E>(&self, kind: OnceErrorKind<T, E>) -> OnceError<T, E> {
        let key = self.key.clone();
        OnceError { key, kind }
    }

    /// Begins the work, or waits until it is done elsewhere.
    async fn begin<T, E>(&self) -> Result<Begin, OnceError<T, E>> {
        let clock = self.store.clock();
        let (owner, give_up_at) = (Owner::random(), clock.monotonic().saturating_add(self.wait));
        let mut look = SHORTEST_LOOK;
        loop {
            let asked_at = clock.monotonic();
            let begun = self.store.begin(&self.key, owner, self.lease).await;
            let begun = begun.map_err(|error| self.failed(OnceErrorKind::Store(error)))?;
            let remaining = match begun {
                ClaimOutcome::Fresh(claim) => return Ok(Begin::Ours(self.hold(claim, asked_at))),
                ClaimOutcome::Done(result) => return Ok(Begin::Done(result)),
                ClaimOutcome::InFlight { remaining } => remaining,
            };
            let left = give_up_at.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return Err(self.failed(OnceErrorKind::InFlight));
            }
            let pause = look.mul_f64(0.5 + jitter() / 2.0);
            clock
                .sleep(pause.min(remaining).max(SHORTEST_LOOK / 2).min(left))
                .await;
            look = (look * 2).min(LONGEST_LOOK);
        }
    }

    fn hold(&self, claim: Claim, asked_at: Duration) -> HeldClaim {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        HeldClaim::hold(
            store,
            key,
            claim,
            self.lease,
            asked_at,
            || {},
            |renewals| drop(tokio::spawn(renewals)),
        )
    }

    fn read<T: DeserializeOwned, E>(self, result: &[u8]) -> Result<T, OnceError<T, E>> {
        let read = serde_json::from_slice(result);
        read.map_err(|error| self.failed(OnceErrorKind::Result(json_error(&error))))
    }

    /// Records a result, and tries again for up to a lease while the store fails.
    async fn record<T: Serialize + DeserializeOwned, E>(
        self,
        claim: &HeldClaim,
        result: T,
    ) -> Result<T, OnceError<T, E>> {
        let encoded = encode(&result);
        let recorded = match encoded {
            Ok((json, unreadable)) => {
                let recorded = finish_within(claim, json.into(), self.retention, self.lease).await;
                recorded.map(|status| (status, unreadable))
            }
            Err(error) => Err(error),
        };
        let source = match recorded {
            Ok((ClaimStatus::Held, None)) => return Ok(result),
            Ok((ClaimStatus::Held, Some(unreadable))) => Some(unreadable),
            Ok((ClaimStatus::Lost, _)) => None,
            Err(error) => Some(error),
        };
        Err(self.failed(OnceErrorKind::NotRecorded { result, source }))
    }
}

/// Returns what is recorded of a result, and the reason if it cannot be read.
///
/// # Errors
/// If there is no JSON of the result.
fn encode<T: Serialize + DeserializeOwned>(result: &T) -> Result<(Vec<u8>, Option<Error>), Error> {
    let invalid = |detail: &str, cause: serde_json::Error| {
        let invalid = Error::new(ErrorKind::InvalidInput, Operation::Results);
        invalid.with_detail(detail).with_source(cause)
    };
    let encoded = to_json_perhaps_back(result);
    let (mut json, problem) =
        encoded.map_err(|error| invalid("the result cannot be written as JSON", error))?;
    if problem.is_some() && serde_json::from_slice::<T>(&json).is_ok() {
        // A later call must not return this JSON as the result.
        json.extend_from_slice(OTHERWISE_READ);
    }
    let unreadable = problem.map(|error| {
        let detail = "the result cannot be read back from JSON; it is recorded, and later calls fail \
                      without doing the work again";
        invalid(detail, error)
    });
    Ok((json, unreadable))
}

enum Begin {
    Ours(HeldClaim),
    Done(Bytes),
}

impl<'a, F, T, E> IntoFuture for Once<'a, F>
where
    F: Future<Output = Result<T, E>> + Send + 'a,
    T: Serialize + DeserializeOwned + Send + 'a,
    E: Send + 'a,
{
    type Output = Result<T, OnceError<T, E>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<F> fmt::Debug for Once<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

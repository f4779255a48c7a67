//! Sweeps: what collects the payloads that nobody needs.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_core::internal::debug_fields;
use queue_core::payload_store::StoredObject;
use queue_core::wire::StoredPayload;
use queue_core::{Error, ErrorKind, InvalidName, Operation, QueueName, Result, Timestamp};

use super::place::{DATA, DONE, IDENTITY, KEPT, PayloadPlace};
use crate::kernel::clock::Pace;

/// How long marks are kept, unless the sweep says otherwise.
const RETENTION: Duration = Duration::from_secs(30 * DAY);
/// How long after its message's expiry a payload may be needed: whoever holds the message then may move it, as long as a
/// lease lasts.
const MARGIN: Duration = Duration::from_secs(8 * DAY);
const DAY: u64 = 24 * 60 * 60;
/// Longer than it takes to submit a message.
const SUBMISSION: Duration = Duration::from_secs(60 * 60);
/// Longer than it takes to settle a message.
const SETTLEMENT: Duration = Duration::from_secs(60);
/// The folder in which a sweep learns the store's time.
const CLOCK: &str = "clock/";

/// A deletion of payloads that no message needs, from [`Payloads::sweep`]. Configure the sweep, then [`run`](Self::run)
/// it or do a [`dry_run`](Self::dry_run).
///
/// A payload is deleted with its message. A payload is left behind by a deletion that a killed process or an
/// unreachable store interrupted. A sweep deletes
///
/// - payloads whose message is done, or was never submitted: they have a mark;
/// - payloads of expired messages, eight days after the expiry;
/// - with [`cleared`](Self::cleared), payloads of queues that are empty;
/// - temporary files of payloads and marks, which a killed process leaves in a folder, after an hour;
/// - marks that are older than their [retention](Self::mark_retention).
///
/// A sweep takes a request for each payload in the store, and for each mark that it deletes. Several sweeps may run at
/// once, beside whatever else uses the store.
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::QueueService;
/// use queue_runtime::payloads::MemoryPayloads;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let payloads = Arc::new(MemoryPayloads::new());
/// let service = QueueService::builder("memory:").payloads(payloads).connect().await?;
/// let payloads = service.payloads().expect("just given");
/// let swept = payloads.sweep().run().await?;
/// println!("{} payloads of {} bytes are deleted", swept.payloads, swept.bytes);
/// # Ok(())
/// # }
/// ```
#[must_use = "a sweep does nothing until it is run"]
pub struct Sweep {
    payloads: Payloads,
    cleared: Vec<QueueName>,
    retention: Duration,
    interval: Option<Duration>,
    observer: Option<Observer>,
}

/// The payload store of a service, from [`QueueService::payloads`](crate::QueueService::payloads).
#[derive(Debug, Clone)]
pub struct Payloads {
    place: Arc<PayloadPlace>,
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
}

impl Payloads {
    pub(crate) fn new(
        place: Arc<PayloadPlace>,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            place,
            backend,
            clock,
        }
    }

    /// Deletes the payloads that no message needs. Configure the [`Sweep`], then [`run`](Sweep::run) it.
    pub fn sweep(&self) -> Sweep {
        Sweep {
            payloads: self.clone(),
            cleared: Vec::new(),
            retention: RETENTION,
            interval: None,
            observer: None,
        }
    }
}

type Observer = Box<dyn Fn(&SweepStep<'_>) + Send + Sync>;

impl Sweep {
    /// Also deletes payloads of the named `queues`, if all are empty: the payloads of messages that were deleted
    /// without their payloads, by [`AnyQueue::clear`](crate::AnyQueue::clear), with their queue, or by another program.
    /// Name together the queues among which messages are moved: a queue and its poison queues.
    ///
    /// Cleared queues are read twice, in the order given, a minute apart. The sweep fails if a cleared queue has a
    /// message, visible or not. A payload of a cleared queue is deleted if it was stored over an hour before the sweep
    /// begins.
    ///
    /// # Errors
    /// [`InvalidName`] for the first of `queues` that is not a valid queue name.
    pub fn cleared(
        mut self,
        queues: impl IntoIterator<Item: TryInto<QueueName, Error: Into<InvalidName>>>,
    ) -> Result<Self, InvalidName> {
        for queue in queues {
            self.cleared.push(queue.try_into().map_err(Into::into)?);
        }
        Ok(self)
    }

    /// Sets for how long the marks of payloads are kept. The default is 30 days. A copy of a message that comes after
    /// the mark is gone, as by a redrive of a poison message that had been handled already, is poison, because its
    /// payload is missing.
    pub fn mark_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets the minimum time from one object to the next, so that others can use the store too. By default there is no
    /// pause.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Sets a callback that is called with each object that is deleted, or would be deleted in a dry run. The callback
    /// must not block.
    pub fn each(mut self, observer: impl Fn(&SweepStep<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Deletes the payloads and marks that no message needs.
    ///
    /// # Errors
    /// [`SweepError`] with what was deleted before the error. Repeat a sweep that failed. On Azure, a
    /// [container](crate::service::ServiceBuilder::payload_container) that does not exist is an error: a sweep does not
    /// create containers.
    ///
    /// # Cancel safety
    /// A sweep that is dropped has deleted a part of the objects.
    pub async fn run(self) -> Result<SweepReport, SweepError> {
        self.pass(false).await
    }

    /// Reports what [`run`](Self::run) would delete. Creates and deletes one object, by which it learns the store's time.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn dry_run(self) -> Result<SweepReport, SweepError> {
        self.pass(true).await
    }

    async fn pass(self, is_dry: bool) -> Result<SweepReport, SweepError> {
        let mut pass = Pass {
            pace: Pace::new(self.interval),
            report: SweepReport::default(),
            sweep: self,
            is_dry,
        };
        match pass.all().await {
            Ok(()) => Ok(pass.report),
            Err(error) => Err(SweepError {
                so_far: pass.report,
                error,
            }),
        }
    }
}

debug_fields!(Sweep {
    cleared,
    retention,
    interval
});

struct Pass {
    sweep: Sweep,
    is_dry: bool,
    pace: Pace,
    report: SweepReport,
}

impl Pass {
    async fn all(&mut self) -> Result<()> {
        let identity = match self.place().known_identity().await? {
            Some(identity) => identity,
            // Nothing was ever stored.
            None => return Ok(()),
        };
        let now = self.store_time().await?;
        if !self.sweep.cleared.is_empty() {
            self.check_empty().await?;
        }
        self.partial(now, identity).await?;
        self.payloads(now, identity).await?;
        self.marks(now, identity, DONE, SweepReason::OldMark)
            .await?;
        self.marks(now, identity, KEPT, SweepReason::OldMark).await
    }

    /// Returns the time by the store's clock: it is compared with that of the store's objects only. Removes what earlier
    /// sweeps have left of learning the time.
    async fn store_time(&self) -> Result<Timestamp> {
        let store = &self.place().store;
        let name = format!("{CLOCK}{:032x}", rand::random::<u128>());
        store.create(&name, "now".into()).await?;
        let (mut objects, mut from) = (Vec::new(), None);
        loop {
            let page = store.list(CLOCK, from.as_deref()).await?;
            objects.extend(page.objects);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        store.delete(&name).await?;
        let own = objects.iter().find(|object| object.name == name);
        let now = own.map(|object| object.created).ok_or_else(|| {
            let error = Error::new(ErrorKind::Corrupt, Operation::ListData);
            error.with_detail(format!("`{name}` was created and is not listed"))
        })?;
        let is_old = |object: &&StoredObject| age(object, now) > SUBMISSION;
        for old in objects.iter().filter(is_old) {
            store.delete(&old.name).await?;
        }
        Ok(now)
    }

    async fn check_empty(&self) -> Result<()> {
        let Payloads { backend, clock, .. } = &self.sweep.payloads;
        for round in 0..2 {
            if round > 0 {
                clock.sleep(SETTLEMENT).await;
            }
            for queue in &self.sweep.cleared {
                let messages = match backend.properties(queue).await {
                    Ok(properties) => properties.approximate_count,
                    Err(error) if error.kind() == ErrorKind::QueueNotFound => 0,
                    Err(error) => return Err(error),
                };
                if messages > 0 {
                    let error = Error::new(ErrorKind::InvalidInput, Operation::ListData);
                    let detail = format!(
                        "a cleared queue has to be empty; approximate number of messages: {messages}"
                    );
                    return Err(error.with_queue(queue).with_detail(detail));
                }
            }
        }
        Ok(())
    }

    async fn payloads(&mut self, now: Timestamp, identity: u128) -> Result<()> {
        let mut from = None;
        loop {
            let page = self.place().store.list(DATA, from.as_deref()).await?;
            for object in &page.objects {
                self.wait().await;
                let Some(payload) = named(object, DATA, identity) else {
                    self.report.unknown += 1;
                    continue;
                };
                self.report.examined += 1;
                if let Some(reason) = self.reason(object, &payload, now).await? {
                    self.delete(object, reason).await?;
                    self.report.payloads += 1;
                    self.report.bytes += object.size;
                }
            }
            from = page.next;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    /// Returns why nobody needs a payload, if that is so.
    async fn reason(
        &self,
        object: &StoredObject,
        payload: &StoredPayload,
        now: Timestamp,
    ) -> Result<Option<SweepReason>> {
        let place = self.place();
        if place.is_done(payload).await? {
            return Ok(Some(SweepReason::Done));
        }
        let age = age(object, now);
        let is_cleared = |queue: &QueueName| payload.is_of(queue);
        if age > SUBMISSION && self.sweep.cleared.iter().any(is_cleared) {
            return Ok(Some(SweepReason::Cleared));
        }
        let latest = payload.lifetime.map(|life| life.saturating_add(MARGIN));
        if latest.is_some_and(|latest| age > latest) && !place.is_kept(payload).await? {
            return Ok(Some(SweepReason::Expired));
        }
        Ok(None)
    }

    async fn marks(
        &mut self,
        now: Timestamp,
        identity: u128,
        folder: &str,
        reason: SweepReason,
    ) -> Result<()> {
        let mut from = None;
        loop {
            let page = self.place().store.list(folder, from.as_deref()).await?;
            for object in &page.objects {
                if age(object, now) <= self.sweep.retention {
                    continue;
                }
                self.wait().await;
                let Some(payload) = named(object, folder, identity) else {
                    self.report.unknown += 1;
                    continue;
                };
                // The payload may have been stored since the payloads were listed.
                if self.place().has_data(&payload).await? {
                    continue;
                }
                self.delete(object, reason).await?;
                self.report.marks += 1;
            }
            from = page.next;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    /// Deletes what is left of interrupted creations.
    async fn partial(&mut self, now: Timestamp, identity: u128) -> Result<()> {
        for object in self.place().store.list_partial().await? {
            let whole = StoredObject {
                name: object
                    .name
                    .rsplit_once('#')
                    .map_or("", |(name, _)| name)
                    .to_owned(),
                ..object.clone()
            };
            let is_ours = whole.name == IDENTITY
                || whole.name.starts_with(CLOCK)
                || [DATA, DONE, KEPT]
                    .iter()
                    .any(|folder| named(&whole, folder, identity).is_some());
            if !is_ours {
                self.report.unknown += 1;
            } else if age(&object, now) > SUBMISSION {
                self.delete(&object, SweepReason::Partial).await?;
                self.report.partial += 1;
            }
        }
        Ok(())
    }

    async fn delete(&self, object: &StoredObject, reason: SweepReason) -> Result<()> {
        if !self.is_dry {
            self.place().store.delete(&object.name).await?;
        }
        if let Some(observer) = &self.sweep.observer {
            observer(&SweepStep { object, reason });
        }
        Ok(())
    }

    fn place(&self) -> &PayloadPlace {
        &self.sweep.payloads.place
    }

    async fn wait(&mut self) {
        self.pace.wait(&*self.sweep.payloads.clock).await;
    }
}

/// Returns the payload that an object is, or is a mark of.
fn named(object: &StoredObject, folder: &str, identity: u128) -> Option<StoredPayload> {
    let name = object.name.strip_prefix(folder)?;
    StoredPayload::new(identity, name)
}

fn age(object: &StoredObject, now: Timestamp) -> Duration {
    let age = now.duration_since(object.created);
    Duration::try_from(age).unwrap_or_default()
}

/// The numbers of objects that a sweep deleted, or would delete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SweepReport {
    /// Payloads that were looked at.
    pub examined: usize,
    /// Payloads that were deleted.
    pub payloads: usize,
    /// The size of the deleted payloads, in bytes.
    pub bytes: u64,
    /// Marks that were deleted.
    pub marks: usize,
    /// Temporary files of killed processes that were deleted.
    pub partial: usize,
    /// Objects whose names are not those of payloads. Objects of unknown names are left.
    pub unknown: usize,
}

/// An object that a sweep deletes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SweepStep<'a> {
    /// The object.
    pub object: &'a StoredObject,
    /// The reason why no message needs the object.
    pub reason: SweepReason,
}

/// The reason why no message needs an object.
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
    /// The object is a mark whose retention is over.
    OldMark,
    /// The object is the temporary file of a process that was killed.
    Partial,
}

/// A sweep that failed before its end.
#[derive(Clone)]
#[non_exhaustive]
pub struct SweepError {
    /// The objects that were deleted before the error.
    pub so_far: SweepReport,
    /// The error that ended the sweep.
    pub error: Error,
}

queue_core::error_around!(
    error in SweepError;
    |this, f| write!(f, "failed to sweep more than {} payloads: {}", this.so_far.payloads, this.error);
    /// Whether further payloads may have been deleted.
    outcome: this.error.outcome()
);

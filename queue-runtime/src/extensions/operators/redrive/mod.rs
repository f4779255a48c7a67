//! Moving the messages of a poison queue back.
//!
//! A redrive finds the messages, by browsing or by receives that lease them, filters them, and checks the destination
//! that each poison record names. A message's body is rebuilt without its poison record, with the same id. The message
//! is put on its queue and deleted from the poison queue, in one step where the storage is atomic. A received message
//! that stays on the poison queue is handed back. After a kill, run the redrive again: where the storage is not atomic,
//! a message that was put and not deleted is put again, with the same id.
//!
//! | module | does |
//! |---|---|
//! | `receiving` | how messages are found on storage that cannot be browsed |
//! | `pass` | what happens to each message; how messages are found on storage that can be browsed |
//! | `report` | what has happened |

mod pass;
mod receiving;
mod report;

use std::sync::Arc;
use std::time::Duration;

use pass::RedrivePass;
use queue_core::backend::{Atomicity, Browsing};
use queue_core::envelope::{Envelope, PoisonReason, PoisonRecord};
use queue_core::internal::{between, debug_fields};
use queue_core::wire::{Body, Event, RAW_KIND};
use queue_core::{InvalidName, QueueName, Timestamp};

use crate::kernel::context::Context;
use crate::service::AnyQueue;

pub use report::{RedriveError, RedriveOutcome, RedriveStep, Redriven};

/// Moves the messages of a poison queue back to the queue that they came from. Configure the redrive, then call
/// [`run`](Self::run).
///
/// A message is put on the queue that its poison record names, if the poison queue belongs to that queue: `order` for
/// `order-poison`, or the queue of the handle that [`Queue::poison`](crate::Queue::poison) was called on. Messages of
/// queues to which the poison queue does not belong are left, and counted as [`not_allowed`](Redriven::not_allowed),
/// unless [`allow`](Self::allow) names their queue.
///
/// An event keeps its id and its last checkpoint, and starts without failed attempts, unless the redrive
/// [keeps](Self::keep_attempts) them; a body that was not an event is
/// restored byte for byte. Redriven messages never expire, whatever the time to live of their type.
///
/// ```
/// use queue_runtime::{Message, envelope::PoisonReason, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit(Order { number: 7 }).await?;
/// let order = service.accept::<Order>().await?.expect("just submitted");
/// order.reject("the warehouse is closed").await?;
///
/// let poison = service.any_queue("order-poison")?;
/// let redrive = poison.redrive().reason(PoisonReason::Rejected).error_contains("warehouse");
/// assert_eq!(redrive.dry_run().await?.redriven, 1);
/// assert_eq!(redrive.run().await?.redriven, 1);
/// assert!(service.accept::<Order>().await?.is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Messages that stay
/// On a storage that can be browsed, as all but Azure, a redrive receives no messages: what it leaves is not
/// touched, and invisible messages are left. On storage that cannot be browsed, as on Azure, a redrive receives the
/// messages, each for a minute, and hands back a message that it leaves at once, or at its end if the storage returns
/// the message a second time. A receive by a redrive does not count as an attempt of a consumer of the poison queue,
/// except for bodies without an envelope, which cannot record that.
#[must_use = "nothing is redriven until `run`"]
pub struct Redrive {
    context: Arc<Context>,
    queue: QueueName,
    /// The queues that messages may be put on by their records: the one that the poison queue belongs to, if that is
    /// known, and those that are allowed.
    destinations: Vec<QueueName>,
    filters: Filters,
    unrecorded_to: Option<QueueName>,
    interval: Option<Duration>,
    keeps_attempts: bool,
    moves_cancelled: bool,
    observer: Option<Observer>,
}

type Observer = Box<dyn Fn(&RedriveStep<'_>) + Send + Sync>;

impl AnyQueue {
    /// Moves the messages of this poison queue back to the queue that they came from. Configure the
    /// [`Redrive`], then call [`run`](Redrive::run).
    pub fn redrive(&self) -> Redrive {
        Redrive {
            context: Arc::clone(&self.context),
            queue: self.name.clone(),
            destinations: self.origin.iter().cloned().collect(),
            filters: Filters::default(),
            unrecorded_to: None,
            interval: None,
            keeps_attempts: false,
            moves_cancelled: false,
            observer: None,
        }
    }
}

impl Redrive {
    /// Also redrives messages whose records name one of `queues`: those of several queues that share a poison queue, or
    /// of a listener whose [`poison_queue`](crate::ListenerBuilder::poison_queue) is not named after its queue.
    ///
    /// Whoever can put messages on the poison queue can forge poison records: do not allow a queue that they must not
    /// put messages on.
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// service.submit(Order { number: 7 }).await?;
    /// let order = service.accept::<Order>().poison_queue("broken")?.await?.expect("just submitted");
    /// order.reject("the warehouse is closed").await?;
    ///
    /// let broken = service.any_queue("broken")?; // does not say whose poison queue it is
    /// let left = broken.redrive().run().await?;
    /// assert_eq!((left.redriven, left.not_allowed), (0, 1));
    /// assert_eq!(broken.redrive().allow(["order"])?.run().await?.redriven, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidName`] for the first of `queues` that is not a valid queue name.
    pub fn allow(
        mut self,
        queues: impl IntoIterator<Item: TryInto<QueueName, Error: Into<InvalidName>>>,
    ) -> Result<Self, InvalidName> {
        for queue in queues {
            self.destinations
                .push(queue.try_into().map_err(Into::into)?);
        }
        Ok(self)
    }

    /// Redrives only the message with this [message id](queue_core::MessageId), and its copies. Repeat the call for several ids.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.filters.ids.push(id.into());
        self
    }

    /// Redrives only messages of this kind. Repeat the call for several kinds.
    ///
    /// A message that has been on a poison queue before has the kind that it had on its first queue. A body that is not
    /// an event is of the kind [`RAW_KIND`](crate::wire::RAW_KIND).
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.filters.kinds.push(kind.into());
        self
    }

    /// Redrives only messages that are poison for this reason. Repeat the call for several reasons.
    pub fn reason(mut self, reason: PoisonReason) -> Self {
        self.filters.reasons.push(reason);
        self
    }

    /// Redrives only messages whose error, with its causes, contains this text. Repeat the call for several texts, all of
    /// which must occur.
    pub fn error_contains(mut self, text: impl Into<String>) -> Self {
        self.filters.errors.push(text.into());
        self
    }

    /// Redrives only messages that were moved to the poison queue at least this long ago, in the storage's time.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.filters.older_than = Some(age);
        self
    }

    /// Redrives only messages that were moved to the poison queue less than this long ago, in the storage's time.
    pub fn younger_than(mut self, age: Duration) -> Self {
        self.filters.younger_than = Some(age);
        self
    }

    /// Redrives only messages for which `filter` returns true. Repeat the call for several conditions.
    pub fn filter(
        mut self,
        filter: impl Fn(&Envelope, &PoisonRecord) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.filters.custom.push(Box::new(filter));
        self
    }

    /// Redrives messages without a poison record to this queue, byte for byte, instead of leaving them: messages that
    /// other programs have put on the poison queue, such as the Azure Functions host, and messages that were too large
    /// for a record. Messages without a record are redriven only if no filter is set, because the filters need the
    /// record.
    ///
    /// Bodies that the storage has found damaged are left. Copies of a message without a record are not recognised.
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let poison = service.queue_named::<Order>("order-poison")?;
    /// poison.submit(Order { number: 7 }).await?; // not moved here by a consumer
    ///
    /// let orders = service.queue::<Order>().any();
    /// poison.any().redrive().unrecorded_to(orders.name())?.run().await?;
    /// assert!(service.accept::<Order>().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn unrecorded_to(
        mut self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Self, InvalidName> {
        self.unrecorded_to = Some(queue.try_into().map_err(Into::into)?);
        Ok(self)
    }

    /// Sets the minimum time between two moves, so that consumers are not overwhelmed: 10 ms for at most 100 messages
    /// per second. By default messages are moved as fast as the storage allows.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Keeps the attempt counts of the messages instead of resetting them, so that a message that cannot be handled
    /// does not use up all its attempts again. A message without attempts left gets one more.
    ///
    /// The number of attempts is that of the poison record, and is passed on in the envelope, as
    /// [`AttemptRecord::earlier`](crate::envelope::AttemptRecord::earlier). Bodies that are not events have no room for
    /// the number of attempts, and start anew.
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// service.submit(Order { number: 7 }).await?;
    /// let order = service.accept::<Order>().await?.expect("just submitted");
    /// order.reject("the warehouse is closed").await?; // attempt 1
    ///
    /// service.any_queue("order-poison")?.redrive().keep_attempts().run().await?;
    /// let order = service.accept::<Order>().await?.expect("redriven");
    /// assert_eq!(order.attempt(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_attempts(mut self) -> Self {
        self.keeps_attempts = true;
        self
    }

    /// Moves messages too that were [cancelled](crate::QueueService::cancel) within the last 7 days. By default, they stay, as
    /// [`RedriveOutcome::Cancelled`]: such a message was a copy of the one that was cancelled.
    pub fn including_cancelled(mut self) -> Self {
        self.moves_cancelled = true;
        self
    }

    /// Sets a callback that is called with the outcome of each message, also in a dry run. The callback must not block.
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = testing::service().await;
    /// # service.submit(Order { number: 7 }).await?;
    /// # let order = service.accept::<Order>().await?.expect("just submitted");
    /// # order.reject("the warehouse is closed").await?;
    /// let redrive = service.any_queue("order-poison")?.redrive().each(|step| {
    ///     let id = step.envelope.map(|envelope| envelope.id.as_str());
    ///     println!("{}: {:?}", id.unwrap_or("?"), step.outcome);
    /// });
    /// assert_eq!(redrive.run().await?.redriven, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn each(mut self, observer: impl Fn(&RedriveStep<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }
}

debug_fields!(Redrive { queue });

impl Redrive {
    /// Returns what [`run`](Self::run) would do now, without changing anything.
    ///
    /// On a storage that can be [browsed](crate::backend::Backend::browse), the dry run looks at the whole queue. On a
    /// storage that cannot be browsed, such as Azure, the dry run looks at the messages of one peek, up to the
    /// backend's [`max_receive`](crate::backend::Capabilities::max_receive), and [`Redriven::unseen`] is the
    /// approximate number of the others.
    ///
    /// # Errors
    /// The backend's error; also [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a filter by age on a storage
    /// that cannot be browsed: a peek does not tell the storage's time.
    pub async fn dry_run(&self) -> Result<Redriven, RedriveError> {
        self.pass(true).await
    }

    /// Redrives all messages that are visible now.
    ///
    /// On a storage that cannot be [browsed](crate::backend::Backend::browse) and is too slow to return all messages
    /// before it returns the first ones again, [`Redriven::unseen`] is the approximate number of unexamined messages.
    ///
    /// Each message is put on its queue and deleted from the poison queue, in one step if the backend is atomic. On a
    /// storage that is not atomic, a crash between put and deletion leaves a copy with the same message id, and loses
    /// nothing.
    ///
    /// An operation that the storage certainly did not carry out is tried again, as the
    /// service's [`StorageRetry`](crate::policy::StorageRetry) allows; an operation of unknown outcome is not, because
    /// it might be carried out twice.
    ///
    /// # Errors
    /// [`RedriveError`] has the backend's error and what was done before. Messages that were redriven before an error
    /// are not moved back. Messages that only their own queue refuses do not stop the redrive; they are counted as
    /// [`refused`](Redriven::refused).
    ///
    /// # Cancel safety
    /// Dropping the future stops the redrive, and moves no redriven messages back. On a storage that cannot be browsed,
    /// the messages that the redrive held are handed back in the background; if the process is killed, they stay
    /// invisible for up to a minute, or longer with an [`interval`](Self::interval) of more than 30 seconds.
    pub async fn run(&self) -> Result<Redriven, RedriveError> {
        self.pass(false).await
    }

    async fn pass(&self, dry: bool) -> Result<Redriven, RedriveError> {
        let mut pass = RedrivePass::new(self, dry);
        match (self.is_browsed(), dry) {
            (true, _) => pass::browse(&mut pass).await?,
            (false, true) => receiving::peek(&mut pass).await?,
            (false, false) => receiving::run(&mut pass).await?,
        }
        Ok(pass.counts)
    }

    /// Whether messages can be moved without receiving them: only in one step, because without a lease two redrives
    /// could both put a message.
    fn is_browsed(&self) -> bool {
        let capabilities = self.context.backend.capabilities();
        capabilities.browsing == Browsing::Supported && capabilities.atomicity == Atomicity::Atomic
    }
}

/// Which messages are redriven: all conditions must hold.
#[derive(Default)]
struct Filters {
    ids: Vec<String>,
    kinds: Vec<String>,
    reasons: Vec<PoisonReason>,
    errors: Vec<String>,
    older_than: Option<Duration>,
    younger_than: Option<Duration>,
    custom: Vec<Custom>,
}

type Custom = Box<dyn Fn(&Envelope, &PoisonRecord) -> bool + Send + Sync>;

impl Filters {
    /// Whether all messages are redriven.
    fn admit_all(&self) -> bool {
        let texts = [&self.ids, &self.kinds, &self.errors];
        texts.iter().all(|texts| texts.is_empty())
            && self.reasons.is_empty()
            && self.custom.is_empty()
            && !self.need_time()
    }

    /// Whether the storage's time is needed.
    fn need_time(&self) -> bool {
        self.older_than.is_some() || self.younger_than.is_some()
    }

    /// Returns whether a message is redriven. `now` and the record's times are the storage's.
    fn admit(&self, event: &Event, record: &PoisonRecord, now: Timestamp) -> bool {
        let id = event.envelope.id.as_str();
        let is_kind = |kinds: &[String]| kinds.iter().any(|kind| *kind == kind_of(event, record));
        let error = record.error.as_deref().unwrap_or_default();
        let age = between(record.last, now);
        (self.ids.is_empty() || self.ids.iter().any(|wanted| wanted == id))
            && (self.kinds.is_empty() || is_kind(&self.kinds))
            && (self.reasons.is_empty() || self.reasons.contains(&record.reason))
            && self.errors.iter().all(|text| error.contains(text))
            && self.older_than.is_none_or(|least| age >= least)
            && self.younger_than.is_none_or(|most| age < most)
            && self
                .custom
                .iter()
                .all(|admits| admits(&event.envelope, record))
    }
}

/// Returns the kind of a message, also of one inside an event of whoever moved it.
fn kind_of(event: &Event, record: &PoisonRecord) -> String {
    if !record.raw {
        return event.envelope.kind.clone();
    }
    let inner = bytes::Bytes::copy_from_slice(event.payload.as_bytes());
    let inner = Body::read(&inner, inner.len());
    inner
        .envelope()
        .map_or(RAW_KIND, |inner| &inner.kind)
        .to_owned()
}

use queue_core::backend::StorageId;
use queue_core::{Envelope, Error, Outcome, QueueName};

/// The result of a redrive: the numbers of messages by outcome.
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
/// let result = poison.any().redrive().run().await?;
/// assert_eq!((result.redriven, result.without_record), (0, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Redriven {
    /// Messages moved back.
    pub redriven: usize,
    /// Messages left on the poison queue because of the filters.
    pub filtered: usize,
    /// Messages left on the poison queue because they have no poison record: submitted by other programs, or,
    /// on Azure, too large to add one. See [`Redrive::unrecorded_to`](super::Redrive::unrecorded_to).
    pub without_record: usize,
    /// Deleted copies of messages that this redrive had already moved back.
    pub duplicates: usize,
    /// Messages left on the poison queue because they were invisible: delayed, or held by a consumer of the poison
    /// queue. Hidden messages are counted only on a storage that can be [browsed](crate::backend::Backend::browse).
    pub hidden: usize,
    /// Messages that another consumer of the poison queue, or another redrive, took first.
    pub taken: usize,
    /// Messages left on the poison queue because their own queue refuses them for good, for example because of its
    /// limits, or because it is a [reply queue](QueueName::is_reply_queue). Messages whose [unique
    /// key](crate::send::Submit::unique_until_settled) another message holds now are refused, too.
    pub refused: usize,
    /// Messages left on the poison queue because they were cancelled. See
    /// [`Redrive::including_cancelled`](super::Redrive::including_cancelled).
    pub cancelled: usize,
    /// Messages left on the poison queue because their records name a queue that this redrive may not send to. See
    /// [`Redrive::allow`](super::Redrive::allow).
    pub not_allowed: usize,
    /// Messages that were not examined, by the storage's approximate count. No message is unseen on a storage that can
    /// be browsed. On storage that cannot be browsed, as on Azure, a dry run sees only the first visible messages. A
    /// run ends early, with unseen messages, if the storage keeps returning examined messages, because their leases end
    /// before unexamined messages come. A message whose lease ended before it could be moved counts as unseen too,
    /// unless the storage is [atomic](crate::backend::Atomicity::Atomic).
    pub unseen: usize,
}

/// What happened, or in a dry run would happen, to one message of a poison queue. See
/// [`Redrive::each`](super::Redrive::each).
///
/// ```
/// use queue_runtime::service::redrive::RedriveOutcome;
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
/// # let service = testing::service().await;
/// # service.submit(Order { number: 7 }).await?;
/// # let order = service.accept::<Order>().await?.expect("just submitted");
/// # order.reject("the warehouse is closed").await?;
/// let redrive = service.any_queue("order-poison")?.redrive().each(|step| {
///     let record = step.envelope.and_then(|envelope| envelope.poison.as_ref());
///     assert_eq!(record.map(|record| record.reason), Some(PoisonReason::Rejected));
///     assert!(matches!(step.outcome, RedriveOutcome::Redriven(queue) if queue.as_str() == "order"));
/// });
/// assert_eq!(redrive.run().await?.redriven, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct RedriveStep<'m> {
    /// The message's storage id on the poison queue.
    pub storage_id: &'m StorageId,
    /// The message's envelope, with its poison record. `None` if the body is not an event.
    pub envelope: Option<&'m Envelope>,
    /// The outcome for the message.
    pub outcome: &'m RedriveOutcome,
}

/// What happened to one message of a poison queue. [`Redriven`] counts the outcomes.
///
/// ```
/// use std::sync::mpsc;
/// use queue_runtime::service::redrive::RedriveOutcome;
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
/// let poison = service.queue_named::<Order>("order-poison")?;
/// poison.submit(Order { number: 7 }).await?; // not moved here by a consumer
///
/// let (sender, outcomes) = mpsc::channel();
/// let redrive = poison.any().redrive().each(move |step| {
///     sender.send(step.outcome.clone()).expect("the receiver exists");
/// });
/// redrive.run().await?;
/// assert!(matches!(outcomes.try_recv()?, RedriveOutcome::WithoutRecord));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RedriveOutcome {
    /// The message was moved to this queue.
    Redriven(QueueName),
    /// The message was left on the poison queue because of the filters.
    Filtered,
    /// The message was left on the poison queue because it has no poison record.
    WithoutRecord,
    /// The message was a copy of a message that was moved before, and was deleted.
    Duplicate,
    /// The message was left on the poison queue because it was invisible.
    Hidden,
    /// Another consumer or redrive received the message first.
    Taken,
    /// The message was left on the poison queue because its own queue refuses it for good, with this error. A reply
    /// queue refuses all messages. The error is [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if another message
    /// holds the message's [unique key](crate::send::Submit::unique_until_settled): another redrive can move the
    /// message once the other is settled.
    Refused(Error),
    /// The message was left on the poison queue because it was [cancelled](crate::QueueService::cancel) within the last 7
    /// days. See [`Redrive::including_cancelled`](super::Redrive::including_cancelled).
    Cancelled,
    /// The message was left on the poison queue because its record names this queue, which the redrive may not send to.
    /// See [`Redrive::allow`](super::Redrive::allow).
    NotAllowed(QueueName),
}

/// The error of a redrive that stopped early. Messages that were moved before the error stay moved.
///
/// ```
/// use queue_runtime::testing::{self, Fault};
/// use queue_runtime::{ErrorKind, Message};
/// use queue_runtime::error::Operation;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (service, faults) = testing::service_with_faults().await;
/// # service.submit(Order { number: 7 }).await?;
/// # let order = service.accept::<Order>().await?.expect("just submitted");
/// # order.reject("the warehouse is closed").await?;
/// faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
/// let redrive = service.any_queue("order-poison")?.redrive();
/// let stopped = redrive.run().await.expect_err("the storage refuses the first move");
/// assert_eq!(stopped.error.kind(), ErrorKind::Denied);
/// assert_eq!((stopped.so_far.redriven, stopped.unknown), (0, 0));
///
/// assert_eq!(redrive.run().await?.redriven, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RedriveError {
    /// The counts of what happened before the error.
    pub so_far: Redriven,
    /// The number of messages that may or may not have been moved: those of an operation whose outcome is unknown.
    /// Another redrive moves the remaining messages. On a storage that is not
    /// [atomic](crate::backend::Atomicity::Atomic), such as Azure, `unknown` also counts a message that was put on its
    /// own queue and not deleted from the poison queue: another redrive that finds the message there puts it on its own
    /// queue again, with the same id.
    pub unknown: usize,
    /// The error of the storage.
    pub error: Error,
}

queue_core::error_around!(
    error in RedriveError;
    |this, f| write!(f, "failed to redrive more than {} messages: {}", this.so_far.redriven, this.error);
    /// Whether further messages may have been moved.
    outcome: match this.unknown {
        0 => this.error.outcome(),
        _ => Outcome::Unknown,
    }
);

impl Redriven {
    pub(super) fn count(&mut self, outcome: &RedriveOutcome) {
        let count = match outcome {
            RedriveOutcome::Redriven(_) => &mut self.redriven,
            RedriveOutcome::Filtered => &mut self.filtered,
            RedriveOutcome::WithoutRecord => &mut self.without_record,
            RedriveOutcome::Duplicate => &mut self.duplicates,
            RedriveOutcome::Hidden => &mut self.hidden,
            RedriveOutcome::Taken => &mut self.taken,
            RedriveOutcome::Refused(_) => &mut self.refused,
            RedriveOutcome::Cancelled => &mut self.cancelled,
            RedriveOutcome::NotAllowed(_) => &mut self.not_allowed,
        };
        *count += 1;
    }
}

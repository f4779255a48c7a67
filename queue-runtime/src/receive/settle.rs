//! The last operation on a received message. It is retried while that is safe and the lease may last, and
//! reports an unknown outcome as such.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Atomicity, NewMessage, Op, PopReceipt};
use queue_core::envelope::PoisonReason;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Retry};

use super::incoming::Incoming;
use crate::context::Context;
use crate::lease::{Lease, Locked, SettlementKind};
use crate::repeat::Repeats;

/// How a received message was settled.
///
/// ```
/// use queue_runtime::{Message, Settled, testing};
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
/// let order = service.accept::<Order>().poison_threshold(1).await?.expect("just submitted");
/// match order.retry("the carrier is busy").await? {
///     Settled::Retried { after, error } => println!("next attempt in {after:?}: {error}"),
///     Settled::Poisoned(reason) => println!("moved to the poison queue: {reason}"),
///     other => println!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The message was completed.
    Completed,
    /// The attempt failed, and the message will be retried.
    Retried {
        /// The delay before the next attempt.
        after: Duration,
        /// The error of the attempt and its causes.
        error: String,
    },
    /// The message was handed back without counting the attempt.
    Released,
    /// The message is from a newer program and was put back, so that a program that supports its version can
    /// receive it.
    Postponed {
        /// The delay before the message becomes visible again.
        after: Duration,
    },
    /// The message was moved to the poison queue.
    Poisoned(PoisonReason),
}

/// The cause of a [`SettleError`](crate::SettleError): why a message was not settled, or may not have been.
///
/// ```
/// # use queue_runtime::{Operation, testing::{self, Fault}};
/// use queue_runtime::{Message, SettleProblem};
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
/// # faults.fail_next(1, Operation::Delete, Fault::LeaseLost(std::time::Duration::from_secs(30)));
/// let error = order.complete().await.unwrap_err();
/// match error.problem {
///     SettleProblem::LeaseLost(_) => println!("another consumer has the message"),
///     SettleProblem::Expired(_) => println!("the message has expired"),
///     SettleProblem::Unknown(_) => println!("the message may be delivered again"),
///     SettleProblem::NotDone(_) => println!("the message will be delivered again"),
///     _ => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SettleProblem {
    /// The lease has ended, and another consumer may have received the message. The message is unchanged. If
    /// the backend is not atomic, follow-ups may have been submitted.
    #[error("the lease was lost")]
    LeaseLost(#[source] Error),
    /// The message has expired. Nothing was changed.
    #[error("the message expired")]
    Expired(#[source] Error),
    /// The settlement may or may not have been carried out.
    #[error("the outcome is unknown")]
    Unknown(#[source] Error),
    /// The message is unchanged and becomes visible again when its lease ends. If the backend is not atomic,
    /// follow-ups may have been submitted.
    #[error("the message was not settled")]
    NotDone(#[source] Error),
}

/// The operation on the received message itself.
#[derive(Debug, Clone)]
pub(crate) enum Settlement {
    Delete,
    PutBack {
        delay: Duration,
        body: Option<Bytes>,
    },
}

impl Settlement {
    fn kind(&self) -> SettlementKind {
        match self {
            Self::Delete => SettlementKind::Delete,
            Self::PutBack { .. } => SettlementKind::PutBack,
        }
    }
}

/// How certain it is that a settlement was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// The storage confirmed it.
    Done,
    /// The message is gone, and an earlier settlement by this consumer got no answer.
    Presumed,
}

/// The failure of a settlement.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) problem: SettleProblem,
    /// The messages to put that are not known to be stored.
    pub(crate) puts: Vec<(QueueName, NewMessage)>,
}

impl Unsettled {
    /// Returns the error if the backend refuses one of the messages to put for good, or may do so.
    pub(crate) fn refused_put(&self) -> Option<&Error> {
        match &self.problem {
            SettleProblem::NotDone(error)
                if error.retry() == Retry::Permanent && !self.puts.is_empty() =>
            {
                Some(error)
            }
            _ => None,
        }
    }
}

impl From<Unsettled> for SettleProblem {
    fn from(unsettled: Unsettled) -> Self {
        unsettled.problem
    }
}

/// The minimum time for which a settlement is retried, even if the lease ends before: the receipt stays
/// valid until another consumer receives the message.
const MIN_PATIENCE: Duration = Duration::from_secs(2);

/// Puts messages and then settles this one: in one step if the backend is atomic, otherwise in this order.
pub(crate) async fn settle(
    context: &Context,
    incoming: &Incoming,
    mut puts: Vec<(QueueName, NewMessage)>,
    settlement: Settlement,
) -> Result<Confirmation, Unsettled> {
    let settled = carry_out(context, &incoming.lease, &mut puts, settlement).await;
    settled.map_err(|problem| {
        let problem = match problem {
            SettleProblem::LeaseLost(error) => lost(context, incoming, error),
            problem => problem,
        };
        Unsettled { problem, puts }
    })
}

/// Returns why the lease was lost: the message has expired, or another consumer may have received it.
pub(crate) fn lost(context: &Context, incoming: &Incoming, error: Error) -> SettleProblem {
    match incoming.is_expired(context) {
        true => SettleProblem::Expired(error),
        false => SettleProblem::LeaseLost(error),
    }
}

async fn carry_out(
    context: &Context,
    lease: &Lease,
    puts: &mut Vec<(QueueName, NewMessage)>,
    settlement: Settlement,
) -> Result<Confirmation, SettleProblem> {
    let clock = &*context.clock;
    let mut locked = lease.lock().await;
    let give_up_at = clock
        .monotonic()
        .saturating_add(locked.remaining().max(MIN_PATIENCE));
    let mut repeats = Repeats::within_lease(give_up_at, clock);
    loop {
        let receipt = locked.receipt().map_err(SettleProblem::LeaseLost)?;
        let left = give_up_at.saturating_sub(clock.monotonic());
        let asked = Asked::of(&mut locked, settlement.kind());
        let attempt = tokio::select! {
            attempt = attempt(context, lease, receipt, puts, &settlement) => attempt,
            () = clock.sleep(left) => Err(Interrupted::at_settlement(no_answer(lease))),
        };
        asked.answered();
        let Err(Interrupted {
            done,
            at_settlement,
            error,
        }) = attempt
        else {
            locked.settled();
            return Ok(Confirmation::Done);
        };
        puts.drain(..done);
        if error.outcome() == Outcome::Unknown && at_settlement {
            locked.settlement_unanswered(settlement.kind());
        }
        if error.is_lease_gone() {
            return lease_gone(&mut locked, &settlement, error);
        }
        if is_own_queue_missing(lease, &error) {
            locked.lose();
            return Err(SettleProblem::LeaseLost(error));
        }
        let again = repeats.pause_or_create(&*context.backend, error).await;
        again.map_err(|error| unsettled(&locked, error))?;
    }
}

/// A settlement that the backend was asked for. Dropped before the answer, it is recorded as unanswered.
struct Asked<'a, 'l> {
    locked: &'a mut Locked<'l>,
    kind: SettlementKind,
    answered: bool,
}

impl<'a, 'l> Asked<'a, 'l> {
    fn of(locked: &'a mut Locked<'l>, kind: SettlementKind) -> Self {
        Self {
            locked,
            kind,
            answered: false,
        }
    }

    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Asked<'_, '_> {
    fn drop(&mut self) {
        if !self.answered {
            self.locked.settlement_unanswered(self.kind);
        }
    }
}

/// A failed try to settle.
struct Interrupted {
    /// The number of puts that were carried out.
    done: usize,
    /// Whether the operation on the message itself was tried, so that it may have been carried out.
    at_settlement: bool,
    error: Error,
}

impl Interrupted {
    fn at_settlement(error: Error) -> Self {
        Self {
            done: 0,
            at_settlement: true,
            error,
        }
    }
}

async fn attempt(
    context: &Context,
    lease: &Lease,
    receipt: PopReceipt,
    puts: &[(QueueName, NewMessage)],
    settlement: &Settlement,
) -> Result<(), Interrupted> {
    let (queue, id) = (lease.queue(), lease.id());
    if puts.is_empty() {
        let alone = match settlement {
            Settlement::Delete => context.backend.delete(queue, id, &receipt).await,
            Settlement::PutBack { delay, body } => context
                .backend
                .update(queue, id, &receipt, *delay, body.clone())
                .await
                .map(|_| ()),
        };
        return alone.map_err(Interrupted::at_settlement);
    }
    let mut ops: Vec<Op> = puts
        .iter()
        .map(|(queue, message)| Op::Put {
            queue: queue.clone(),
            message: message.clone(),
        })
        .collect();
    let (queue, id) = (queue.clone(), id.clone());
    ops.push(match settlement.clone() {
        Settlement::Delete => Op::Delete { queue, id, receipt },
        Settlement::PutBack { delay, body } => Op::Update {
            queue,
            id,
            receipt,
            visibility: delay,
            body,
        },
    });
    let atomic = context.backend.capabilities().atomicity == Atomicity::Atomic;
    let operations = ops.len();
    match context.backend.apply(ops).await {
        Ok(_) => Ok(()),
        Err(failed) => Err(Interrupted {
            done: failed.completed.len(),
            at_settlement: atomic || failed.index + 1 == operations,
            error: failed.error,
        }),
    }
}

/// Returns the result of settling a message that is gone. If an earlier settlement of the same kind got no
/// answer, it is presumed to have been carried out.
fn lease_gone(
    locked: &mut Locked<'_>,
    settlement: &Settlement,
    error: Error,
) -> Result<Confirmation, SettleProblem> {
    if locked.unanswered_settlement() == Some(settlement.kind()) {
        locked.settled();
        return Ok(Confirmation::Presumed);
    }
    if locked.is_doubtful() {
        return Err(SettleProblem::Unknown(error));
    }
    locked.lose();
    Err(SettleProblem::LeaseLost(error))
}

/// Returns whether the message is gone because its queue is. A missing queue of a put can be created.
fn is_own_queue_missing(lease: &Lease, error: &Error) -> bool {
    let own = |queue: &QueueName| queue == lease.queue();
    error.kind() == ErrorKind::QueueNotFound && error.queue().is_none_or(own)
}

fn unsettled(locked: &Locked<'_>, error: Error) -> SettleProblem {
    if locked.unanswered_settlement().is_some() {
        SettleProblem::Unknown(error)
    } else {
        SettleProblem::NotDone(error)
    }
}

fn no_answer(lease: &Lease) -> Error {
    Error::new(ErrorKind::Timeout, Operation::Update)
        .with_queue(lease.queue())
        .with_outcome(Outcome::Unknown)
}

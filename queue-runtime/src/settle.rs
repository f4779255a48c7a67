//! The last operation on a received message, carried through or reported: repeated while that is safe
//! and the lease can last, and honest about what is not known.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Atomicity, Backend, BackendExt, NewMessage, Op, PopReceipt};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Retry};

use crate::lease::{Lease, Locked, SettlementKind};
use crate::policy::jitter;

/// What finally happens to the received message itself.
#[derive(Debug, Clone)]
pub(crate) enum Last {
    Delete,
    PutBack {
        delay: Duration,
        body: Option<Bytes>,
    },
}

impl Last {
    fn kind(&self) -> SettlementKind {
        match self {
            Self::Delete => SettlementKind::Delete,
            Self::PutBack { .. } => SettlementKind::PutBack,
        }
    }
}

/// Why a settlement did not take place, or may not have.
#[derive(Debug)]
pub(crate) enum SettleFailure {
    /// The message is somebody else's, or gone; this settlement changed nothing.
    LeaseLost(Error),
    /// The message has expired; this settlement changed nothing.
    Expired(Error),
    /// It may or may not have been carried out.
    Unknown(Error),
    /// It was not carried out; the message comes back when its lease ends.
    NotDone(Error),
}

/// How sure it is that a settlement took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settlement {
    /// The storage service said so.
    Done,
    /// The message is gone, after a settlement of ours that got no answer.
    Presumed,
}

/// The shortest time that a settlement tries for, even when the lease is about to end: until somebody
/// else receives the message, the receipt still works.
const MIN_PATIENCE: Duration = Duration::from_secs(2);

/// A settlement that is throttled does not wait for less than this.
const SHORTEST_THROTTLE: Duration = Duration::from_millis(100);

/// Puts `puts` and carries out `last`, in one step where the backend can, otherwise in this order.
pub(crate) async fn settle(
    backend: &dyn Backend,
    clock: &dyn Clock,
    lease: &Lease,
    mut puts: Vec<(QueueName, NewMessage)>,
    last: Last,
) -> Result<Settlement, SettleFailure> {
    let mut locked = lease.lock().await;
    let give_up_at = clock
        .monotonic()
        .saturating_add(locked.remaining().max(MIN_PATIENCE));
    let mut tries = 0_u32;
    loop {
        let receipt = locked.receipt().map_err(SettleFailure::LeaseLost)?;
        let left = give_up_at.saturating_sub(clock.monotonic());
        let attempt = tokio::select! {
            attempt = attempt(backend, lease, receipt, &puts, &last) => attempt,
            () = clock.sleep(left) => Err(Interrupted::at_last(no_answer(lease))),
        };
        let Err(Interrupted {
            done,
            at_last,
            error,
        }) = attempt
        else {
            locked.settled();
            return Ok(Settlement::Done);
        };
        puts.drain(..done);
        if error.outcome() == Outcome::Unknown && at_last {
            locked.settlement_unanswered(last.kind());
        }
        if error.is_lease_gone() {
            return lease_gone(&mut locked, &last, error);
        }
        let now = clock.monotonic();
        if error.kind() == ErrorKind::QueueNotFound && now < give_up_at {
            create_target(backend, &mut locked, error).await?;
            continue;
        }
        let pause = match error.retry() {
            Retry::Permanent => return Err(unsettled(&locked, error)),
            Retry::Temporary => {
                let ceiling = Duration::from_millis(50) * 2_u32.saturating_pow(tries.min(6));
                ceiling.mul_f64(jitter())
            }
            // Asked to wait for longer than the lease, it still tries before the end.
            Retry::Throttled(after) => {
                let left = give_up_at.saturating_sub(now);
                let after = after.unwrap_or(Duration::from_secs(1));
                if left > SHORTEST_THROTTLE {
                    after.min(left / 2)
                } else {
                    after
                }
            }
        };
        tries += 1;
        if now.saturating_add(pause) >= give_up_at {
            return Err(unsettled(&locked, error));
        }
        clock.sleep(pause).await;
    }
}

/// An attempt at a settlement that failed.
struct Interrupted {
    /// How many of the puts were done for good.
    done: usize,
    /// Whether the operation on the message itself may have been carried out.
    at_last: bool,
    error: Error,
}

impl Interrupted {
    fn at_last(error: Error) -> Self {
        Self {
            done: 0,
            at_last: true,
            error,
        }
    }
}

async fn attempt(
    backend: &dyn Backend,
    lease: &Lease,
    receipt: PopReceipt,
    puts: &[(QueueName, NewMessage)],
    last: &Last,
) -> Result<(), Interrupted> {
    let (queue, id) = (lease.queue(), lease.id());
    if puts.is_empty() {
        let alone = match last {
            Last::Delete => backend.delete(queue, id, &receipt).await,
            Last::PutBack { delay, body } => backend
                .update(queue, id, &receipt, *delay, body.clone())
                .await
                .map(|_| ()),
        };
        return alone.map_err(Interrupted::at_last);
    }
    let mut ops: Vec<Op> = puts
        .iter()
        .map(|(queue, message)| Op::Put {
            queue: queue.clone(),
            message: message.clone(),
        })
        .collect();
    let (queue, id) = (queue.clone(), id.clone());
    ops.push(match last.clone() {
        Last::Delete => Op::Delete { queue, id, receipt },
        Last::PutBack { delay, body } => Op::Update {
            queue,
            id,
            receipt,
            visibility: delay,
            body,
        },
    });
    let atomic = backend.capabilities().atomicity == Atomicity::Atomic;
    let operations = ops.len();
    match backend.apply(ops).await {
        Ok(_) => Ok(()),
        Err(failed) => Err(Interrupted {
            done: failed.completed.len(),
            at_last: atomic || failed.index + 1 == operations,
            error: failed.error,
        }),
    }
}

/// After an unanswered settlement of the same kind, a message that is gone means that it was carried
/// out.
fn lease_gone(
    locked: &mut Locked<'_>,
    last: &Last,
    error: Error,
) -> Result<Settlement, SettleFailure> {
    if locked.unanswered_settlement() == Some(last.kind()) {
        locked.settled();
        return Ok(Settlement::Presumed);
    }
    if locked.is_doubtful() {
        return Err(SettleFailure::Unknown(error));
    }
    locked.lose();
    Err(SettleFailure::LeaseLost(error))
}

/// Makes the queue that a put goes to; if it is the message's own queue that is missing, so is the
/// message.
async fn create_target(
    backend: &dyn Backend,
    locked: &mut Locked<'_>,
    error: Error,
) -> Result<(), SettleFailure> {
    match error.queue().filter(|queue| *queue != locked.queue()) {
        Some(queue) => {
            let created = backend.ensure_queue(queue).await;
            created.map(drop).map_err(SettleFailure::NotDone)
        }
        None => {
            locked.lose();
            Err(SettleFailure::LeaseLost(error))
        }
    }
}

fn unsettled(locked: &Locked<'_>, error: Error) -> SettleFailure {
    if locked.unanswered_settlement().is_some() {
        SettleFailure::Unknown(error)
    } else {
        SettleFailure::NotDone(error)
    }
}

fn no_answer(lease: &Lease) -> Error {
    Error::new(ErrorKind::Timeout, Operation::Update)
        .with_queue(lease.queue())
        .with_outcome(Outcome::Unknown)
}

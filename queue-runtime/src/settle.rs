//! The last operation on a received message, carried through or reported: repeated while that is safe
//! and the lease can last, and honest about what is not known.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend, BackendExt, NewMessage, Op, PopReceipt};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Retry};

use crate::lease::{Lease, Locked};
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

/// The shortest time that a settlement tries for, even when the lease is about to end: until somebody
/// else receives the message, the receipt still works.
const MIN_PATIENCE: Duration = Duration::from_secs(2);

/// Puts `puts` and carries out `last`, in one step where the backend can, otherwise in this order.
pub(crate) async fn settle(
    backend: &dyn Backend,
    clock: &dyn Clock,
    lease: &Lease,
    mut puts: Vec<(QueueName, NewMessage)>,
    last: Last,
) -> Result<(), SettleFailure> {
    let mut locked = lease.lock().await;
    let give_up_at = clock
        .monotonic()
        .saturating_add(locked.remaining().max(MIN_PATIENCE));
    let mut unanswered = false;
    let mut tries = 0_u32;
    loop {
        let receipt = locked.receipt().map_err(SettleFailure::LeaseLost)?;
        let left = give_up_at.saturating_sub(clock.monotonic());
        let attempt = tokio::select! {
            attempt = attempt(backend, lease, receipt, &puts, &last) => attempt,
            () = clock.sleep(left) => Err((0, no_answer(lease))),
        };
        let Err((done, error)) = attempt else {
            locked.settled();
            return Ok(());
        };
        puts.drain(..done);
        if error.outcome() == Outcome::Unknown {
            unanswered = true;
            locked.doubt();
        }
        if error.is_lease_gone() {
            return lease_gone(&mut locked, unanswered, error);
        }
        if error.kind() == ErrorKind::QueueNotFound {
            create_target(backend, &mut locked, &puts, error).await?;
            continue;
        }
        let pause = match error.retry() {
            Retry::Permanent => return Err(unsettled(unanswered, error)),
            Retry::Temporary => {
                let ceiling = Duration::from_millis(50) * 2_u32.saturating_pow(tries.min(6));
                ceiling.mul_f64(jitter())
            }
            Retry::Throttled(after) => after.unwrap_or(Duration::from_secs(1)),
        };
        tries += 1;
        if clock.monotonic().saturating_add(pause) >= give_up_at {
            return Err(unsettled(unanswered, error));
        }
        clock.sleep(pause).await;
    }
}

async fn attempt(
    backend: &dyn Backend,
    lease: &Lease,
    receipt: PopReceipt,
    puts: &[(QueueName, NewMessage)],
    last: &Last,
) -> Result<(), (usize, Error)> {
    let (queue, id) = (lease.queue(), lease.id());
    if puts.is_empty() {
        let alone = match last {
            Last::Delete => backend.delete(queue, id, &receipt).await,
            Last::PutBack { delay, body } => backend
                .update(queue, id, &receipt, *delay, body.clone())
                .await
                .map(|_| ()),
        };
        return alone.map_err(|error| (0, error));
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
    match backend.apply(ops).await {
        Ok(_) => Ok(()),
        Err(failed) => Err((failed.completed.len(), failed.error)),
    }
}

/// After an unanswered settlement of our own, a message that is gone means that it was carried out.
fn lease_gone(
    locked: &mut Locked<'_>,
    unanswered: bool,
    error: Error,
) -> Result<(), SettleFailure> {
    if unanswered {
        locked.settled();
        return Ok(());
    }
    if locked.is_doubtful() {
        return Err(SettleFailure::Unknown(error));
    }
    locked.lose();
    Err(SettleFailure::LeaseLost(error))
}

/// Makes the queues that the puts go to; if the message's own queue is missing, so is the message.
async fn create_target(
    backend: &dyn Backend,
    locked: &mut Locked<'_>,
    puts: &[(QueueName, NewMessage)],
    error: Error,
) -> Result<(), SettleFailure> {
    let mut created = false;
    for (queue, _) in puts {
        match backend.ensure_queue(queue).await {
            Ok(queue_core::backend::Created::New) => created = true,
            Ok(queue_core::backend::Created::Existed) => {}
            Err(error) => return Err(SettleFailure::NotDone(error)),
        }
    }
    if created {
        return Ok(());
    }
    locked.lose();
    Err(SettleFailure::LeaseLost(error))
}

fn unsettled(unanswered: bool, error: Error) -> SettleFailure {
    if unanswered {
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

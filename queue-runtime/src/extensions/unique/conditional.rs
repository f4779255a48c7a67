//! Puts that depend on what is recorded of a key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend as _, BackendExt as _, Op, OpOutcome, PutIf, Swap};
use queue_core::idempotency::{ResultStore, WorkKey};
use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, MessageId, Operation, Outcome, QueueName, RequestId};

use crate::extensions::idempotency::{DEFAULT_RETENTION, OnceErrorKind, once};
use crate::kernel::send::{Dispatch, Outgoing, Submitted, UniqueKey, UniquePut, UniqueRecord};

/// The lease of a submission that is recorded in a store: how long others wait if its process dies.
const LEASE: Duration = Duration::from_secs(30);

/// The answer to a conditional submission.
pub(crate) enum SubmittedIf {
    Submitted(Submitted),
    /// Nothing was put, because this value is recorded.
    Differs(Option<Bytes>),
    /// Nothing was put, because another message holds the key.
    Held,
}

/// Puts a message if the swap succeeds and, with a key, no other message holds it. Tries again after an unknown outcome, too,
/// if `keeps`: what is recorded stays until all tries are over, so that another try has no second effect.
pub(crate) async fn put_if(
    sending: &Dispatch,
    outgoing: &Outgoing,
    swap: &Swap,
    key: Option<&UniqueKey>,
    keeps: bool,
) -> Result<SubmittedIf, Error> {
    let policy = sending.policy.clone().or_unknown(keeps);
    let hold = key.map(|key| hold(outgoing, key, DEFAULT_RETENTION).ending_with_message());
    let put = || put_once(sending, outgoing, swap, hold.as_ref());
    let answer = sending.repeat(outgoing, &policy, put).await?;
    let Some(answer) = answer else {
        return Ok(SubmittedIf::Held);
    };
    match answer {
        PutIf::Swapped(Some(receipt)) => {
            sending.announce(outgoing);
            Ok(SubmittedIf::Submitted(
                outgoing.submitted(receipt.visible_at),
            ))
        }
        PutIf::Swapped(None) => Err(corrupt(
            &outgoing.queue,
            "the storage recorded a value without its message",
        )),
        PutIf::Differs(current) => {
            if current.as_ref() == swap.value() {
                // An earlier try, whose answer was lost, has put the message.
                sending.announce(outgoing);
            }
            Ok(SubmittedIf::Differs(current))
        }
    }
}

/// Returns `None` if `hold` is refused.
async fn put_once(
    sending: &Dispatch,
    outgoing: &Outgoing,
    swap: &Swap,
    hold: Option<&Swap>,
) -> Result<Option<PutIf>, Error> {
    let (backend, queue) = (&sending.context.backend, &outgoing.queue);
    let Some(hold) = hold else {
        let put = backend.put_if(queue, Some(outgoing.new.clone()), swap);
        return put.await.map(Some);
    };
    let record = |swap: &Swap| Op::Swap {
        queue: queue.clone(),
        swap: swap.clone(),
    };
    let put = Op::Put {
        queue: queue.clone(),
        message: outgoing.new.clone(),
    };
    let ops = [put, record(swap), record(hold)];
    match backend.apply(ops.into_iter().collect()).await {
        Ok(outcomes) => match &outcomes[..] {
            [OpOutcome::Put(receipt), ..] => Ok(Some(PutIf::Swapped(Some(receipt.clone())))),
            _ => Err(corrupt(
                queue,
                "the storage answered a put with something else",
            )),
        },
        Err(failed) => match (failed.error.kind(), failed.index, failed.found()) {
            (ErrorKind::Conflict, 1, found) => {
                let current = found.and_then(|found| found.value.clone());
                Ok(Some(PutIf::Differs(current)))
            }
            (ErrorKind::Conflict, 2, _) => Ok(None),
            _ => Err(failed.error),
        },
    }
}

/// Returns the swap by which a message takes a key.
pub(super) fn hold(outgoing: &Outgoing, key: &UniqueKey, duration: Duration) -> Swap {
    let record = UniqueRecord::new(&outgoing.id, &outgoing.request_id, key.put.clone());
    // A submission that is recorded in a store may have been given up.
    Swap::new(key.work_key(), record.value(), duration).or_ended()
}

/// Puts a message and records it in one step, unless its key is recorded.
pub(crate) async fn send_if_first(
    sending: &Dispatch,
    outgoing: &Outgoing,
    key: &UniqueKey,
    duration: Duration,
    until_settled: bool,
) -> Result<Submitted, Error> {
    let mut swap = hold(outgoing, key, duration);
    if until_settled {
        swap = swap.ending_with_message();
    }
    // Settled during a pause, the message releases its key.
    match put_if(sending, outgoing, &swap, None, !until_settled).await? {
        SubmittedIf::Submitted(submitted) => Ok(submitted),
        SubmittedIf::Held => Err(no_record(&outgoing.queue)),
        SubmittedIf::Differs(current) => {
            let recorded = current.and_then(|value| serde_json::from_slice(&value).ok());
            let receipt = recorded.and_then(|recorded| receipt(recorded, key.put.token));
            receipt.ok_or_else(|| no_record(&outgoing.queue))
        }
    }
}

/// Forgets what is recorded under a key, and returns whether anything was.
pub(crate) async fn release(
    sending: &Dispatch,
    outgoing: &Outgoing,
    key: WorkKey,
) -> Result<bool, Error> {
    let (backend, queue) = (&sending.context.backend, &outgoing.queue);
    let policy = sending.policy.clone().or_unknown(true);
    let forget = Swap::forget(key);
    let look = || backend.put_if(queue, None, &forget);
    let held = match sending.repeat(outgoing, &policy, look).await? {
        PutIf::Swapped(_) | PutIf::Differs(None) => return Ok(false),
        PutIf::Differs(Some(held)) => held,
    };
    let forget = forget.in_place_of(held);
    let swap = || backend.put_if(queue, None, &forget);
    // If the record differs by now, the key was released meanwhile, and its holder was submitted after this release
    // began.
    sending.repeat(outgoing, &policy, swap).await?;
    Ok(true)
}

/// Puts a message and then records it in a store, unless its key is recorded there.
pub(crate) async fn send_and_record(
    sending: &Dispatch,
    outgoing: &Outgoing,
    store: &Arc<dyn ResultStore>,
    key: WorkKey,
    retention: Duration,
) -> Result<Submitted, Error> {
    let queue = &outgoing.queue;
    let own = UniquePut::of(&sending.context, queue, outgoing.new.delay);
    let work = async {
        let visible_at = sending.put(outgoing).await?;
        let put = UniquePut {
            visible_at,
            ..own.clone()
        };
        Ok(UniqueRecord::new(&outgoing.id, &outgoing.request_id, put))
    };
    let done = once(store, key.clone(), work)
        .lease(LEASE)
        .retention(retention);
    let recorded = match done.wait(2 * LEASE).await.map_err(|error| error.kind) {
        Ok(recorded) => recorded,
        Err(OnceErrorKind::NotRecorded { result, source }) => {
            let error = source.map(|error| error_chain(&error));
            let id = &outgoing.id;
            tracing::warn!(%queue, %id, %key, error, "failed to record a unique submission; it may be repeated");
            result
        }
        Err(OnceErrorKind::Work(error)) => return Err(error),
        // The outcome of the store's operation says nothing about the message.
        Err(OnceErrorKind::Store(error)) => return Err(error.with_outcome(Outcome::NotDone)),
        Err(OnceErrorKind::InFlight) => {
            let late = Error::new(ErrorKind::Timeout, Operation::Results);
            let late = late.with_detail("another process has begun to submit the same key");
            return Err(late.with_queue(queue).with_outcome(Outcome::NotDone));
        }
        Err(OnceErrorKind::Lost) => {
            let lost = Error::new(ErrorKind::Timeout, Operation::Results).with_queue(queue);
            let lost = lost.with_detail("the claim of the key was lost while the message was put");
            return Err(lost.with_outcome(Outcome::Unknown));
        }
        Err(OnceErrorKind::Result(_)) => return Err(no_record(queue)),
    };
    receipt(recorded, own.token).ok_or_else(|| no_record(queue))
}

pub(super) fn corrupt(queue: &QueueName, detail: &str) -> Error {
    let error = Error::new(ErrorKind::Corrupt, Operation::Results);
    error.with_queue(queue).with_detail(detail)
}

pub(super) fn no_record(queue: &QueueName) -> Error {
    corrupt(queue, "the record of a unique submission cannot be read")
}

/// Returns the receipt of the submission that is recorded, of which `own` may be the token. `None` if the record is
/// invalid.
fn receipt(recorded: UniqueRecord, own: u64) -> Option<Submitted> {
    let put = recorded.put;
    Some(Submitted {
        id: MessageId::new(recorded.id).ok()?,
        request_id: RequestId::new(recorded.request).ok()?,
        queue: put.queue.parse().ok()?,
        visible_at: put.visible_at,
        duplicate: put.token != own,
    })
}

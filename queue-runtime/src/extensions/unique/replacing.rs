//! Submissions that take the place of the message that waits with their key.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Located, MessageState, NewMessage, Op, OpOutcome, PutReceipt, Swap};
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, MessageId, Operation, Outcome, QueueName, RetryAdvice};

use super::conditional::{SubmittedIf, hold, no_record, put_if};
use crate::extensions::operators::along;
use crate::kernel::send::{Dispatch, Outgoing, Submitted, UniqueKey, UniqueRecord};

/// How often a submission looks for the message that holds its key, if that changes meanwhile.
const LOOKS: usize = 50;

/// A message in place of another, in one step.
struct Replacement {
    ops: Vec<Op>,
    /// The index of the put.
    put: usize,
    /// From which index on operations go along, which are left out if they are refused.
    along: usize,
}

/// Puts a message that holds a key from then on, and removes those that hold it until then, unless they were received.
pub(super) async fn send_replacing(
    sending: &Dispatch,
    outgoing: &Outgoing,
    key: &UniqueKey,
    duration: Duration,
) -> Result<Submitted, Error> {
    let hold = hold(outgoing, key, duration).ending_with_message();
    for look in 0..LOOKS {
        let current = match put_if(sending, outgoing, &hold, None, false).await? {
            SubmittedIf::Submitted(submitted) => return Ok(submitted),
            SubmittedIf::Differs(Some(current)) => current,
            SubmittedIf::Differs(None) | SubmittedIf::Held => continue,
        };
        // The key is free with the message that took it, unless that was received, or is another copy than was found.
        let is_freed = look % 2 == 0;
        let replacement = replacement(sending, outgoing, &hold, current, is_freed).await?;
        let put = || carry_out(sending, &replacement);
        let put = sending.repeat(outgoing, &sending.policy, put).await?;
        if let Some(receipt) = put {
            sending.announce(outgoing);
            return Ok(outgoing.submitted(receipt.visible_at));
        }
    }
    let changes = Error::new(ErrorKind::Timeout, Operation::Put).with_queue(&outgoing.queue);
    let detail = "the message that holds the key changed each time that it was found";
    Err(changes.with_detail(detail).with_outcome(Outcome::NotDone))
}

async fn replacement(
    sending: &Dispatch,
    outgoing: &Outgoing,
    hold: &Swap,
    current: Bytes,
    is_freed: bool,
) -> Result<Replacement, Error> {
    let (context, queue) = (&sending.context, &outgoing.queue);
    let recorded = serde_json::from_slice::<UniqueRecord>(&current).ok();
    let id = recorded.and_then(|recorded| MessageId::new(recorded.id).ok());
    let id = id.ok_or_else(|| no_record(queue))?;
    let capabilities = context.backend.capabilities();
    let (limit, most) = (capabilities.max_moved_body, capabilities.max_receive);
    let located = context.ask(|| context.backend.locate(&id, most)).await?;
    let (mut ops, mut goes_along) = (Vec::new(), Vec::new());
    for Located { queue, message, .. } in located {
        let body = Body::of_stored(&message.body, message.damage.as_deref(), limit);
        if message.state == MessageState::Hidden || body.poison().is_some() {
            continue;
        }
        let along = along(context, &id, body.envelope(), message.read_at);
        ops.push(Op::Delete {
            queue: queue.clone(),
            id: message.id,
            receipt: message.receipt,
            moved: false,
        });
        if goes_along.is_empty() {
            let put = |(queue, message): (QueueName, NewMessage)| Op::Put { queue, message };
            goes_along.extend(along.notice.map(put));
            goes_along.extend(along.record.map(|swap| Op::Swap { queue, swap }));
        }
    }
    let mut swap = hold.clone();
    if ops.is_empty() || !is_freed {
        swap = swap.in_place_of(current);
    }
    let put = ops.len();
    let (queue, message) = (queue.clone(), outgoing.new.clone());
    ops.push(Op::Put { queue, message });
    let queue = outgoing.queue.clone();
    ops.push(Op::Swap { queue, swap });
    let along = ops.len();
    ops.extend(goes_along);
    Ok(Replacement { ops, put, along })
}

/// Returns `None` if what it replaces has changed.
async fn carry_out(
    sending: &Dispatch,
    replacement: &Replacement,
) -> Result<Option<PutReceipt>, Error> {
    let mut ops = replacement.ops.clone();
    loop {
        let failed = match sending.context.backend.apply(ops.clone().into()).await {
            Ok(outcomes) => {
                let put = outcomes.into_iter().nth(replacement.put);
                return Ok(match put {
                    Some(OpOutcome::Put(receipt)) => Some(receipt),
                    _ => None,
                });
            }
            Err(failed) => failed,
        };
        let error = failed.error;
        let is_conflict = error.kind() == ErrorKind::Conflict;
        if failed.index >= replacement.along
            && error.outcome() == Outcome::NotDone
            && (is_conflict || error.retry() == RetryAdvice::Permanent)
        {
            ops.remove(failed.index);
        } else if is_conflict || error.is_lease_gone() {
            return Ok(None);
        } else {
            return Err(error);
        }
    }
}

//! Submissions that take the place of the message that waits with their key.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Located, MessageState, Op, OpOutcome, PutReceipt, Swap};
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, MessageId, Operation, Outcome, QueueName};

use super::conditional::{SubmittedIf, corrupt, hold, no_record, put_if};
use crate::extensions::operators::cancelled;
use crate::kernel::notify::Announced;
use crate::kernel::send::{Dispatch, Outgoing, Submitted, UniqueKey, UniqueRecord};

/// How often a submission looks for the message that holds its key, if that changes meanwhile.
const LOOKS: usize = 50;

/// A message in place of others, in one step.
struct Replacement {
    ops: Vec<Op>,
    /// How many messages are deleted, before the put.
    replaced: usize,
    /// The queues on which the next message of a group is free then.
    freed: Vec<QueueName>,
}

/// Puts a message that holds a key from then on, and removes those that hold it until then, unless they were received.
pub(super) async fn send_replacing(
    sending: &Dispatch,
    outgoing: &Outgoing,
    key: &UniqueKey,
    duration: Duration,
) -> Result<Submitted, Error> {
    let hold = hold(outgoing, key, duration).ending_with_message();
    for _ in 0..LOOKS {
        let current = match put_if(sending, outgoing, &hold, None, false).await? {
            SubmittedIf::Submitted(submitted) => return Ok(submitted),
            // An earlier try, whose answer was lost, has put the message.
            SubmittedIf::Differs(current) if current.as_ref() == hold.value() => {
                return Ok(outgoing.submitted(key.put.visible_at));
            }
            SubmittedIf::Differs(Some(current)) => current,
            SubmittedIf::Differs(None) | SubmittedIf::Held => continue,
        };
        let swap = hold.clone().in_place_of(current.clone());
        let replacement = replacement(sending, outgoing, key, &current, swap).await?;
        let put = || carry_out(sending, &replacement);
        let put = sending.repeat(outgoing, &sending.policy, put).await?;
        if let Some(receipt) = put {
            sending.announce(outgoing);
            let freed = replacement.freed.iter();
            let freed = freed.map(|queue| Announced::put_back(queue, Duration::ZERO));
            sending.context.notifiers.publish(freed);
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
    key: &UniqueKey,
    current: &Bytes,
    swap: Swap,
) -> Result<Replacement, Error> {
    let (context, queue) = (&sending.context, &outgoing.queue);
    let recorded = serde_json::from_slice::<UniqueRecord>(current).ok();
    let recorded = recorded.ok_or_else(|| no_record(queue))?;
    let id = MessageId::new(recorded.id).map_err(|_| no_record(queue))?;
    let capabilities = context.backend.capabilities();
    let (limit, most) = (capabilities.max_moved_body, capabilities.max_receive);
    let located = context.ask(|| context.backend.locate(&id, most)).await?;
    let (mut ops, mut freed, mut seen_at) = (Vec::new(), Vec::new(), None);
    for Located { queue, message, .. } in located {
        let body = Body::of_stored(&message.body, message.damage.as_deref(), limit);
        let Some(envelope) = body.envelope() else {
            continue;
        };
        let of_message = envelope.unique_key.as_deref();
        let of_message = of_message.and_then(|text| serde_json::from_str::<UniqueKey>(text).ok());
        // Another message may have the same id.
        let holds_it = of_message.is_some_and(|of_message| {
            of_message.work_key() == key.work_key() && of_message.put.token == recorded.put.token
        });
        if !holds_it || message.state == MessageState::Hidden || envelope.poison.is_some() {
            continue;
        }
        if envelope.group.is_some() {
            freed.push(queue.clone());
        }
        seen_at = Some(message.read_at);
        ops.push(Op::Delete {
            queue,
            id: message.id,
            receipt: message.receipt,
            moved: false,
        });
    }
    let replaced = ops.len();
    // Under its own id, the message goes on.
    let record = match seen_at.filter(|_| id != outgoing.id) {
        Some(seen_at) => cancelled::next(context, &id, seen_at).await?,
        None => None,
    };
    ops.push(Op::Put {
        queue: queue.clone(),
        message: outgoing.new.clone(),
    });
    ops.extend([swap].into_iter().chain(record).map(|swap| Op::Swap {
        queue: queue.clone(),
        swap,
    }));
    Ok(Replacement {
        ops,
        replaced,
        freed,
    })
}

/// Returns `None` if what it replaces has changed.
async fn carry_out(
    sending: &Dispatch,
    replacement: &Replacement,
) -> Result<Option<PutReceipt>, Error> {
    let (mut ops, put) = (replacement.ops.clone(), replacement.replaced);
    loop {
        let failed = match sending.context.backend.apply(ops.clone().into()).await {
            Ok(outcomes) => {
                return match outcomes.into_iter().nth(put) {
                    Some(OpOutcome::Put(receipt)) => Ok(Some(receipt)),
                    _ => Err(corrupt(
                        ops[put].queue(),
                        "the storage answered a put with something else",
                    )),
                };
            }
            Err(failed) => failed,
        };
        let (at, error) = (failed.index, failed.error);
        let is_of_record = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Corrupt);
        if is_of_record && at == put + 2 {
            // A message with this id was cancelled meanwhile.
            ops.truncate(at);
        } else if error.kind() == ErrorKind::Conflict || error.is_lease_gone() {
            return Ok(None);
        } else {
            return Err(error);
        }
    }
}

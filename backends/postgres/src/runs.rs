//! Runs: the operations that share a statement.

use std::collections::HashSet;

use queue_core::QueueName;
use queue_core::backend::{Attachment, Op, OpOutcome, PutBackPlace, PutReceipt};
use queue_core::store_clock::after;

use crate::attachments;
use crate::failure::{Failure, Result};
use crate::messages::{self, Handle};
use crate::records::{self, SwapOf};
use crate::session::Session;
use crate::settlements::{self, Change};

/// Operations that one statement carries out: of one kind, each on another message.
pub(crate) struct Run<'a> {
    kind: Kind,
    messages: HashSet<i64>,
    /// The operations, with their numbers.
    pub(crate) ops: Vec<(usize, &'a Op)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Put,
    Update,
    Delete,
    /// An operation that shares no statement.
    Alone,
}

impl Run<'_> {
    /// Whether one statement carries out the run, and answers each operation.
    pub(crate) fn is_one_statement(&self) -> bool {
        self.kind != Kind::Alone
    }
}

/// Whether operations are carried out in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Kept,
    Free,
}

/// Divides numbered operations into runs.
pub(crate) fn divide(ops: Vec<(usize, &Op)>, order: Order) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (at, op) in ops {
        let kind = match op {
            Op::Put { .. } if attachment_of(op).is_none() => Kind::Put,
            Op::Renew { .. } | Op::PutBack { .. } => Kind::Update,
            Op::Delete { .. } => Kind::Delete,
            _ => Kind::Alone,
        };
        let message = op.received().map(|(_, id, _)| messages::parse_id(id));
        let takes = |run: &&mut Run<'_>| {
            let is_new = message.is_none_or(|seq| !run.messages.contains(&seq));
            run.kind == kind && kind != Kind::Alone && is_new
        };
        let open = match order {
            Order::Kept => runs.last_mut().filter(takes),
            Order::Free => runs.iter_mut().find(takes),
        };
        let run = match open {
            Some(run) => run,
            None => {
                runs.push(Run {
                    kind,
                    messages: HashSet::new(),
                    ops: Vec::new(),
                });
                runs.last_mut().expect("it was pushed")
            }
        };
        run.messages.extend(message);
        run.ops.push((at, op));
    }
    runs
}

/// The attachment of a message that is put.
pub(crate) fn attachment_of(op: &Op) -> Option<&Attachment> {
    match op {
        Op::Put { message, .. } => message.attachment.as_ref(),
        _ => None,
    }
}

/// The outcome of an operation, and the message that it put.
pub(crate) type Outcome = (OpOutcome, Option<i64>);

/// Carries out the operations of a run. `last_put` is the message that was put before.
pub(crate) async fn carry_out_run(
    session: &mut Session,
    ops: &[&Op],
    last_put: Option<i64>,
) -> Result<Vec<Result<Outcome>>> {
    match ops {
        [Op::Put { .. }, ..] => {
            let attached = match attachment_of(ops[0]) {
                Some(attachment) => attachments::take(session, attachment).await?,
                None => Ok(None),
            };
            let attached = match attached {
                Ok(attached) => attached,
                Err(refused) => return Ok(vec![Err(refused)]),
            };
            let puts = ops.iter().filter_map(|op| match op {
                Op::Put { queue, message } => Some((queue, message)),
                _ => None,
            });
            let done = messages::put(session, &puts.collect::<Vec<_>>()).await?;
            // A message with an attachment is put alone.
            if let ([Ok((seq, _))], Some(attachment)) = (&done[..], attached) {
                attachments::attach(session, *seq, attachment).await?;
            }
            Ok(done.into_iter().map(of_put).collect())
        }
        [Op::DeleteItems { items, of, .. }] => {
            let Some((queue, id, receipt)) = ops[0].received() else {
                return Err(UNKNOWN);
            };
            let handle = Handle::parse(id, receipt);
            let done = settlements::delete_items(session, queue, handle, (items, *of)).await?;
            Ok(vec![done.map(|()| (OpOutcome::Deleted, None))])
        }
        [Op::Swap { swap, .. }] => {
            let of = SwapOf::Operation(last_put);
            let done = records::swap(session, swap, of).await?;
            Ok(vec![done.map(|()| (OpOutcome::Swapped, None))])
        }
        _ => {
            let settlements: Option<Vec<_>> = ops.iter().map(|op| settlement(op)).collect();
            let done = settlements::settle(session, &settlements.ok_or(UNKNOWN)?).await?;
            let is_delete = matches!(ops, [Op::Delete { .. }, ..]);
            let outcome = |lease| {
                let updated = OpOutcome::Updated(lease);
                (
                    if is_delete {
                        OpOutcome::Deleted
                    } else {
                        updated
                    },
                    None,
                )
            };
            Ok(done.into_iter().map(|lease| lease.map(outcome)).collect())
        }
    }
}

fn of_put(put: Result<(i64, PutReceipt)>) -> Result<Outcome> {
    put.map(|(seq, put)| (OpOutcome::Put(put), Some(seq)))
}

const UNKNOWN: Failure = Failure::Corrupt("the engine does not know this operation");

fn settlement(op: &Op) -> Option<(&QueueName, Handle, Change<'_>)> {
    let (queue, id, receipt) = op.received()?;
    let change = match op {
        Op::Delete { .. } => Change::Delete,
        Op::Renew {
            visibility, body, ..
        } => Change::Update {
            delay: Some(after(0, *visibility)),
            body: body.as_ref(),
            is_put_back: false,
        },
        Op::PutBack { place, body, .. } => Change::Update {
            delay: match place {
                PutBackPlace::Kept => None,
                PutBackPlace::After(delay) => Some(after(0, *delay)),
            },
            body: body.as_ref(),
            is_put_back: true,
        },
        _ => return None,
    };
    Some((queue, Handle::parse(id, receipt), change))
}

#[cfg(test)]
mod tests {
    use queue_core::backend::{NewMessage, PopReceipt, StorageId};

    use super::*;

    #[test]
    fn a_run_has_one_kind_and_no_message_twice() {
        let queue = QueueName::from_static("orders");
        let put = Op::Put {
            queue: queue.clone(),
            message: NewMessage::new("one"),
        };
        let delete = |id: &str| Op::Delete {
            queue: queue.clone(),
            id: StorageId::new(id),
            receipt: PopReceipt::new("any"),
            moved: false,
        };
        let ops = [
            put.clone(),
            put.clone(),
            delete("1"),
            delete("2"),
            delete("1"),
            put,
            delete("3"),
        ];
        let numbers = |order| {
            let runs = divide(ops.iter().enumerate().collect(), order).into_iter();
            let numbers = runs.map(|run| run.ops.iter().map(|(at, _)| *at).collect());
            numbers.collect::<Vec<Vec<usize>>>()
        };
        assert_eq!(
            numbers(Order::Kept),
            [vec![0, 1], vec![2, 3], vec![4], vec![5], vec![6]]
        );
        assert_eq!(
            numbers(Order::Free),
            [vec![0, 1, 5], vec![2, 3, 6], vec![4]]
        );
    }
}

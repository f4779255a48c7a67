//! A redrive on a storage that cannot be browsed: messages are received, and those that are left are handed back
//! without counting the receive.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{PopReceipt, ReceivedMessage, StorageId};
use queue_core::internal::as_count;
use queue_core::{Error, ErrorKind, Operation, QueueName};

use super::super::browse::hand_back;
use super::Redrive;
use super::pass::{MoveEnd, RedrivePass};
use super::report::RedriveError;
use crate::kernel::context::Context;
use crate::kernel::notify::Announced;

/// How long a redrive leases the messages that it receives, unless it moves them more slowly.
const LEASE: Duration = Duration::from_secs(60);

/// Receives all messages that are visible now.
pub(super) async fn run(pass: &mut RedrivePass<'_>) -> Result<(), RedriveError> {
    let redrive = pass.redrive;
    let (queue, backend) = (&redrive.queue, &redrive.context.backend);
    let (most, lease) = receives(redrive);
    // Redriven messages may fail and come back: the number at the start bounds the pass.
    let present = pass.ask(|| backend.properties(queue)).await?;
    let present = present.approximate_count;
    let mut looked_at = HashSet::new();
    let mut held = Held::new(redrive);
    // Held messages whose leases have ended since the last new message.
    let mut returned = HashSet::new();
    while looked_at.len() < present {
        let receive = || async {
            let leased_until = redrive.context.clock.monotonic().saturating_add(lease);
            Ok((backend.receive(queue, most, lease).await?, leased_until))
        };
        let (batch, leased_until) = pass.ask(receive).await?;
        if batch.is_empty() {
            break;
        }
        let (mut new, mut came_round) = (Vec::new(), false);
        for message in batch {
            // A message that was handed back and is received again is held, so that it does not hide those behind it.
            let was_held = held.take_over(&message);
            if looked_at.insert(message.id.clone()) {
                new.push(message);
            } else if was_held {
                came_round |= !returned.insert(message.id);
            }
        }
        if !new.is_empty() {
            returned.clear();
        } else if came_round {
            // The leases end faster than the storage returns what is behind the held messages.
            pass.counts.unseen = present - looked_at.len();
            break;
        }
        for message in new {
            let now = message.received_at;
            let (id, body) = (
                message.id.clone(),
                (message.body, message.damage.as_deref()),
            );
            let mut item = pass.item(message.id, message.receipt, body);
            item.leased_until = leased_until;
            if let Some(planned) = pass.plan(item, now).await? {
                pass.wait().await;
                // Until the move is answered, nobody knows which queue the message is on.
                let lease = held.messages.remove_entry(&id);
                let end = pass.move_one(&planned).await;
                let is_left = match &end {
                    Ok(end) => *end == MoveEnd::Left,
                    Err(stopped) => stopped.unknown == 0,
                };
                if is_left {
                    held.messages.extend(lease);
                }
                end?;
            }
            held.hand_back(pass, &id).await?;
        }
    }
    held.hand_back_all(pass).await
}

/// Looks at the first visible messages without receiving them.
pub(super) async fn peek(pass: &mut RedrivePass<'_>) -> Result<(), RedriveError> {
    let redrive = pass.redrive;
    let (queue, backend) = (&redrive.queue, &redrive.context.backend);
    if redrive.filters.need_time() {
        let detail = "a filter by age needs the storage's time, which a peek does not tell";
        let error = Error::new(ErrorKind::Unsupported, Operation::Peek).with_queue(queue);
        return Err(pass.stopped(error.with_detail(detail), 0));
    }
    let most = backend.capabilities().max_receive;
    let properties = pass.ask(|| backend.properties(queue)).await?;
    let peeked = pass.ask(|| backend.peek(queue, most)).await?;
    pass.counts.unseen = properties.approximate_count.saturating_sub(peeked.len());
    for message in peeked {
        // Nothing is moved, so no receipt is needed, and no filter needs the storage's time.
        let (none, body) = (
            PopReceipt::new(""),
            (message.body, message.damage.as_deref()),
        );
        let item = pass.item(message.id, none, body);
        let planned = pass.plan(item, message.inserted_at).await?;
        pass.move_all(Vec::from_iter(planned)).await?;
    }
    Ok(())
}

/// Returns how many messages to receive at a time, and their lease, which lasts twice as long as moving them.
fn receives(redrive: &Redrive) -> (usize, Duration) {
    let limits = redrive.context.backend.capabilities();
    let Some(interval) = redrive.interval.filter(|interval| !interval.is_zero()) else {
        return (limits.max_receive, LEASE);
    };
    let fitting = (LEASE / 2).as_nanos() / interval.as_nanos();
    let fitting = as_count(fitting);
    let lease = interval.saturating_mul(2).max(LEASE);
    (
        fitting.clamp(1, limits.max_receive),
        lease.min(limits.max_visibility),
    )
}

/// Messages that the redrive holds and is not moving, which are handed back in the background when `Held` is dropped.
struct Held {
    context: Arc<Context>,
    queue: QueueName,
    messages: HashMap<StorageId, ReceivedMessage>,
}

impl Held {
    fn new(redrive: &Redrive) -> Self {
        Self {
            context: Arc::clone(&redrive.context),
            queue: redrive.queue.clone(),
            messages: HashMap::new(),
        }
    }

    /// Returns whether the message was held already.
    fn take_over(&mut self, message: &ReceivedMessage) -> bool {
        let before = self.messages.insert(message.id.clone(), message.clone());
        before.is_some()
    }

    /// Does nothing unless the message is held.
    async fn hand_back(
        &mut self,
        pass: &RedrivePass<'_>,
        id: &StorageId,
    ) -> Result<(), RedriveError> {
        match self.messages.remove(id) {
            Some(held) => {
                let hand_back = || hand_back_one(&self.context, &self.queue, &held);
                pass.ask(hand_back).await
            }
            None => Ok(()),
        }
    }

    async fn hand_back_all(mut self, pass: &RedrivePass<'_>) -> Result<(), RedriveError> {
        while let Some(id) = self.messages.keys().next().cloned() {
            self.hand_back(pass, &id).await?;
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let messages = mem::take(&mut self.messages);
        if messages.is_empty() {
            return;
        }
        let (context, queue) = (Arc::clone(&self.context), self.queue.clone());
        self.context.background.spawn(async move {
            for (id, held) in messages {
                if let Err(error) = hand_back_one(&context, &queue, &held).await {
                    tracing::warn!(%queue, %id, %error, "failed to hand back a message of an interrupted redrive");
                }
            }
        });
    }
}

/// Makes a message visible again that stays on the poison queue.
async fn hand_back_one(
    context: &Context,
    queue: &QueueName,
    message: &ReceivedMessage,
) -> Result<(), Error> {
    if hand_back(context, queue, message).await? {
        let visible = Announced::put_back(queue, Duration::ZERO);
        context.notifiers.publish([visible]);
    }
    Ok(())
}

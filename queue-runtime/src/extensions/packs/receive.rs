//! Receiving: packs are opened, and their items returned.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Backend as _, ItemSet, ReceivedMessage};
use queue_core::wire::{Event, ExpandErrorKind, Pack, Payload};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result, Timestamp};

use super::backend::Packs;
use super::open::{OpenPack, item_id};
use crate::kernel::lease::{Lease, Receive};
use crate::kernel::receive::SendTime;

/// How many times the visibility timeout a pack is held at most, unless it is set.
const MAX_HOLD: u32 = 10;

/// How often a receive asks the storage again after it has found nothing but packs that it had to split.
const ROUNDS: usize = 8;

impl Packs {
    /// Returns up to `max` messages of the storage, or as [`receive_items`](Self::receive_items) does once one of them is a
    /// pack.
    pub(super) async fn receive_first(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let asked_at = self.clock.monotonic();
        let messages = self.storage.receive(queue, max, visibility).await?;
        let limit = self.encoder.raw_limit();
        let is_message = |message| matches!(opened(message, limit), Ok(None));
        if messages.iter().all(is_message) {
            return Ok(messages);
        }
        // Boxed, because packs are rare and the future's state is large.
        let this = self.this();
        Box::pin(async move {
            let sent = (asked_at, visibility);
            let messages = this.open(queue, max, sent, messages).await;
            if messages.is_empty() {
                return this.receive_items(queue, max, visibility).await;
            }
            Ok(messages)
        })
        .await
    }

    /// Returns up to `max` messages: items of open packs, and what the storage has.
    pub(super) async fn receive_items(
        self: &Arc<Self>,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let mut messages = self.take_waiting(queue, max, visibility).await;
        let (sending, has_items) = (SendTime::current(), !messages.is_empty());
        for _ in 0..ROUNDS {
            let room = max - messages.len();
            if room == 0 {
                break;
            }
            // Items that are leased already do not wait for the storage limit.
            sending.restart(has_items);
            let received = self.receive_more(queue, room, visibility).await;
            match received {
                Ok(None) => break,
                Ok(Some(more)) => messages.extend(more),
                // The messages so far are leased to the caller.
                Err(error) if !messages.is_empty() => {
                    tracing::debug!(%queue, %error, "failed to receive more messages besides the items of a pack");
                    break;
                }
                Err(error) => return Err(error),
            }
            if !messages.is_empty() {
                break;
            }
        }
        if has_items {
            // The leases of waiting items count from before.
            sending.restart(false);
        }
        Ok(messages)
    }

    /// Receives from the storage: `None` if nothing is visible there, and no messages if all that was received became
    /// other messages.
    async fn receive_more(
        self: &Arc<Self>,
        queue: &QueueName,
        room: usize,
        visibility: Duration,
    ) -> Result<Option<Vec<ReceivedMessage>>> {
        let mean = self.shelves.mean(queue);
        let wanted = ((room as f64 / mean).ceil() as usize).clamp(1, room);
        let asked_at = self.clock.monotonic();
        let received = self.storage.receive(queue, wanted, visibility).await?;
        if received.is_empty() {
            return Ok(None);
        }
        let sent = (asked_at, visibility);
        Ok(Some(self.open(queue, room, sent, received).await))
    }

    /// Opens the packs among what the storage was asked for at a moment of the monotonic clock, for this visibility timeout.
    /// Returns the messages, and as many of their items as there is room for.
    async fn open(
        self: &Arc<Self>,
        queue: &QueueName,
        room: usize,
        (asked_at, visibility): (Duration, Duration),
        received: Vec<ReceivedMessage>,
    ) -> Vec<ReceivedMessage> {
        let asked_at = SendTime::current().counts_from(asked_at, &*self.clock);
        let receive = Receive {
            asked_at,
            answered_at: self.clock.monotonic(),
            visibility,
            renewal: self.longest(visibility),
        };
        let (count, mut items) = (received.len(), 0);
        let mut messages = Vec::with_capacity(count);
        let mut packs = Vec::new();
        for mut message in received {
            match opened(&message, self.encoder.raw_limit()) {
                Ok(None) => {
                    items += 1;
                    messages.push(message);
                }
                Ok(Some(opened)) => {
                    items += opened.events.len();
                    packs.push(self.hold_pack(queue, message, opened, receive));
                }
                Err(problem) => {
                    items += 1;
                    message.damage = Some(problem.into());
                    messages.push(message);
                }
            }
        }
        self.shelves.received(queue, count, items);
        let mut surplus = Vec::new();
        for pack in packs {
            if unexplained(&pack.message, &pack.event) > 0 {
                self.split_unexplained(&pack).await;
            } else if messages.len() < room {
                let until = asked_at.saturating_add(visibility);
                let more = pack.hold(room - messages.len(), until);
                messages.extend(returned(&pack, more, pack.message.received_at, None));
                self.shelve(&pack);
            } else {
                surplus.push(pack);
            }
        }
        // Other consumers have room for the surplus.
        self.give_all_back(&surplus).await;
        messages
    }

    /// Returns up to `max` items that wait in open packs.
    async fn take_waiting(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Vec<ReceivedMessage> {
        let mut messages = Vec::new();
        while messages.len() < max
            && let Some(pack) = self.shelves.first_waiting(queue)
        {
            match self.lease_waiting(&pack, visibility).await {
                Ok((now, leased_for)) => {
                    let until = now.saturating_add(leased_for);
                    let more = pack.hold(max - messages.len(), until);
                    let received_at = pack.lease.storage_time().latest_now(now);
                    let is_exhausted = more.is_empty() || pack.counts().waiting == 0;
                    let shorter = (leased_for < visibility).then_some(leased_for);
                    messages.extend(returned(&pack, more, received_at, shorter));
                    if is_exhausted {
                        self.shelves.none_waiting(&pack);
                    }
                    self.look_at(&pack);
                }
                Err(error) => {
                    let id = pack.id();
                    tracing::warn!(%queue, %id, %error, "failed to renew the lease of a pack; the rest of the pack is received again");
                    self.shelves.none_waiting(&pack);
                }
            }
        }
        messages
    }

    /// Returns a time on the monotonic clock, and how long waiting items of a pack are leased from then on: what is left of
    /// the pack's own lease, if that is at least half of what is asked for; otherwise the pack's lease is renewed.
    async fn lease_waiting(
        &self,
        pack: &OpenPack,
        visibility: Duration,
    ) -> Result<(Duration, Duration)> {
        let now = self.clock.monotonic();
        let left = pack.lease.lasts_for(now);
        if left >= visibility / 2 {
            return Ok((now, left.min(visibility)));
        }
        let until = now.saturating_add(visibility);
        pack.lease.last_until(until).await?;
        Ok((now, visibility))
    }

    /// The visibility timeout of the renewals of a pack: twice that of its items, so that the lease of an item is renewed
    /// by no request while the pack's lasts.
    fn longest(&self, visibility: Duration) -> Duration {
        let longest = self.storage.capabilities().max_visibility;
        visibility.saturating_mul(2).min(longest)
    }

    fn hold_pack(
        self: &Arc<Self>,
        queue: &QueueName,
        message: ReceivedMessage,
        opened: Opened,
        receive: Receive,
    ) -> Arc<OpenPack> {
        let visibility = receive.visibility;
        let max_hold = self.shelves.max_hold(queue);
        let max_hold = max_hold.unwrap_or_else(|| visibility.saturating_mul(MAX_HOLD));
        // Renewed until the pack is split, which may have to be tried again.
        let renew_for = max_hold.saturating_add(receive.renewal);
        let lease = Lease::hold(&self.renewals, queue, &message, receive, renew_for);
        let hold_until = receive.asked_at.saturating_add(max_hold);
        let Opened {
            event,
            events,
            deleted,
        } = opened;
        // One end for all packs of a receive that are split before it returns: half of the time that their leases last.
        let ends_at = receive.asked_at.saturating_add(visibility);
        let half = receive
            .answered_at
            .saturating_add(ends_at.saturating_sub(receive.answered_at) / 2);
        let repeat_until = (unexplained(&message, &event) > 0).then_some(half);
        let opened = (message, event);
        let pack = OpenPack::new(opened, events, &deleted, lease, hold_until, repeat_until);
        let pack = Arc::new(pack);
        if !self.is_atomic() {
            let (encoder, written) = (self.encoder, Arc::downgrade(&pack));
            pack.lease.write_with_renewals(move || {
                let pack = written.upgrade()?;
                let attempts = &pack.event.envelope.attempts;
                encoder.pack_with(&pack.event, attempts, &pack.deleted())
            });
        }
        pack
    }

    fn shelve(&self, pack: &Arc<OpenPack>) {
        self.shelves.add(pack);
        if pack.counts().waiting == 0 {
            self.shelves.none_waiting(pack);
        }
        self.look_at(pack);
    }
}

struct Opened {
    event: Event,
    events: Vec<Bytes>,
    deleted: ItemSet,
}

/// Opens a message that is a pack with items of at most so many bytes. Returns `None` if the message is no pack, or one
/// that this program cannot read.
fn opened(
    message: &ReceivedMessage,
    largest: usize,
) -> std::result::Result<Option<Opened>, String> {
    if message.damage.is_some() {
        return Ok(None);
    }
    let Some(event) = Pack::find(&message.body) else {
        return Ok(None);
    };
    let Payload::Pack(pack) = &event.payload else {
        return Ok(None);
    };
    let events = match pack.open() {
        Ok(events) => events,
        Err(error) if error.kind == ExpandErrorKind::Unsupported => return Ok(None),
        Err(error) => return Err(format!("it is a pack, but {error}")),
    };
    if let Some(large) = events.iter().find(|event| event.len() > largest) {
        let length = large.len();
        return Err(format!(
            "it is a pack with an item of {length} bytes, and {largest} are allowed"
        ));
    }
    let mut deleted = message.deleted_items.clone();
    deleted.insert_all(pack.deleted());
    Ok(Some(Opened {
        events,
        deleted,
        event: *event,
    }))
}

/// Returns how many earlier receives of a pack ended without a record.
fn unexplained(message: &ReceivedMessage, event: &Event) -> usize {
    let attempts = &event.envelope.attempts;
    let earlier = message.dequeue_count.saturating_sub(1);
    let explained = attempts.failures.saturating_add(attempts.forgiven);
    // A record that explains more was written by somebody else.
    earlier.checked_sub(explained).unwrap_or(earlier)
}

/// Returns items as messages that were received at this time of the storage.
fn returned(
    pack: &OpenPack,
    items: Vec<(u32, Bytes)>,
    received_at: Timestamp,
    leased_for: Option<Duration>,
) -> impl Iterator<Item = ReceivedMessage> {
    items.into_iter().map(move |(number, body)| {
        let (id, receipt) = (item_id(pack.id(), number), pack.receipt.clone());
        let inserted_at = pack.message.inserted_at;
        let mut item = ReceivedMessage::new(id, receipt, body, inserted_at, received_at);
        item.expires_at = pack.message.expires_at;
        item.visible_at = pack.message.visible_at.max(received_at);
        item.leased_for = leased_for;
        if Pack::find(&item.body).is_some() {
            item.damage = Some("it is a pack inside another one".into());
        }
        item
    })
}

/// Returns the error of a call about an item whose pack is not open.
pub(super) fn not_open(queue: &QueueName, operation: Operation) -> Error {
    Error::new(ErrorKind::ReceiptMismatch, operation)
        .with_queue(queue)
        .with_detail("the pack of the message is not leased by this process any more")
}

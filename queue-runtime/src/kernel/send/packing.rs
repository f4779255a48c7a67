//! The puts of several messages: each of one message, or of a pack of them.

use bytes::Bytes;
use queue_core::backend::{NewMessage, Op};
use queue_core::encoder::Packer;
use queue_core::{
    Envelope, Error, ErrorKind, MessageId, MessageType, Operation, RequestId, Result,
};

use super::dispatch::Outgoing;
use crate::kernel::context::Context;

/// Puts of messages, in their order.
pub(super) struct Puts {
    pub(super) ops: Vec<Op>,
    /// The number of messages of each put.
    pub(super) counts: Vec<usize>,
}

impl Puts {
    /// Puts each message by itself.
    pub(super) fn single(outgoing: &[Outgoing]) -> Self {
        Self {
            ops: outgoing.iter().map(put).collect(),
            counts: vec![1; outgoing.len()],
        }
    }

    /// Puts neighbours together that can be in one pack, as many as fit.
    ///
    /// # Errors
    /// If messages of this type cannot be packed.
    pub(super) fn packed(
        context: &Context,
        message_type: &MessageType,
        outgoing: &[Outgoing],
    ) -> Result<Self> {
        let wire = message_type.wire();
        if !wire.is_event() {
            let detail =
                format!("its type declares `wire = \"{wire}\"`, and only events can be packed");
            let error = Error::new(ErrorKind::InvalidInput, Operation::Put).with_detail(detail);
            return Err(match outgoing.first() {
                Some(first) => error.with_queue(&first.queue).unsent(),
                None => error.unsent(),
            });
        }
        // An item of a process that was killed is handled once more.
        if message_type.poison_threshold() == Some(1) {
            return Ok(Self::single(outgoing));
        }
        let mut packer = Packer::new(context.encoder);
        let mut puts = Self {
            ops: Vec::new(),
            counts: Vec::new(),
        };
        let mut rest = outgoing;
        while let [first, ..] = rest {
            let goes_with = |one: &&Outgoing| goes_with(context, first, one);
            let alike = rest.iter().take_while(goes_with).count();
            let (op, count) = match pack(context, message_type, &mut packer, &rest[..alike]) {
                Some(packed) => packed,
                None => (put(first), 1),
            };
            puts.ops.push(op);
            puts.counts.push(count);
            rest = &rest[count..];
        }
        Ok(puts)
    }
}

fn put(one: &Outgoing) -> Op {
    Op::Put {
        queue: one.queue.clone(),
        message: one.new.clone(),
    }
}

/// Messages of one part of their queue beside each other, otherwise in the given order.
pub(super) struct Grouped<M> {
    pub(super) outgoing: Vec<Outgoing>,
    pub(super) messages: Vec<M>,
    /// The place of each message among those that were given.
    pub(super) places: Vec<usize>,
}

impl<M> Grouped<M> {
    /// Leaves messages in their order.
    pub(super) fn as_one(outgoing: Vec<Outgoing>, messages: Vec<M>) -> Self {
        Self {
            places: (0..outgoing.len()).collect(),
            outgoing,
            messages,
        }
    }

    pub(super) fn by_part(context: &Context, outgoing: Vec<Outgoing>, messages: Vec<M>) -> Self {
        let given = outgoing.into_iter().zip(messages).enumerate();
        let mut all: Vec<_> = given.collect();
        all.sort_by_cached_key(|(_, (one, _))| part(context, one));
        let (places, both): (_, Vec<_>) = all.into_iter().unzip();
        let (outgoing, messages) = both.into_iter().unzip();
        Self {
            outgoing,
            messages,
            places,
        }
    }
}

/// Returns `of_each`, which has these `places` among the given messages, in the given order.
pub(super) fn as_given<T>(places: &[usize], of_each: Vec<T>) -> Vec<T> {
    let mut all: Vec<_> = places.iter().zip(of_each).collect();
    all.sort_by_key(|(place, _)| **place);
    all.into_iter().map(|(_, one)| one).collect()
}

/// Returns the part of its queue on which a message is put, if its key decides that.
fn part(context: &Context, one: &Outgoing) -> Option<u32> {
    let sharded = context.backend.sharded()?;
    Some(sharded.shard_of_key(one.new.shard_key.as_deref()?))
}

/// Whether a message can be in a pack with another one.
fn goes_with(context: &Context, first: &Outgoing, other: &Outgoing) -> bool {
    let settings = |one: &Outgoing| {
        let part = part(context, one);
        (part, one.new.delay, one.new.time_to_live)
    };
    first.queue == other.queue
        && settings(first) == settings(other)
        && [first, other].iter().all(|one| {
            one.new.attachment.is_none() && one.new.group.is_none() && one.new.tracked.is_none()
        })
}

/// Packs the first of these messages. Returns `None` if fewer than two fit.
fn pack(
    context: &Context,
    message_type: &MessageType,
    packer: &mut Packer,
    messages: &[Outgoing],
) -> Option<(Op, usize)> {
    let [first, _, ..] = messages else {
        return None;
    };
    let (id, request) = (MessageId::random(), RequestId::random());
    let kind = message_type.kind();
    let mut envelope = Envelope::new(id, context.client_id.clone(), request, kind);
    envelope.time = Some(context.clock.now());
    envelope.queue_uri = Some(context.backend.queue_uri(&first.queue));
    let bodies: Vec<Bytes> = messages.iter().map(|one| one.new.body.clone()).collect();
    let (count, body) = packer.pack(&envelope, &bodies)?;
    let key = first.new.shard_key.as_deref();
    let mut message = NewMessage::new(body).with_shard_key(key);
    (message.delay, message.time_to_live) = (first.new.delay, first.new.time_to_live);
    let queue = first.queue.clone();
    Some((Op::Put { queue, message }, count))
}

//! The puts of several messages: each of one message, or of a pack of them.

use bytes::Bytes;
use queue_core::backend::{NewMessage, Op};
use queue_core::encoder::Packer;
use queue_core::message::Wire;
use queue_core::{
    Envelope, Error, ErrorKind, MessageId, MessageType, Operation, RequestId, Result,
};

use super::submit::Outgoing;
use crate::context::Context;

/// Puts of messages, in their order.
pub(super) struct Puts {
    pub(super) ops: Vec<Op>,
    /// The number of messages that each of them puts.
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
        if message_type.wire() == Wire::Bare {
            let detail = "its type declares `wire = \"bare\"`, and bare bodies cannot be packed";
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
            let alike = rest.iter().take_while(|one| goes_with(first, one)).count();
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

/// Whether a message can be in a pack with another one.
fn goes_with(first: &Outgoing, other: &Outgoing) -> bool {
    let settings = |one: &Outgoing| (one.new.delay, one.new.time_to_live);
    first.queue == other.queue
        && settings(first) == settings(other)
        && first.new.attachment.is_none()
        && other.new.attachment.is_none()
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
    let mut envelope = Envelope::new(id, context.client.clone(), request, kind);
    envelope.time = Some(context.clock.now());
    envelope.queue_uri = Some(context.backend.queue_uri(&first.queue));
    let bodies: Vec<Bytes> = messages.iter().map(|one| one.new.body.clone()).collect();
    let (count, body) = packer.pack(&envelope, &bodies)?;
    let mut message = NewMessage::new(body);
    (message.delay, message.time_to_live) = (first.new.delay, first.new.time_to_live);
    let queue = first.queue.clone();
    Some((Op::Put { queue, message }, count))
}

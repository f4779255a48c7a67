//! Follow-ups: deriving their ids, encoding them for a backend, checking them against its limits, and what the sender
//! of a request gets if its message ends without a reply.

use queue_core::backend::{Capabilities, NewMessage, TimeToLive, Tracking};
use queue_core::encoder::Encoded;
use queue_core::envelope::{Envelope, PoisonReason};
use queue_core::internal::{MAX_LOGGED, as_count, as_u32, canonical, error_chain, escape_short};
use queue_core::wire::{self, Body};
use queue_core::{
    DecodeError, FollowUp, Message as _, MessageId, MessageType, Operation, QueueName,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kernel::context::Context;
use crate::kernel::observe::current_trace;

/// The position of a follow-up among those of its parent, which identifies one without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) role: Role,
    pub(crate) ordinal: u32,
}

/// Who submits a follow-up, or a reply, which must not get the id of another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Handler,
    OnPoison,
    Rider,
    RiderOnPoison,
}

/// Returns the id of a follow-up: always the same for the same parent, kind, key (or position) and queue. The type's
/// own queue is not part of the id.
pub(crate) fn derived_id(
    parent: &MessageId,
    encoded: &Encoded,
    position: Position,
    queue: &QueueName,
) -> MessageId {
    let (message_type, ordinal) = (encoded.message_type(), position.ordinal);
    let mut name = match (encoded.key(), position.role) {
        (Some(fields), _) => format!("key {}", canonical(Value::from(fields.to_vec()))),
        (None, Role::Handler) => format!("ordinal {ordinal}"),
        (None, Role::OnPoison) => format!("on-poison {ordinal}"),
        (None, Role::Rider) => format!("rider {ordinal}"),
        (None, Role::RiderOnPoison) => format!("on-poison rider {ordinal}"),
    };
    if *queue != message_type.queue() {
        name = format!("{name} on {queue}");
    }
    MessageId::derived(parent, message_type.kind(), &name)
}

/// Returns the id of a reply: always the same for the same request and kind.
fn reply_id(request: &MessageId, kind: &str, role: Role) -> MessageId {
    let name = match role {
        Role::Handler => "reply",
        Role::OnPoison => "on-poison reply",
        Role::Rider => "rider reply",
        Role::RiderOnPoison => "on-poison rider reply",
    };
    MessageId::derived(request, kind, name)
}

/// Returns a message that a handler has submitted, for `request`, which asks for the same work: a reply goes to the
/// sender of `request` instead, unless it already does, or nobody waits for it. Other follow-ups stay as they are.
pub(crate) fn submitted_again(
    context: &Context,
    request: &Envelope,
    (queue, mut message): (QueueName, NewMessage),
) -> Option<(QueueName, NewMessage)> {
    if !queue.is_reply_queue() {
        return Some((queue, message));
    }
    let Body::Event(event) = Body::read(&message.body, usize::MAX) else {
        return Some((queue, message));
    };
    let mut reply = Envelope::clone(&event.envelope);
    if reply.correlation.as_deref() == Some(request.id.as_str()) {
        return Some((queue, message));
    }
    let queue = reply_queue(request)?;
    reply.id = reply_id(&request.id, &reply.kind, Role::Handler);
    reply.correlation = Some(request.id.to_string());
    reply.client_id = request.client_id.clone();
    reply.request_id = request.request_id.clone();
    reply.trace = request.trace.clone();
    reply.time = Some(context.clock.now());
    reply.queue_uri = Some(context.backend.queue_uri(&queue));
    let body = wire::encode_payload(&reply, &event.payload);
    message.body = context.encoder.stored(body);
    Some((queue, message))
}

/// Returns the queue that replies to a message go to, unless nobody waits for one. A sender cannot direct replies to
/// any queue but those for replies.
fn reply_queue(request: &Envelope) -> Option<QueueName> {
    let id = &request.id;
    let Some(name) = &request.reply_to else {
        tracing::debug!(%id, "the reply to a message is not sent: the sender asked for no reply");
        return None;
    };
    let queue = name.parse().ok().filter(QueueName::is_reply_queue);
    if queue.is_none() {
        tracing::warn!(%id, replyto = &*escape_short(name, MAX_LOGGED), "the reply to a message is not sent: the address of the sender is not a reply queue");
    }
    queue
}

/// Why follow-ups can never be stored.
pub(crate) type FollowUpError = Box<dyn std::error::Error + Send + Sync>;

/// Encodes the follow-ups of the message with the envelope `parent`. `first` is the ordinal of the first
/// follow-up. A reply is left out if nobody waits for it.
///
/// # Errors
/// If there are more follow-ups than the backend takes in one step with the settlement of their parent, or it can never
/// store one of them: it cannot be encoded, is too large, or its delay is over the limit or not below its time to live.
/// The error is that of the first refused follow-up.
pub(crate) fn encode_follow_ups(
    context: &Context,
    parent: &Envelope,
    follow_ups: &[FollowUp],
    role: Role,
    first: u32,
) -> Result<Vec<(QueueName, NewMessage)>, FollowUpError> {
    let (now, trace) = (context.clock.now(), current_trace());
    let trace = trace.as_ref().or(parent.trace.as_ref());
    let capabilities = context.backend.capabilities();
    let numbered = follow_ups.iter().zip(first..);
    let encode = |(follow_up, ordinal): (&FollowUp, u32)| -> Result<Option<_>, FollowUpError> {
        let encoded = follow_up.encoded().map_err(|error| error.clone())?;
        context.read_back(encoded)?;
        let message_type = encoded.message_type();
        let (queue, id, correlation) = match follow_up.queue() {
            Some(queue) => {
                let position = Position { role, ordinal };
                let id = derived_id(&parent.id, encoded, position, queue);
                (queue.clone(), id, None)
            }
            None => {
                check_reply(message_type)?;
                let Some(queue) = reply_queue(parent) else {
                    return Ok(None);
                };
                let id = reply_id(&parent.id, message_type.kind(), role);
                (queue, id, Some(parent.id.to_string()))
            }
        };
        let (client, request) = (parent.client_id.clone(), parent.request_id.clone());
        let mut envelope = encoded.envelope(id, client, request);
        envelope.time = Some(now);
        envelope.queue_uri = Some(context.backend.queue_uri(&queue));
        envelope.correlation = correlation;
        envelope.trace = trace.cloned();
        let life = follow_up.time_to_live();
        let mut message = context
            .encoder
            .encode(encoded, &envelope)?
            .with_delay(follow_up.delay())
            .with_time_to_live(life.map_or(TimeToLive::Never, TimeToLive::After));
        if let Some(id) = follow_up.locator()
            && capabilities.tracking == Tracking::Supported
        {
            message = message.with_tracked(Some(id.clone()));
        }
        let limits = capabilities.limits(Operation::Put, &queue);
        limits.check_put(&message)?;
        Ok(Some((queue, message)))
    };
    let puts = numbered.filter_map(|one| encode(one).transpose());
    let puts = puts.collect::<Result<Vec<_>, _>>()?;
    check_one_step(capabilities, puts.iter())?;
    Ok(puts)
}

/// Checks that these puts and the operation on their parent fit into one
/// [`apply`](queue_core::backend::Backend::apply).
///
/// # Errors
/// How many puts there are, or how large they are, and what is allowed.
pub(crate) fn check_one_step<'a>(
    capabilities: &Capabilities,
    puts: impl Iterator<Item = &'a (QueueName, NewMessage)> + Clone,
) -> Result<(), FollowUpError> {
    let (count, most) = (
        puts.clone().count(),
        capabilities.max_apply.saturating_sub(1),
    );
    if count > most {
        let refused = format!("it has {count} follow-ups; one settlement takes {most} at most");
        return Err(refused.into());
    }
    let (mut bytes, mut largest) = (0_usize, 0);
    for (_, message) in puts {
        bytes = bytes.saturating_add(message.body.len());
        largest = largest.max(message.body.len());
    }
    let (bytes, most) = (bytes - largest, capabilities.max_apply_bytes);
    if bytes > most {
        let refused = format!(
            "its follow-ups have {bytes} bytes besides the largest; one settlement takes {most} at most"
        );
        return Err(refused.into());
    }
    Ok(())
}

/// Checks that a reply of this type says which request it answers.
fn check_reply(message_type: &MessageType) -> Result<(), FollowUpError> {
    let (kind, wire) = (message_type.kind(), message_type.wire());
    if wire.is_event() {
        return Ok(());
    }
    let refused = format!(
        "a `{kind}` message cannot be a reply: its type declares `wire = \"{wire}\"`, which has no room for the id of the \
         request"
    );
    Err(refused.into())
}

/// Returns the time to live of a message unless its sender sets one.
pub(crate) fn time_to_live(message_type: &MessageType) -> TimeToLive {
    message_type
        .time_to_live()
        .map_or(TimeToLive::Never, TimeToLive::After)
}

/// How a message ended, in place of a reply to it. An `Unreplied` travels like a reply, under a kind of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, queue_derive::Message)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[message(kind = "queue.no-reply", queue = "no-reply", crate = queue_core)]
pub(crate) enum Unreplied {
    /// The message was completed without a reply.
    Completed,
    /// The message was cancelled.
    Cancelled,
    /// The message was moved to the poison queue.
    Poisoned {
        /// The reason, as in a poison record.
        reason: String,
        attempts: usize,
        /// The error and its causes, if the consumer lets its senders know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

impl Unreplied {
    /// Returns how the request ended, if `body` is what its sender gets in place of a reply.
    ///
    /// # Errors
    /// [`DecodeError`] if a body of this kind cannot be read.
    pub(crate) fn read(body: &Body) -> Result<Option<Self>, DecodeError> {
        match body {
            Body::Event(event) if event.envelope.kind == Self::TYPE.kind() => {
                body.decode().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the message that tells the sender of `request` how it ended, to be put together with its settlement and
    /// these `puts`.
    ///
    /// Nobody is told who has asked for no reply, gets one by these puts, or was told when the message was moved to the
    /// poison queue on which it is. A redrive removes the poison record, so the sender of a redriven message that ends
    /// again is told again: the request has ended, and drops that.
    pub(crate) fn notice(
        &self,
        context: &Context,
        request: &Envelope,
        puts: &[(QueueName, NewMessage)],
    ) -> Option<(QueueName, NewMessage)> {
        let reply_to = request.reply_to.as_ref()?.parse().ok();
        let queue = reply_to.filter(QueueName::is_reply_queue)?;
        if request.poison.is_some() || puts.iter().any(|(to, _)| *to == queue) {
            return None;
        }
        let role = match self {
            Self::Completed | Self::Cancelled => Role::Handler,
            Self::Poisoned { .. } => Role::OnPoison,
        };
        let notice = encode_follow_ups(context, request, &[FollowUp::reply(self)], role, 0);
        let fitting = notice.and_then(|mut notice| {
            let all = puts.iter().chain(&notice);
            check_one_step(context.backend.capabilities(), all)?;
            Ok(notice.pop())
        });
        fitting.unwrap_or_else(|refusal| {
            let (id, error) = (&request.id, error_chain(&*refusal));
            tracing::warn!(%id, error, "failed to tell the sender of a request that no reply comes: the settlement has no room for the notice");
            None
        })
    }

    /// The outcome of a message that is moved to the poison queue.
    pub(crate) fn poisoned(reason: PoisonReason, attempts: usize, error: Option<String>) -> Self {
        Self::Poisoned {
            reason: reason.as_str().to_owned(),
            // The count has 32 bits on the wire.
            attempts: as_count(as_u32(attempts)),
            error,
        }
    }
}

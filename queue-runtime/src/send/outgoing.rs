//! Follow-ups: their ids, and the messages that a backend puts.

use queue_core::backend::{NewMessage, TimeToLive};
use queue_core::encoder::Origin;
use queue_core::envelope::Envelope;
use queue_core::internal::canonical;
use queue_core::{FollowUp, MessageId, MessageType, QueueName};
use serde_json::Value;

use crate::context::Context;

/// Which of a message's follow-ups one is, if its key does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) role: Role,
    pub(crate) ordinal: u32,
}

/// Who asked for a follow-up. What `on_poison` asks for must not get an id that a handler used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Handler,
    OnPoison,
}

/// The id of a follow-up: the same for the same parent, kind and key (or position).
pub(crate) fn derived_id(
    parent: &MessageId,
    kind: &str,
    key: Option<&[Value]>,
    position: Position,
) -> MessageId {
    let ordinal = position.ordinal;
    let name = match (key, position.role) {
        (Some(fields), _) => format!("key {}", canonical(&Value::from(fields.to_vec()))),
        (None, Role::Handler) => format!("ordinal {ordinal}"),
        (None, Role::OnPoison) => format!("on-poison {ordinal}"),
    };
    MessageId::derived(parent, kind, &name)
}

/// Encodes the follow-ups of the message in `parent`, ready to be put. `first` is the ordinal of the
/// first of them.
///
/// # Errors
/// The first follow-up that cannot be encoded, or is too large.
pub(crate) fn encode_follow_ups(
    context: &Context,
    parent: &Envelope,
    follow_ups: &[FollowUp],
    role: Role,
    first: u32,
) -> Result<Vec<(QueueName, NewMessage)>, Box<dyn std::error::Error + Send + Sync>> {
    let now = context.clock.now();
    let numbered = follow_ups.iter().zip(first..);
    numbered
        .map(|(follow_up, ordinal)| {
            let encoded = follow_up.encoded().map_err(|error| error.clone())?;
            let message_type = encoded.message_type();
            let queue = message_type.queue();
            let position = Position { role, ordinal };
            let origin = Origin {
                id: derived_id(&parent.id, message_type.kind(), encoded.key(), position),
                client: parent.client.clone(),
                request: parent.request.clone(),
                time: now,
                queue_uri: Some(context.backend.queue_uri(&queue)),
                trace: parent.trace.clone(),
            };
            let message = NewMessage::new(context.encoder.encode(encoded, origin)?)
                .with_delay(follow_up.delay())
                .with_time_to_live(time_to_live(message_type));
            Ok((queue, message))
        })
        .collect()
}

/// How long a message of that type lives unless its sender says otherwise.
pub(crate) fn time_to_live(message_type: &MessageType) -> TimeToLive {
    message_type
        .time_to_live()
        .map_or(TimeToLive::Never, TimeToLive::After)
}

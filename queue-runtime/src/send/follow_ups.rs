//! Follow-ups: deriving their ids, encoding them for a backend, and checking them against its limits.

use queue_core::backend::{NewMessage, TimeToLive};
use queue_core::encoder::Origin;
use queue_core::envelope::Envelope;
use queue_core::internal::canonical;
use queue_core::{FollowUp, MessageId, MessageType, Operation, QueueName};
use serde_json::Value;

use crate::backend::limits::Limits;
use crate::context::Context;

/// The position of a follow-up among those of its parent, which identifies one without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) role: Role,
    pub(crate) ordinal: u32,
}

/// Who submits a follow-up. One from `on_poison` must not get the id of one from a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Handler,
    OnPoison,
}

/// Returns the id of a follow-up: always the same for the same parent, kind and key (or position).
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

/// Encodes the follow-ups of the message with the envelope `parent`. `first` is the ordinal of the first
/// follow-up.
///
/// # Errors
/// If the backend can never store one of them: it cannot be encoded, is too large, or its delay is over the
/// limit or not below its time to live. The error is that of the first such follow-up.
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
            let message = NewMessage::new(context.encoder.encode(encoded, &origin)?)
                .with_delay(follow_up.delay())
                .with_time_to_live(time_to_live(message_type));
            let limits = Limits {
                capabilities: context.backend.capabilities(),
                operation: Operation::Put,
                queue: &queue,
            };
            limits.check_put(&message)?;
            Ok((queue, message))
        })
        .collect()
}

/// Returns the time to live of a message if its sender does not set one.
pub(crate) fn time_to_live(message_type: &MessageType) -> TimeToLive {
    message_type
        .time_to_live()
        .map_or(TimeToLive::Never, TimeToLive::After)
}

//! Follow-ups: deriving their ids, encoding them for a backend, and checking them against its limits.

use queue_core::backend::{Capabilities, NewMessage, TimeToLive};
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

/// Why follow-ups can never be stored.
type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// Encodes the follow-ups of the message with the envelope `parent`. `first` is the ordinal of the first
/// follow-up.
///
/// # Errors
/// If the backend can never store one of them: it cannot be encoded, is too large, or its delay is over the
/// limit or not below its time to live. The error is that of the first such follow-up. Also if they are more
/// than the backend takes in one step with the settlement of their parent.
pub(crate) fn encode_follow_ups(
    context: &Context,
    parent: &Envelope,
    follow_ups: &[FollowUp],
    role: Role,
    first: u32,
) -> Result<Vec<(QueueName, NewMessage)>, Refusal> {
    let now = context.clock.now();
    let capabilities = context.backend.capabilities();
    check_count(capabilities, follow_ups.len())?;
    let numbered = follow_ups.iter().zip(first..);
    let encode = |(follow_up, ordinal): (&FollowUp, u32)| -> Result<_, Refusal> {
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
            capabilities,
            operation: Operation::Put,
            queue: &queue,
        };
        limits.check_put(&message)?;
        Ok((queue, message))
    };
    let puts = numbered.map(encode).collect::<Result<Vec<_>, _>>()?;
    check_bytes(capabilities, &puts)?;
    Ok(puts)
}

/// Checks that the follow-ups and the operation on their parent fit into one
/// [`apply`](queue_core::backend::Backend::apply).
fn check_count(capabilities: &Capabilities, count: usize) -> Result<(), Refusal> {
    let most = capabilities.max_apply.saturating_sub(1);
    if count > most {
        let refused = format!("it has {count} follow-ups; one settlement takes {most} at most");
        return Err(refused.into());
    }
    Ok(())
}

fn check_bytes(
    capabilities: &Capabilities,
    puts: &[(QueueName, NewMessage)],
) -> Result<(), Refusal> {
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

/// Returns the time to live of a message if its sender does not set one.
pub(crate) fn time_to_live(message_type: &MessageType) -> TimeToLive {
    message_type
        .time_to_live()
        .map_or(TimeToLive::Never, TimeToLive::After)
}

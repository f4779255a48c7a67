//! From a typed message to the bytes that a backend puts: `message → envelope → wire → backend`.

use std::time::Duration;

use queue_core::backend::{NewMessage, TimeToLive};
use queue_core::envelope::{Envelope, TraceContext};
use queue_core::idempotency::canonical;
use queue_core::wire::{self, ACCOUNTING_RESERVE};
use queue_core::{
    ClientId, FollowUp, IdempotencyKey, MessageId, MessageType, QueueName, RequestId, Timestamp,
    Wire,
};
use serde_json::Value;

use crate::encoding::Encoder;

/// A message whose payload is encoded and whose envelope is known.
pub(crate) struct Outgoing<'a> {
    pub(crate) message_type: &'a MessageType,
    pub(crate) key: Option<&'a [Value]>,
    pub(crate) payload: &'a [u8],
    pub(crate) id: MessageId,
    pub(crate) client: ClientId,
    pub(crate) request: RequestId,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) delay: Duration,
    pub(crate) time_to_live: TimeToLive,
}

/// A body that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the `{kind}` message takes {size} bytes on the wire, and {limit} are allowed")]
pub struct TooLarge {
    kind: &'static str,
    size: usize,
    limit: usize,
}

impl TooLarge {
    /// The size of the body, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The largest size that is allowed, in bytes. What attempt accounting may need is kept free.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }
}

impl Outgoing<'_> {
    /// What is put.
    pub(crate) fn pack(
        self,
        encoder: Encoder,
        queue_uri: String,
        now: Timestamp,
    ) -> Result<NewMessage, TooLarge> {
        let kind = self.message_type.kind;
        let (body, reserve) = match self.message_type.wire {
            Wire::Bare => (self.payload.to_vec(), 0),
            _ => {
                let mut envelope = Envelope::new(self.id, self.client, self.request, kind);
                envelope.version = self.message_type.version;
                envelope.time = Some(now);
                envelope.subject = self.key.map(|fields| {
                    IdempotencyKey::of_fields(self.message_type, &envelope.request, fields)
                        .as_str()
                        .to_owned()
                });
                envelope.queue_uri = Some(queue_uri);
                envelope.trace = self.trace;
                let body = if is_json(self.payload) {
                    envelope.content_type = Some("application/json".to_owned());
                    wire::encode(&envelope, self.payload)
                } else {
                    envelope.content_type = Some("application/octet-stream".to_owned());
                    wire::encode_binary(&envelope, self.payload)
                };
                (body, ACCOUNTING_RESERVE)
            }
        };
        let limit = encoder.raw_limit().saturating_sub(reserve);
        if body.len() > limit {
            return Err(TooLarge {
                kind,
                size: body.len(),
                limit,
            });
        }
        Ok(NewMessage::new(encoder.stored(body))
            .with_delay(self.delay)
            .with_time_to_live(self.time_to_live))
    }
}

/// A type that implements `Message` by hand may have another format.
fn is_json(payload: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok()
}

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

/// A follow-up of the message in `parent`, ready to be put.
pub(crate) fn pack_follow_up(
    follow_up: &FollowUp,
    parent: &Envelope,
    position: Position,
    encoder: Encoder,
    queue_uri: impl FnOnce(&QueueName) -> String,
    now: Timestamp,
) -> Result<(QueueName, NewMessage), Box<dyn std::error::Error + Send + Sync>> {
    let message_type = follow_up.message_type();
    let queue: QueueName = message_type.queue.parse()?;
    let (key, payload) = follow_up
        .content()
        .map_err(|error| queue_core::disposition::error_chain(error))?;
    let outgoing = Outgoing {
        message_type,
        key,
        payload,
        id: derived_id(&parent.id, message_type.kind, key, position),
        client: parent.client.clone(),
        request: parent.request.clone(),
        trace: parent.trace.clone(),
        delay: follow_up.delay(),
        time_to_live: time_to_live(message_type),
    };
    let uri = queue_uri(&queue);
    Ok((queue, outgoing.pack(encoder, uri, now)?))
}

/// How long a message of that type lives unless its sender says otherwise.
pub(crate) fn time_to_live(message_type: &MessageType) -> TimeToLive {
    message_type
        .time_to_live
        .map_or(TimeToLive::Never, TimeToLive::After)
}

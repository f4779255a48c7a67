//! What the sender of a request gets if its message ends without a reply.

use queue_core::backend::NewMessage;
use queue_core::envelope::{Envelope, PoisonReason};
use queue_core::internal::error_chain;
use queue_core::wire::Body;
use queue_core::{DecodeError, FollowUp, Message as _, QueueName};
use serde::{Deserialize, Serialize};

use super::follow_ups::{Role, check_one_step, encode_follow_ups};
use crate::kernel::context::Context;

/// How a message ended, in place of a reply to it. It travels like a reply, under a kind of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, queue_derive::Message)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[message(kind = "queue.no-reply", queue = "no-reply", crate = queue_core)]
pub(crate) enum Unreplied {
    /// It was completed without one.
    Completed,
    /// It was moved to the poison queue.
    Poisoned {
        /// As in a poison record.
        reason: String,
        attempts: u32,
        /// The error and its causes, if the consumer lets its senders know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

impl Unreplied {
    /// Returns how the request ended, if this is what its sender gets in place of a reply.
    ///
    /// # Errors
    /// [`DecodeError`] if it is, but cannot be read.
    pub(crate) fn read(body: &Body) -> Result<Option<Self>, DecodeError> {
        match body {
            Body::Event(event) if event.envelope.kind == Self::TYPE.kind() => {
                body.decode().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Adds the message that tells the sender of `request` how it ended to what is put together with its settlement.
    /// Returns its queue.
    ///
    /// Nobody is told who has asked for no reply, gets one by these puts, or was told when the message was moved to the
    /// poison queue on which it is. A redrive removes that record, so one that is redriven and ends again is told again: the
    /// request has ended, and drops it.
    pub(crate) fn tell(
        &self,
        context: &Context,
        request: &Envelope,
        puts: &mut Vec<(QueueName, NewMessage)>,
    ) -> Option<QueueName> {
        let reply_to = request.reply_to.as_ref()?.parse().ok();
        let queue = reply_to.filter(QueueName::is_reply_queue)?;
        if request.poison.is_some() || puts.iter().any(|(to, _)| *to == queue) {
            return None;
        }
        let role = match self {
            Self::Completed => Role::Handler,
            Self::Poisoned { .. } => Role::OnPoison,
        };
        let untold = puts.len();
        let told = encode_follow_ups(context, request, &[FollowUp::reply(self)], role, 0);
        let fits = told.and_then(|told| {
            puts.extend(told);
            check_one_step(context.backend.capabilities(), puts)
        });
        if let Err(refusal) = fits {
            puts.truncate(untold);
            let (id, error) = (&request.id, error_chain(&*refusal));
            tracing::warn!(%id, error, "the sender of a request is not told that it gets no reply: there is no room for that");
            return None;
        }
        Some(queue)
    }

    /// The outcome of a message that is moved to the poison queue.
    pub(crate) fn poisoned(reason: PoisonReason, attempts: u32, error: Option<String>) -> Self {
        Self::Poisoned {
            reason: reason.as_str().to_owned(),
            attempts,
            error,
        }
    }
}

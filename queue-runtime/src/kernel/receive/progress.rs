//! How far a handler has got with a message: its checkpoints.

use std::sync::Mutex;

use bytes::Bytes;
use queue_core::envelope::Envelope;
use queue_core::internal::LockExt as _;
use queue_core::internal::{escape_json, json_error, to_json_and_back};
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, JsonError, MessageId, Operation, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kernel::context::Context;
use crate::kernel::lease::{Lease, Rewriter};

/// The largest checkpoint, in bytes, as it is written into the message. With the record of attempts, a checkpoint fits
/// into the space that `submit` reserves in a message.
pub const MAX_CHECKPOINT: usize = 1024;

/// The last checkpoint of a message.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<Option<String>>);

impl Progress {
    pub(super) fn of(envelope: &Envelope) -> Self {
        Self(Mutex::new(envelope.attempts.progress.clone()))
    }

    pub(crate) fn text(&self) -> Option<String> {
        self.0.hold().clone()
    }

    fn set(&self, text: String) {
        *self.0.hold() = Some(text);
    }

    /// Reads the last checkpoint.
    pub(super) fn read<S: DeserializeOwned>(&self) -> Result<Option<S>, JsonError> {
        let text = self.text();
        let state = text.map(|text| serde_json::from_str(&text)).transpose();
        state.map_err(|error| json_error(&error))
    }
}

/// Writes checkpoints into a message.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// `None` for a message that was made by hand and is stored nowhere.
    rewriter: Option<Rewriter>,
    /// The event's bytes. `None` for a body that is not an event.
    event: Option<Bytes>,
}

impl Checkpoints {
    pub(super) fn new(lease: &Lease, body: &Body) -> Self {
        Self::over(Some(lease.rewriter()), body)
    }

    /// Without a `rewriter`, checkpoints are stored nowhere, and can be read by the message's handler only.
    pub(super) fn over(rewriter: Option<Rewriter>, body: &Body) -> Self {
        let event = match body {
            Body::Event(event) => Some(event.body.clone()),
            _ => None,
        };
        Self { rewriter, event }
    }

    /// Writes a checkpoint with the update that renews the lease.
    pub(super) async fn write(
        &self,
        context: &Context,
        envelope: &Envelope,
        progress: &Progress,
        state: &(impl Serialize + DeserializeOwned),
    ) -> Result<(), CheckpointErrorKind> {
        let Some(event) = &self.event else {
            return Err(CheckpointErrorKind::Bare);
        };
        let text = encode(state)?;
        let mut record = envelope.attempts.clone();
        record.progress = Some(text.clone());
        let encoder = context.encoder;
        let Some(body) = encoder.put_back_body(event, envelope.poison.as_ref(), &record) else {
            return Err(CheckpointErrorKind::NoRoom {
                size: text.len(),
                limit: encoder.raw_limit(),
            });
        };
        // Set before the answer: whether or not the update is carried out, this is how far the work has got, and
        // a put-back writes it again.
        progress.set(text);
        let Some(rewriter) = &self.rewriter else {
            return Ok(());
        };
        let written = context.background.finish(rewriter.rewrite(body));
        match written.await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.is_lease_gone() => Err(CheckpointErrorKind::LeaseLost(error)),
            Some(Err(error)) => Err(CheckpointErrorKind::Storage(error)),
            None => {
                let closed =
                    Error::new(ErrorKind::Closed, Operation::Update).with_outcome(Outcome::Unknown);
                Err(CheckpointErrorKind::Storage(closed))
            }
        }
    }
}

/// Encodes a checkpoint as JSON that an attribute of an event can hold.
fn encode(state: &(impl Serialize + DeserializeOwned)) -> Result<String, CheckpointErrorKind> {
    let json = to_json_and_back(state).map_err(CheckpointErrorKind::Encode)?;
    let json = String::from_utf8(json).expect("JSON is text");
    let text = escape_json(&json);
    let written = serde_json::to_string(&text).map_err(CheckpointErrorKind::Encode)?;
    // Less the quotes.
    let size = written.len() - 2;
    if size > MAX_CHECKPOINT {
        return Err(CheckpointErrorKind::TooLarge {
            size,
            limit: MAX_CHECKPOINT,
        });
    }
    Ok(text)
}

/// An error of writing a checkpoint.
///
/// ```
/// use queue_runtime::receive::{CheckpointError, CheckpointErrorKind};
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// # service.submit(Order { number: 7 }).await?;
/// let order = service.accept::<Order>().await?.expect("just submitted");
/// let error = order.checkpoint(&"x".repeat(5000)).await.unwrap_err();
/// assert!(matches!(error.kind, CheckpointErrorKind::TooLarge { size: 5004, limit: 1024, .. }));
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct CheckpointError {
    /// The message.
    pub id: MessageId,
    /// What is wrong.
    pub kind: CheckpointErrorKind,
}

/// Why a checkpoint was not written. The kind of a [`CheckpointError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointErrorKind {
    /// The state cannot be encoded as JSON, or its type does not read the JSON as the same value. The previous
    /// checkpoint stays.
    #[error("the checkpoint cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// The encoded state is too large.
    #[error(
        "the checkpoint has {size} bytes, and {limit} are allowed; write the state elsewhere, and its name in the checkpoint"
    )]
    TooLarge {
        /// The state's size in bytes, with the escapes it needs inside the message.
        size: usize,
        /// The limit of `size`, in bytes.
        limit: usize,
    },
    /// The message has no room for the checkpoint. A message submitted by this library always has room.
    #[error("with the {size} bytes of the checkpoint, the message would exceed {limit} bytes")]
    NoRoom {
        /// The size of the checkpoint in bytes.
        size: usize,
        /// The limit of the whole message, in bytes.
        limit: usize,
    },
    /// The message is a bare body, which belongs to its producer and is never rewritten.
    #[error("a bare body has no room for a checkpoint")]
    Bare,
    /// The lease has ended, or the message is settled. The checkpoint was not written.
    #[error("the lease was lost")]
    LeaseLost(#[source] Error),
    /// The storage failed; unless the process ends before the message is settled, the next attempt still reads the
    /// checkpoint.
    #[error("the storage failed")]
    Storage(#[source] Error),
}

queue_core::debug_as_text!(CheckpointErrorKind);

queue_core::error_around!(kind in CheckpointError; |error, f| {
    write!(f, "failed to write a checkpoint of message {}: {}", error.id, error.kind)
};
    /// Whether the checkpoint may have been written.
    outcome: match &error.kind {
        CheckpointErrorKind::LeaseLost(error) | CheckpointErrorKind::Storage(error) => error.outcome(),
        _ => Outcome::NotDone,
    }
);

#[cfg(test)]
mod tests {
    use queue_core::internal::is_forbidden;

    use super::*;

    #[test]
    fn characters_that_an_attribute_cannot_hold_are_escaped_as_json() {
        let state = "line\nbreak \u{85} \u{fffe} \u{1fffe} plain".to_owned();
        let text = encode(&state).expect("small");
        assert!(!text.chars().any(is_forbidden), "{text:?}");
        let read: String = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read, state);
    }

    #[test]
    fn the_limit_counts_the_escapes_inside_the_message() {
        // Quotes around the text and `\"` for each of them: four bytes.
        let fits = "x".repeat(MAX_CHECKPOINT - 4);
        encode(&fits).expect("the largest");
        let error = encode(&(fits + "x")).expect_err("too large");
        let expected = MAX_CHECKPOINT + 1;
        assert!(
            matches!(error, CheckpointErrorKind::TooLarge { size, .. } if size == expected),
            "{error}"
        );
    }
}

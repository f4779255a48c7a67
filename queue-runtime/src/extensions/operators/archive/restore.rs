//! Putting archived messages on a queue again.

use std::time::Duration;

use queue_core::backend::{Attachment, Attachments, NewMessage, Op, TimeToLive};
use queue_core::encoder::{Encoder, MessageEncoding};
use queue_core::internal::unwrap_base64;
use queue_core::wire::{Body, Payload};
use queue_core::{Error, ErrorKind, Operation, Result};

use super::{ArchivedMessage, check_data};
use crate::kernel::context::Context;
use crate::kernel::notify::Announced;
use crate::kernel::repeat::Repeats;
use crate::service::AnyQueue;

/// The error of [`AnyQueue::restore`].
#[derive(Clone, thiserror::Error)]
#[error("failed to restore message {}: {error}", restored + 1)]
#[non_exhaustive]
pub struct RestoreError {
    /// How many of the first messages were put on the queue. If the [outcome](Error::outcome) of the error is unknown, some
    /// of the next ones may have been too.
    pub restored: usize,
    /// The error.
    pub error: Error,
}

queue_core::debug_as_text!(RestoreError);

impl AnyQueue {
    /// Puts archived messages on this queue, with the ids, attempts and poison records that they had. The queue must exist.
    /// Those of an atomic storage are put together, as many as fit in one operation.
    ///
    /// Restoring a message twice puts two messages with the same id: consumers that
    /// [recognise copies](crate::idempotency) handle it once. What the storage certainly did not do is tried again, as the
    /// [`StorageRetry`](crate::StorageRetry) of the service allows since the last message that was put.
    ///
    /// # Errors
    /// [`RestoreError`]: [`ErrorKind::InvalidInput`] if a message is not what [`archive`](Self::archive) or
    /// [`take`](Self::take) have returned, [`ErrorKind::Unsupported`] if this service has no place for data that is attached
    /// to it; otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the messages may have been put.
    pub async fn restore(&self, messages: &[ArchivedMessage]) -> Result<(), RestoreError> {
        let context = &*self.context;
        let failed = |restored, error| RestoreError { restored, error };
        let mut ops = Vec::with_capacity(messages.len());
        let mut refused = Ok(());
        for message in messages {
            match message.to_new(context) {
                Ok(message) => ops.push(Op::Put {
                    queue: self.name.clone(),
                    message,
                }),
                Err(error) => {
                    refused = Err(failed(ops.len(), error.with_queue(&self.name)));
                    break;
                }
            }
        }
        // Those before one that is refused are put all the same.
        let put = self.put(ops).await;
        put.map_err(|(restored, error)| failed(restored, error))?;
        refused
    }

    /// Carries out puts. With an error, returns how many were done before it.
    async fn put(&self, mut ops: Vec<Op>) -> Result<(), (usize, Error)> {
        let Context {
            backend,
            clock,
            storage_retry,
            notifiers,
            ..
        } = &*self.context;
        let mut done = 0;
        let mut repeats = Repeats::by(storage_retry, &**clock);
        while !ops.is_empty() {
            // An operation that does not fit by itself is refused by the storage, with the reason.
            let fitting = backend.capabilities().fitting(&ops).max(1);
            let rest = ops.split_off(fitting.min(ops.len()));
            match backend.apply(ops.clone()).await {
                Ok(_) => {
                    notifiers.publish(Announced::puts_of(&ops));
                    done += ops.len();
                    ops = rest;
                    repeats.succeeded();
                }
                Err(failure) => {
                    let completed = failure.completed.len();
                    notifiers.publish(Announced::puts_of(&ops[..completed]));
                    done += completed;
                    ops.drain(..completed);
                    ops.extend(rest);
                    if completed > 0 {
                        repeats.succeeded();
                    }
                    let again = repeats.put_again(failure.error).await;
                    again.map_err(|error| (done, error))?;
                }
            }
        }
        Ok(())
    }
}

impl ArchivedMessage {
    fn to_new(&self, context: &Context) -> Result<NewMessage> {
        let refused = |detail: &str| {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Put).unsent();
            error.with_detail(detail)
        };
        let capabilities = context.backend.capabilities();
        // As it was: text that is not an event is not wrapped in Base64 once more.
        let as_text = Encoder::new(capabilities, MessageEncoding::Text);
        let (raw, stored) = match (&self.event, &self.text, &self.base64) {
            (Some(event), None, None) => {
                let raw = event.get().as_bytes().to_vec();
                let stored = context.encoder.stored(raw.clone());
                (raw, stored)
            }
            (None, Some(text), None) => {
                let raw = text.as_bytes().to_vec();
                (raw.clone(), as_text.stored(raw))
            }
            (None, None, Some(base64)) => {
                let raw = unwrap_base64(base64.as_bytes());
                let raw = raw.ok_or_else(|| refused("its `base64` is not Base64"))?;
                (raw.clone(), as_text.stored(raw))
            }
            _ => {
                let detail = "it has not just one of `event`, `text` and `base64`";
                return Err(refused(detail));
            }
        };
        let body = Body::read(&raw.into(), usize::MAX);
        if self.event.is_some() && body.envelope().is_none() {
            return Err(refused("its `event` is not a CloudEvent"));
        }
        if self.event.is_some() {
            check_data(&body).map_err(|error| {
                refused(&format!(
                    "the `data` of its `event` is not JSON that every reader accepts: {error}"
                ))
            })?;
        }
        let attachment = self.attachment_of(&body, refused)?;
        if attachment.is_some() && capabilities.attachments == Attachments::Unsupported {
            let error = Error::new(ErrorKind::Unsupported, Operation::Put).unsent();
            let detail = "it has data that does not fit a message, and this service has no store of payloads";
            return Err(error.with_detail(detail));
        }
        let delay = Duration::from_millis(self.delay_ms);
        let longest = capabilities.max_delay;
        if delay > longest {
            return Err(refused(&format!(
                "it is not visible for another {delay:?}; the maximum of this storage is {longest:?}"
            )));
        }
        let time_to_live = match self.time_to_live_ms {
            None => TimeToLive::Never,
            // It must exceed the delay, and Azure counts in seconds.
            Some(left) => {
                let least = delay + Duration::from_secs(1);
                TimeToLive::After(Duration::from_millis(left).max(least))
            }
        };
        let subject = body
            .envelope()
            .and_then(|envelope| envelope.subject.as_deref());
        let mut new = NewMessage::new(stored)
            .with_delay(delay)
            .with_time_to_live(time_to_live)
            .with_partition_key(subject);
        // It may have been written under other limits.
        new.moved = new.body.len() > capabilities.max_body;
        new.attachment = attachment.map(|data| Attachment::New(data.into()));
        Ok(new)
    }

    /// Returns the data that is to be attached, which must be there just if the event says so.
    fn attachment_of(
        &self,
        body: &Body,
        refused: impl Fn(&str) -> Error,
    ) -> Result<Option<Vec<u8>>> {
        let says_so = match body {
            Body::Event(event) => match &event.payload {
                Payload::Attached(attached) if attached.stored().is_none() => true,
                Payload::Attached(_) => {
                    let detail = "its data is said to be in a store of payloads, which only its own message may refer to";
                    return Err(refused(detail));
                }
                _ => false,
            },
            Body::Bare(_) | Body::Malformed(_) => false,
        };
        match (&self.attachment, says_so) {
            (None, false) => Ok(None),
            (Some(data), true) => match unwrap_base64(data.as_bytes()) {
                Some(data) => Ok(Some(data)),
                None => Err(refused("its `attachment` is not Base64")),
            },
            (None, true) => Err(refused("its event says that data is attached, and none is")),
            (Some(_), false) => Err(refused("data is attached, and its event does not say so")),
        }
    }
}

//! Messages outside of their queues: copied or taken from one, kept as text, and put back.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use queue_core::backend::{
    Attachment, Attachments, BrowsedMessage, NewMessage, Op, PageMark, PopReceipt, StorageId,
    TimeToLive,
};
use queue_core::encoder::{Encoder, MessageEncoding};
use queue_core::internal::{between, debug_fields, to_base64, unwrap_base64};
use queue_core::wire::{Body, Payload};
use queue_core::{Error, ErrorKind, Operation, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::queue::AnyQueue;
use crate::attachment::{Unread, read_attachment};
use crate::context::Context;
use crate::notify::Announced;
use crate::repeat::Repeats;

/// How many messages are deleted at once.
const AT_ONCE: usize = 32;

/// A message that was copied or taken from a queue: everything that [`AnyQueue::restore`] needs to put it on a queue again,
/// of the same storage or another one.
///
/// As JSON it takes one line. An event is in it as `event`, as it was on the wire: a CloudEvent with its ids, attempts and
/// poison record. Any other body is there as `text`, or as `base64` if it is not text. `attachment` is the data, in Base64,
/// that was attached to the message.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ArchivedMessage {
    /// The queue that it was on.
    pub queue: String,
    /// Its storage id there.
    pub storage_id: String,
    /// When it was put there, in that storage's time.
    pub inserted_at: Timestamp,
    /// The number of receives there.
    pub dequeue_count: u32,
    /// For how long it was to stay invisible, in milliseconds. 0 if it was visible, and if it had been received.
    #[serde(default)]
    pub delay_ms: u64,
    /// For how long it was to be kept, in milliseconds. `None` if it never expires.
    #[serde(default)]
    pub time_to_live_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attachment: Option<String>,
}

debug_fields!(ArchivedMessage {
    queue,
    storage_id,
    inserted_at,
    dequeue_count
});

/// A part of a queue's messages, from [`AnyQueue::archive`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ArchivedPage {
    /// The messages, in the order in which they become visible.
    pub messages: Vec<ArchivedMessage>,
    /// Those that could not be copied.
    pub left: Vec<Left>,
    /// Where the next page starts. `None` if there is none.
    pub next: Option<PageMark>,
}

/// A message that could not be copied or taken.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Left {
    /// Its storage id.
    pub storage_id: StorageId,
    /// Why.
    pub problem: String,
}

/// Messages that [`AnyQueue::take`] has leased.
#[derive(Debug)]
#[must_use = "the messages stay on their queue until `delete`"]
#[non_exhaustive]
pub struct Taken {
    /// The messages. Write them to where they are to be kept, and sync that, before [`delete`](Self::delete).
    pub messages: Vec<ArchivedMessage>,
    /// Those that could not be taken. They stay on the queue, invisible until the lease ends.
    pub left: Vec<Left>,
    queue: AnyQueue,
    held: Vec<Held>,
}

struct Held {
    id: StorageId,
    receipt: PopReceipt,
    body: Body,
}

debug_fields!(Held { id });

/// What [`Taken::delete`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TakenOff {
    /// Messages that were deleted.
    pub deleted: u64,
    /// Messages whose lease had ended, and that a consumer has received or deleted since. There is a copy of each.
    pub lost: u64,
}

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
    /// Copies up to `max` messages in any state, without changing anything: the first page, or the one at `from`, as
    /// [`browse`](Self::browse) does.
    ///
    /// ```
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
    /// let service = testing::service().await;
    /// service.submit(Order { number: 7 }).await?;
    ///
    /// let orders = service.queue::<Order>().any();
    /// let page = orders.archive(None, 100).await?;
    /// let line = serde_json::to_string(&page.messages[0])?;
    ///
    /// let copies = service.any_queue("copies")?;
    /// copies.create().await?;
    /// copies.restore(&[serde_json::from_str(&line)?]).await?;
    /// let copy = copies.accept().await?.expect("just restored");
    /// assert_eq!(copy.message().decode::<Order>()?.number, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`browse`](Self::browse); the backend's, if data that is attached to a message cannot be read now.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is changed.
    pub async fn archive(&self, from: Option<&PageMark>, max: u32) -> Result<ArchivedPage> {
        let page = self.context.backend.browse(&self.name, from, max).await?;
        let mut archived = ArchivedPage {
            messages: Vec::with_capacity(page.messages.len()),
            left: Vec::new(),
            next: page.next,
        };
        for message in page.messages {
            let id = message.id.clone();
            match self.archived(message, page.now).await? {
                Ok((message, _)) => archived.messages.push(message),
                Err(Some(problem)) => archived.left.push(Left::new(id, problem)),
                Err(None) => {}
            }
        }
        Ok(archived)
    }

    /// Receives up to `max` visible messages, to be kept elsewhere and deleted here. Nobody else receives them within
    /// `visibility`.
    ///
    /// The order of what follows is up to the caller: to write the messages, to make sure that they are kept, and then to
    /// [delete](Taken::delete) them. If that is interrupted, the messages become visible again when `visibility` is over, and
    /// a copy of each is where it was written, with the same id. This receive counts as an attempt then, unless the
    /// messages are [handed back](Taken::hand_back).
    ///
    /// # Errors
    /// The backend's error. Messages that were received then become visible again after `visibility`.
    ///
    /// # Cancel safety
    /// If the future is dropped, messages may have been received; they become visible again after `visibility`.
    pub async fn take(&self, max: u32, visibility: Duration) -> Result<Taken> {
        let received = self.context.backend.receive(&self.name, max, visibility);
        let received = received.await?;
        let mut taken = Taken {
            messages: Vec::with_capacity(received.len()),
            left: Vec::new(),
            queue: self.clone(),
            held: Vec::with_capacity(received.len()),
        };
        for mut message in received {
            let (id, now) = (message.id.clone(), message.received_at);
            // Nobody else had it when it was received.
            message.visible_at = now;
            let browsed = BrowsedMessage::from(message);
            let receipt = browsed.receipt.clone();
            match self.archived(browsed, now).await? {
                Ok((message, body)) => {
                    taken.messages.push(message);
                    taken.held.push(Held { id, receipt, body });
                }
                Err(Some(problem)) => taken.left.push(Left::new(id, problem)),
                Err(None) => {}
            }
        }
        Ok(taken)
    }

    /// Returns a message as it is archived, and its body; or why it cannot be, or `None` if it is gone.
    async fn archived(
        &self,
        message: BrowsedMessage,
        now: Timestamp,
    ) -> Result<Result<(ArchivedMessage, Body), Option<String>>> {
        if let Some(damage) = message.damage {
            return Ok(Err(Some(damage.into())));
        }
        let body = Body::read(&message.body, usize::MAX);
        let mut archived = ArchivedMessage {
            queue: self.name.to_string(),
            storage_id: message.id.as_str().to_owned(),
            inserted_at: message.inserted_at,
            dequeue_count: message.dequeue_count,
            delay_ms: match message.dequeue_count {
                0 => millis(between(now, message.visible_at)),
                _ => 0,
            },
            time_to_live_ms: message.expires_at.map(|at| millis(between(now, at))),
            event: None,
            text: None,
            base64: None,
            attachment: None,
        };
        let stored = match &body {
            Body::Event(event) => {
                if let Payload::Attached(attached) = &event.payload {
                    let (context, id) = (&self.context, &message.id);
                    let data = read_attachment(context, &self.name, id, &body, attached).await;
                    match data {
                        Ok(data) => archived.attachment = Some(to_base64(&data)),
                        Err(Unread::Failed(error)) => return Err(error),
                        Err(Unread::Gone) => return Ok(Err(None)),
                        Err(Unread::Done) => {
                            let problem = "it is a copy of a message that is done";
                            return Ok(Err(Some(problem.to_owned())));
                        }
                        Err(Unread::Damaged(problem) | Unread::Unusable(problem)) => {
                            return Ok(Err(Some(problem)));
                        }
                    }
                }
                let event = event.detached();
                match event_line(&event) {
                    Some(line) => {
                        archived.event = Some(line);
                        return Ok(Ok((archived, body)));
                    }
                    None => event,
                }
            }
            Body::Bare(_) | Body::Malformed(_) => message.body,
        };
        match String::from_utf8(stored.into()) {
            Ok(text) => archived.text = Some(text),
            Err(bytes) => archived.base64 = Some(to_base64(bytes.as_bytes())),
        }
        Ok(Ok((archived, body)))
    }

    /// Puts archived messages on this queue, with the ids, attempts and poison records that they had. The queue must exist.
    /// Those of an atomic storage are put together, as many as fit in one operation.
    ///
    /// Restoring a message twice puts two messages with the same id: consumers that
    /// [recognise copies](crate::idempotency) handle it once. What the storage certainly did not do is tried again, as the
    /// [`StorageRetry`](crate::StorageRetry) of the service allows.
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
        for (number, message) in messages.iter().enumerate() {
            let new = message.to_new(context);
            let message = new.map_err(|error| failed(number, error.with_queue(&self.name)));
            if let Err(error) = &message {
                // Those before it are put all the same.
                self.put(ops)
                    .await
                    .map_err(|(put, error)| failed(put, error))?;
                return Err(error.clone());
            }
            let queue = self.name.clone();
            ops.push(Op::Put {
                queue,
                message: message?,
            });
        }
        let put = self.put(ops).await;
        put.map_err(|(restored, error)| failed(restored, error))
    }

    /// Carries out puts. Returns how many were done before the error.
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
                    let paused = repeats.pause(failure.error).await;
                    paused.map_err(|error| (done, error))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns an event as a line of JSON, if it takes one line.
fn event_line(event: &Bytes) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(event).ok()?;
    let line = !text.contains(['\n', '\r']);
    line.then(|| RawValue::from_string(text.to_owned()).ok())?
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Left {
    fn new(storage_id: StorageId, problem: String) -> Self {
        Self {
            storage_id,
            problem,
        }
    }
}

impl ArchivedMessage {
    /// Returns the message id, if it is an event.
    #[must_use]
    pub fn message_id(&self) -> Option<String> {
        let body = Bytes::copy_from_slice(self.event.as_ref()?.get().as_bytes());
        let body = Body::read(&body, usize::MAX);
        Some(body.envelope()?.id.as_str().to_owned())
    }

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
        let attachment = self.attachment_of(&body, refused)?;
        if attachment.is_some() && capabilities.attachments == Attachments::Unsupported {
            let error = Error::new(ErrorKind::Unsupported, Operation::Put).unsent();
            let detail = "it has data that does not fit a message, and this service has no store of payloads";
            return Err(error.with_detail(detail));
        }
        let longest = capabilities.max_visibility;
        let delay = Duration::from_millis(self.delay_ms).min(longest);
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

impl Taken {
    /// Whether the queue had no visible message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.left.is_empty()
    }

    /// Deletes the messages from their queue, and releases the keys that they [hold](crate::Submit::unique_until_settled).
    ///
    /// # Errors
    /// The backend's error. Some of the messages may have been deleted. The others become visible again when their lease
    /// ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the messages may have been deleted.
    pub async fn delete(self) -> Result<TakenOff> {
        let deletions = stream::iter(&self.held)
            .map(|held| self.queue.delete_held(&held.id, &held.receipt, &held.body));
        // A local storage commits those together that come at once.
        let mut deletions = deletions.buffer_unordered(AT_ONCE);
        let mut report = TakenOff::default();
        while let Some(deleted) = deletions.next().await {
            match deleted {
                Ok(()) => report.deleted += 1,
                Err(error) if error.is_lease_gone() => report.lost += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Makes the messages visible again.
    ///
    /// # Errors
    /// The backend's error. The messages become visible again when their lease ends.
    pub async fn hand_back(self) -> Result<()> {
        let (context, name) = (&self.queue.context, &self.queue.name);
        for Held { id, receipt, .. } in &self.held {
            let update = context
                .backend
                .update(name, id, receipt, Duration::ZERO, None);
            match update.await {
                Ok(_) => {}
                Err(error) if error.is_lease_gone() => {}
                Err(error) => return Err(error),
            }
        }
        context
            .notifiers
            .publish([Announced::put_back(name, Duration::ZERO)]);
        Ok(())
    }
}

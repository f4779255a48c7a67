//! Messages outside of their queues: copied or taken from one, kept as text, and put back.

mod copied_from;
mod file;
mod search;
mod take;

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{
    Attachment, Attachments, BrowsedMessage, NewMessage, Op, PageMark, StorageId, TimeToLive,
    Tracking,
};
use queue_core::encoder::{Encoder, MessageEncoding};
use queue_core::internal::{
    between, check_json, debug_fields, error_chain, to_base64, unwrap_base64,
};
use queue_core::wire::{Body, Payload};
use queue_core::{Error, ErrorKind, Operation, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::kernel::attachment::{Unread, read_attachment};
use crate::kernel::context::Context;
use crate::kernel::notify::Announced;
use crate::kernel::repeat::Repeats;
use crate::service::AnyQueue;

use self::copied_from::CopiedFrom;

pub use self::file::ExportFile;
pub use self::take::{DeleteError, Taken, TakenOff};

/// A message that was copied or taken from a queue: everything that [`AnyQueue::import`] needs to put it on a queue again,
/// of the same storage or another one.
///
/// As JSON, an exported message takes one line. An exported event is the field `event`, as it was on the wire: a
/// CloudEvent with its ids, attempts and poison record. A body that is not an event is the field `text`, or `base64` if
/// it is not text. `attachment` is the data, in Base64, that was attached to the message.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExportedMessage {
    /// The queue that the message was on.
    pub queue: String,
    /// The storage id of the message on its queue.
    pub storage_id: String,
    /// The time when the message was put on its queue, by the storage's clock.
    pub inserted_at: Timestamp,
    /// The number of receives from the queue that the message was exported from.
    pub dequeue_count: usize,
    /// The time for which the message was to stay invisible, in milliseconds. 0 for a message that was visible or had
    /// been received.
    #[serde(default)]
    pub delay_ms: u64,
    /// For how long the message was to be kept, in milliseconds. `None` if the message never expires.
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
    #[serde(skip)]
    seen: Option<Box<CopiedFrom>>,
}

debug_fields!(ExportedMessage {
    queue,
    storage_id,
    inserted_at,
    dequeue_count
});

/// A part of a queue's messages, from [`AnyQueue::export`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExportedPage {
    /// The messages, in the order in which they become visible.
    pub messages: Vec<ExportedMessage>,
    /// The messages that could not be copied.
    pub left: Vec<Left>,
    /// The storage's time.
    pub now: Timestamp,
    /// Where the next page starts. `None` after the last page.
    pub next: Option<PageMark>,
}

/// A message that could not be copied or taken.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Left {
    /// The storage id of the message.
    pub storage_id: StorageId,
    /// The reason why the message could not be copied or taken.
    pub problem: String,
}

/// What became of a message that was to be copied.
enum Copied {
    Whole(Box<ExportedMessage>, Body),
    /// The message cannot be copied, for this reason.
    Left(String),
    Gone,
}

impl AnyQueue {
    /// Copies up to `max` messages in any state, without changing anything: the first page, or the page at `from`, as
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
    /// let page = orders.export(None, 100).await?;
    /// let line = serde_json::to_string(&page.messages[0])?;
    ///
    /// let copies = service.any_queue("copies")?;
    /// copies.create().await?;
    /// copies.import(&[serde_json::from_str(&line)?]).await?;
    /// let copy = copies.accept().await?.expect("just imported");
    /// assert_eq!(copy.message().decode::<Order>()?.number, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`browse`](Self::browse); the backend's error, if data that is attached to a message cannot be
    /// read now.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn export(&self, from: Option<&PageMark>, max: usize) -> Result<ExportedPage> {
        let backend = &self.context.backend;
        let browse = || backend.browse(&self.name, from, max);
        let page = self.context.ask(browse).await?;
        let mut exported = ExportedPage {
            messages: Vec::with_capacity(page.messages.len()),
            left: Vec::new(),
            now: page.now,
            next: page.next,
        };
        for message in page.messages {
            let (id, receipt, state) = (message.id.clone(), message.receipt.clone(), message.state);
            match self.exported(message, page.now).await? {
                Copied::Whole(mut message, body) => {
                    message.seen = Some(Box::new(CopiedFrom {
                        id,
                        receipt,
                        state,
                        body,
                    }));
                    exported.messages.push(*message);
                }
                Copied::Left(problem) => exported.left.push(Left::new(id, problem)),
                Copied::Gone => {}
            }
        }
        Ok(exported)
    }

    async fn exported(&self, message: BrowsedMessage, now: Timestamp) -> Result<Copied> {
        if let Some(damage) = message.damage {
            return Ok(Copied::Left(damage.into()));
        }
        let body = Body::read(&message.body, usize::MAX);
        let mut exported = ExportedMessage {
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
            seen: None,
        };
        let stored = match &body {
            Body::Event(event) => {
                if let Payload::Attached(attached) = &event.payload {
                    let (context, id) = (&self.context, &message.id);
                    let read = read_attachment(context, &self.name, id, &body, attached).await;
                    match read {
                        Ok(read) => exported.attachment = Some(to_base64(&read.stored)),
                        // What this service lacks keeps no other messages from being copied.
                        Err(Unread::Failed(error)) if error.kind() == ErrorKind::Unsupported => {
                            return Ok(Copied::Left(error_chain(&error)));
                        }
                        Err(Unread::Failed(error)) => return Err(error),
                        Err(Unread::Gone) => return Ok(Copied::Gone),
                        Err(Unread::Done) => {
                            let problem = "this copy is of a message that was handled";
                            return Ok(Copied::Left(problem.to_owned()));
                        }
                        Err(Unread::Damaged(problem) | Unread::Unusable(problem)) => {
                            return Ok(Copied::Left(problem));
                        }
                    }
                }
                let event = event.detached();
                // As text, the event is imported as it is, whatever a reader makes of it.
                let line = check_data(&body).ok().and_then(|()| event_line(&event));
                match line {
                    Some(line) => {
                        exported.event = Some(line);
                        return Ok(Copied::Whole(Box::new(exported), body));
                    }
                    None => event,
                }
            }
            Body::Bare(_) | Body::Malformed(_) => message.body,
        };
        match String::from_utf8(stored.into()) {
            Ok(text) => exported.text = Some(text),
            Err(bytes) => exported.base64 = Some(to_base64(bytes.as_bytes())),
        }
        Ok(Copied::Whole(Box::new(exported), body))
    }
}

/// Checks that a reader accepts the JSON of an event.
fn check_data(body: &Body) -> std::result::Result<(), String> {
    match body {
        Body::Event(event) => match &event.payload {
            Payload::Json(data) => check_json(data).map_err(|error| error.to_string()),
            _ => Ok(()),
        },
        Body::Bare(_) | Body::Malformed(_) => Ok(()),
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

impl ExportedMessage {
    /// Returns the message id, if the body is an event.
    #[must_use]
    pub fn message_id(&self) -> Option<String> {
        let body = Bytes::copy_from_slice(self.event.as_ref()?.get().as_bytes());
        let body = Body::read(&body, usize::MAX);
        Some(body.envelope()?.id.as_str().to_owned())
    }
}

/// The error of [`AnyQueue::import`].
#[derive(Clone)]
#[non_exhaustive]
pub struct ImportError {
    /// How many messages, counted from the first, were put on the queue. If the [outcome](Self::outcome) is unknown,
    /// further messages may have been put too.
    pub imported: usize,
    /// The error of the storage.
    pub error: Error,
}

queue_core::error_around!(
    error in ImportError;
    |this, f| write!(f, "failed to import message {}: {}", this.imported + 1, this.error);
    /// Whether further messages may have been put on the queue.
    outcome: this.error.outcome()
);

impl AnyQueue {
    /// Puts exported messages on this queue, with the ids, attempts and poison records that they had. The queue must exist.
    /// On an atomic storage, as many messages as fit in one operation are put together.
    ///
    /// Importing a message twice puts two messages with the same id: consumers that [recognise
    /// copies](crate::idempotency) handle it once. A put that the storage certainly did not do is tried again, as the
    /// service's [`StorageRetry`](crate::policy::StorageRetry) allows from the last successful put on.
    ///
    /// # Errors
    /// [`ImportError`]: [`ErrorKind::InvalidInput`] if a message is not what [`export`](Self::export) or
    /// [`take`](Self::take) have returned, [`ErrorKind::Unsupported`] if this service has no place for attached data;
    /// otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the messages may have been put.
    pub async fn import(&self, messages: &[ExportedMessage]) -> Result<(), ImportError> {
        let context = &*self.context;
        let failed = |imported, error| ImportError { imported, error };
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
        // Messages before one that is refused are put all the same.
        let put = self.put(ops).await;
        put.map_err(|(imported, error)| failed(imported, error))?;
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
            match backend.apply(ops.clone().into()).await {
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

impl ExportedMessage {
    fn to_new(&self, context: &Context) -> Result<NewMessage> {
        let refused = |detail: &str| {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Put).unsent();
            error.with_detail(detail)
        };
        let capabilities = context.backend.capabilities();
        // Text that is not an event is put as it was, not wrapped in Base64 once more.
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
            let detail =
                "it has data that does not fit a message, and this service has no payload store";
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
            // The lifetime must exceed the delay, and Azure counts in seconds.
            Some(left) => {
                let least = delay + Duration::from_secs(1);
                TimeToLive::After(Duration::from_millis(left).max(least))
            }
        };
        let mut new = NewMessage::new(stored)
            .with_delay(delay)
            .with_time_to_live(time_to_live)
            .with_keys_of(body.envelope());
        if body.poison().is_some() {
            new.group = None;
        }
        if capabilities.tracking == Tracking::Unsupported {
            new.tracked = None;
        }
        // The body may have been written under other limits.
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
                    let detail = "its data is said to be in a payload store, which only its own message may refer to";
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

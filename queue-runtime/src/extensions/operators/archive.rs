//! Messages outside of their queues: copied or taken from one, kept as text, and put back.

mod file;
mod restore;
mod take;

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{BrowsedMessage, PageMark, StorageId};
use queue_core::internal::{between, check_json, debug_fields, error_chain, to_base64};
use queue_core::wire::{Body, Payload};
use queue_core::{ErrorKind, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use self::file::ArchiveFile;
pub use self::restore::RestoreError;
pub use self::take::{DeleteError, Taken, TakenOff};
use crate::kernel::attachment::{Unread, read_attachment};
use crate::service::AnyQueue;

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

/// What became of a message that was to be copied.
enum Copied {
    Whole(Box<ArchivedMessage>, Body),
    /// It cannot be, for this reason.
    Left(String),
    Gone,
}

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
        let backend = &self.context.backend;
        let browse = || backend.browse(&self.name, from, max);
        let page = self.context.ask(browse).await?;
        let mut archived = ArchivedPage {
            messages: Vec::with_capacity(page.messages.len()),
            left: Vec::new(),
            next: page.next,
        };
        for message in page.messages {
            let id = message.id.clone();
            match self.archived(message, page.now).await? {
                Copied::Whole(message, _) => archived.messages.push(*message),
                Copied::Left(problem) => archived.left.push(Left::new(id, problem)),
                Copied::Gone => {}
            }
        }
        Ok(archived)
    }

    async fn archived(&self, message: BrowsedMessage, now: Timestamp) -> Result<Copied> {
        if let Some(damage) = message.damage {
            return Ok(Copied::Left(damage.into()));
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
                    let read = read_attachment(context, &self.name, id, &body, attached).await;
                    match read {
                        Ok(read) => archived.attachment = Some(to_base64(&read.stored)),
                        // What this service lacks does not keep the others from being copied.
                        Err(Unread::Failed(error)) if error.kind() == ErrorKind::Unsupported => {
                            return Ok(Copied::Left(error_chain(&error)));
                        }
                        Err(Unread::Failed(error)) => return Err(error),
                        Err(Unread::Gone) => return Ok(Copied::Gone),
                        Err(Unread::Done) => {
                            let problem = "it is a copy of a message that is done";
                            return Ok(Copied::Left(problem.to_owned()));
                        }
                        Err(Unread::Damaged(problem) | Unread::Unusable(problem)) => {
                            return Ok(Copied::Left(problem));
                        }
                    }
                }
                let event = event.detached();
                // As text, it is restored as it is, whatever a reader makes of it.
                let line = check_data(&body).ok().and_then(|()| event_line(&event));
                match line {
                    Some(line) => {
                        archived.event = Some(line);
                        return Ok(Copied::Whole(Box::new(archived), body));
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
        Ok(Copied::Whole(Box::new(archived), body))
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

impl ArchivedMessage {
    /// Returns the message id, if it is an event.
    #[must_use]
    pub fn message_id(&self) -> Option<String> {
        let body = Bytes::copy_from_slice(self.event.as_ref()?.get().as_bytes());
        let body = Body::read(&body, usize::MAX);
        Some(body.envelope()?.id.as_str().to_owned())
    }
}

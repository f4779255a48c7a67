//! Parsing of the service's replies.

use std::borrow::Cow;

use azure_core::http::headers::Headers;
use bytes::Bytes;
use jiff::SignedDuration;
use queue_azure_wire::xml::{Element, http_date};
use queue_core::backend::{
    Lease, Metadata, PeekedMessage, PopReceipt, PutReceipt, QueueProperties, ReceivedMessage,
    StorageId,
};
use queue_core::payload_store::{ObjectPage, StoredObject};
use queue_core::{QueueName, Timestamp};

use super::call::NEW_RECEIPT_HEADER;
use super::failure::Failure;

type Result<T> = std::result::Result<T, Failure>;

pub(super) fn put(body: &[u8]) -> Result<PutReceipt> {
    let mut message = messages(body)?
        .pop()
        .ok_or(Failure::Malformed("it contains no message"))?;
    let mut receipt = PutReceipt::new(
        message.id()?,
        message.receipt()?,
        message.date("InsertionTime")?,
        message.date("TimeNextVisible")?,
    );
    receipt.expires_at = message.expiry()?;
    Ok(receipt)
}

/// Reads the messages of a receive that asked for this visibility timeout, in seconds. An unreadable message becomes
/// visible again when its lease ends.
///
/// The service counts the timeout from the moment of the receive, so timeout and visibility time tell the service's
/// time at that moment.
pub(super) fn received(
    body: &[u8],
    queue: &QueueName,
    visibility: i32,
) -> Result<Vec<ReceivedMessage>> {
    let visibility = SignedDuration::from_secs(visibility.into());
    let read = |mut message: Fields| {
        let visible_at = message.date("TimeNextVisible")?;
        let received_at = visible_at.checked_sub(visibility);
        let mut received = ReceivedMessage::new(
            message.id()?,
            message.receipt()?,
            message.body()?,
            message.date("InsertionTime")?,
            received_at.map_err(|_| Failure::Malformed("a date is invalid"))?,
        );
        received.visible_at = visible_at;
        received.dequeue_count = message.count()?;
        received.expires_at = message.expiry()?;
        Ok(received)
    };
    readable(messages(body)?, queue, read)
}

pub(super) fn peeked(body: &[u8], queue: &QueueName) -> Result<Vec<PeekedMessage>> {
    let read = |mut message: Fields| {
        let mut peeked = PeekedMessage::new(
            message.id()?,
            message.body()?,
            message.date("InsertionTime")?,
        );
        peeked.dequeue_count = message.count()?;
        peeked.expires_at = message.expiry()?;
        Ok(peeked)
    };
    readable(messages(body)?, queue, read)
}

/// Reads the new lease from the headers of an update's reply.
pub(super) fn updated(headers: &Headers) -> Result<Lease> {
    let (mut receipt, mut visible_at) = (None, None);
    for (name, value) in headers.iter() {
        match name.as_str() {
            NEW_RECEIPT_HEADER => receipt = Some(PopReceipt::new(value.as_str())),
            "x-ms-time-next-visible" => visible_at = http_date(value.as_str()),
            _ => {}
        }
    }
    let receipt = receipt.ok_or(Failure::Malformed("it has no pop receipt"))?;
    let visible_at = visible_at.ok_or(Failure::Malformed("it has no visibility time"))?;
    Ok(Lease::new(receipt, visible_at))
}

pub(super) fn properties(headers: &Headers) -> Result<QueueProperties> {
    let (mut metadata, mut count) = (Metadata::new(), None);
    for (name, value) in headers.iter() {
        let (name, value) = (name.as_str(), value.as_str());
        if let Some(name) = name.strip_prefix("x-ms-meta-") {
            // Other clients may have set metadata that the contract does not allow; it is skipped.
            drop(metadata.insert(name, value));
        } else if name == "x-ms-approximate-messages-count" {
            count = value.parse().ok();
        }
    }
    let count = count.ok_or(Failure::Malformed("it has no message count"))?;
    Ok(QueueProperties::new(metadata, count))
}

/// Reads one page of queue names, and the marker of the next page.
pub(super) fn queues(body: &[u8]) -> Result<(Vec<QueueName>, Option<String>)> {
    let root = root(body, "EnumerationResults")?;
    let next = root
        .child("NextMarker")
        .map(|marker| marker.text.to_string());
    let queues = root.child("Queues").map_or(&[][..], |list| &list.children);
    let names = queues
        .iter()
        .filter_map(|queue| queue.child("Name")?.text.parse().ok());
    let names = names.collect();
    Ok((names, next.filter(|marker| !marker.is_empty())))
}

pub(super) fn blobs(body: &[u8]) -> Result<ObjectPage> {
    let root = root(body, "EnumerationResults")?;
    let next = root
        .child("NextMarker")
        .map(|marker| marker.text.to_string());
    let blobs = root.child("Blobs").map_or(&[][..], |list| &list.children);
    let read = |blob: &Element<'_>| {
        let properties = blob.child("Properties")?;
        // A blob is never changed, and an emulator may not tell when it was created.
        let created = properties.child("Last-Modified")?;
        Some(StoredObject {
            name: blob.child("Name")?.text.to_string(),
            size: properties.child("Content-Length")?.text.parse().ok()?,
            created: http_date(&created.text)?,
        })
    };
    let objects = blobs.iter().filter(|blob| blob.is("Blob"));
    let objects = objects.map(|blob| read(blob).ok_or(Failure::Malformed("a blob lacks a field")));
    Ok(ObjectPage {
        objects: objects.collect::<Result<_>>()?,
        next: next.filter(|marker| !marker.is_empty()),
    })
}

fn root<'a>(body: &'a [u8], name: &str) -> Result<Element<'a>> {
    match Element::parse(body) {
        Some(root) if root.is(name) => Ok(root),
        _ => Err(Failure::Malformed("unexpected XML")),
    }
}

fn messages(body: &[u8]) -> Result<Vec<Fields<'_>>> {
    let children = root(body, "QueueMessagesList")?.children;
    Ok(children.into_iter().map(Fields).collect())
}

/// Reads the messages that can be read, and logs the others.
///
/// # Errors
/// If there are messages and none can be read, because the queue is not empty.
fn readable<T>(
    messages: Vec<Fields<'_>>,
    queue: &QueueName,
    read: impl Fn(Fields<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut readable = Vec::with_capacity(messages.len());
    let mut unreadable = None;
    for message in messages {
        let id = message.0.child("MessageId").map(|id| id.text.to_string());
        match read(message) {
            Ok(message) => readable.push(message),
            Err(failure) => {
                tracing::error!(%queue, ?id, ?failure, "skipped an unreadable message in a reply");
                unreadable = Some(failure);
            }
        }
    }
    match unreadable {
        Some(failure) if readable.is_empty() => Err(failure),
        _ => Ok(readable),
    }
}

/// The fields of one message in a reply.
struct Fields<'a>(Element<'a>);

impl<'a> Fields<'a> {
    fn text(&mut self, name: &str) -> Result<Cow<'a, str>> {
        let children = &mut self.0.children;
        let child = children.iter_mut().find(|child| child.is(name));
        let child = child.ok_or(Failure::Malformed("a message lacks a field"))?;
        Ok(std::mem::take(&mut child.text))
    }

    fn id(&mut self) -> Result<StorageId> {
        self.text("MessageId").map(StorageId::new)
    }

    fn receipt(&mut self) -> Result<PopReceipt> {
        self.text("PopReceipt").map(PopReceipt::new)
    }

    fn body(&mut self) -> Result<Bytes> {
        self.text("MessageText")
            .map(|text| Bytes::from(text.into_owned()))
    }

    fn count(&mut self) -> Result<usize> {
        let count = self.text("DequeueCount")?;
        count
            .parse()
            .map_err(|_| Failure::Malformed("a dequeue count is not a number"))
    }

    fn date(&mut self, name: &str) -> Result<Timestamp> {
        http_date(&self.text(name)?).ok_or(Failure::Malformed("a date is invalid"))
    }

    /// The last day of the year 9999, which exceeds the range of a timestamp, means *never*.
    fn expiry(&mut self) -> Result<Option<Timestamp>> {
        let text = self.text("ExpirationTime")?;
        if text.contains(" 9999 ") {
            return Ok(None);
        }
        let date = http_date(&text).ok_or(Failure::Malformed("a date is invalid"))?;
        Ok(Some(date))
    }
}

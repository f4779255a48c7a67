//! The operations on messages.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderName;
use jiff::Timestamp;
use queue_azure_wire::code::Code;
use queue_azure_wire::xml::{Element, NEVER, can_carry, escaped};
use queue_azure_wire::{MAX_MESSAGES, MAX_TEXT, MAX_VISIBILITY};
use queue_core::QueueName;
use queue_core::backend::{
    BackendExt as _, NewMessage, PopReceipt, PutBackPlace, StorageId, TimeToLive,
};

use crate::account::Account;
use crate::answer::{Answer, Refusal, date};
use crate::attached::{self, Obstacle};
use crate::target::Query;

/// How long a message lives unless its sender says so.
const TIME_TO_LIVE: i64 = 7 * 24 * 60 * 60;

/// How long a message that is got stays invisible unless its consumer says so.
const VISIBILITY: i64 = 30;

pub(crate) async fn put(
    account: &Account,
    queue: &QueueName,
    query: &Query,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let delay = visibility(query, 0)?.unwrap_or(0);
    let life = query
        .within("messagettl", -1..=i64::MAX)?
        .unwrap_or(TIME_TO_LIVE);
    let out_of_range = |name| {
        let value = query.find(name).unwrap_or_default();
        Refusal::of_parameter(Code::OutOfRangeQueryParameterValue, name, value)
    };
    let mut message = NewMessage::new(text(body)?.ok_or(Code::InvalidXmlDocument)?);
    message.delay = seconds(delay);
    message.time_to_live = match life {
        -1 => TimeToLive::Never,
        0 => return Err(out_of_range("messagettl")),
        life if delay >= life => return Err(out_of_range("visibilitytimeout")),
        life => TimeToLive::After(seconds(life)),
    };
    let put = account.queues.put(queue, message).await;
    let put = put.map_err(|error| Refusal::of(&error))?;
    let shown = Shown {
        id: &put.id,
        inserted_at: put.inserted_at,
        expires_at: put.expires_at,
        lease: Some((&put.receipt, put.visible_at)),
        content: None,
    };
    Ok(list(StatusCode::CREATED, [shown]))
}

pub(crate) async fn get(
    account: &Account,
    queue: &QueueName,
    query: &Query,
) -> Result<Answer, Refusal> {
    let most = count(query)?;
    let visibility = seconds(visibility(query, 1)?.unwrap_or(VISIBILITY));
    let received = account.queues.receive(queue, most, visibility).await;
    let received = received.map_err(|error| Refusal::of(&error))?;
    let mut handed = HandedOut::new(account, queue);
    for message in &received {
        let shown = Shown {
            id: &message.id,
            inserted_at: message.inserted_at,
            expires_at: message.expires_at,
            lease: Some((&message.receipt, message.visible_at)),
            content: None,
        };
        let (count, damage) = (message.dequeue_count, message.damage.as_deref());
        handed.add(shown, count, &message.body, damage).await;
    }
    handed.answer()
}

pub(crate) async fn peek(
    account: &Account,
    queue: &QueueName,
    query: &Query,
) -> Result<Answer, Refusal> {
    let peeked = account.queues.peek(queue, count(query)?).await;
    let peeked = peeked.map_err(|error| Refusal::of(&error))?;
    let mut handed = HandedOut::new(account, queue);
    for message in &peeked {
        let shown = Shown {
            id: &message.id,
            inserted_at: message.inserted_at,
            expires_at: message.expires_at,
            lease: None,
            content: None,
        };
        let (count, damage) = (message.dequeue_count, message.damage.as_deref());
        handed.add(shown, count, &message.body, damage).await;
    }
    handed.answer()
}

/// The messages of an answer. Those that no text has all of are left out: they would keep the others from the client.
struct HandedOut<'m> {
    account: &'m Account,
    queue: &'m QueueName,
    shown: Vec<Shown<'m>>,
    left_out: Option<Refusal>,
}

impl<'m> HandedOut<'m> {
    fn new(account: &'m Account, queue: &'m QueueName) -> Self {
        Self {
            account,
            queue,
            shown: Vec::new(),
            left_out: None,
        }
    }

    async fn add(
        &mut self,
        mut shown: Shown<'m>,
        count: usize,
        body: &Bytes,
        damage: Option<&str>,
    ) {
        let (account, queue, id) = (self.account, self.queue, shown.id);
        match attached::whole(account, queue, id, body, damage).await {
            Ok(whole) => {
                shown.content = Some((count, whole));
                self.shown.push(shown);
            }
            Err(Obstacle { code, reason }) => {
                tracing::warn!(%id, %queue, reason, "a message is not handed out");
                let detail = format!("message {id} is not handed out: {reason}");
                self.left_out = Some(Refusal::with_detail(code, detail));
            }
        }
    }

    /// An empty list would say that the queue has no message.
    fn answer(self) -> Result<Answer, Refusal> {
        match self.left_out {
            Some(refusal) if self.shown.is_empty() => Err(refusal),
            _ => Ok(list(StatusCode::OK, self.shown)),
        }
    }
}

pub(crate) async fn clear(account: &Account, queue: &QueueName) -> Result<Answer, Refusal> {
    let cleared = account.queues.clear(queue).await;
    cleared.map_err(|error| Refusal::of(&error))?;
    Ok(Answer::empty(StatusCode::NO_CONTENT))
}

/// Hides a message for so long, and replaces its text if the request has one.
pub(crate) async fn update(
    account: &Account,
    queue: &QueueName,
    id: &StorageId,
    query: &Query,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let receipt = receipt(query)?;
    let missing =
        || Refusal::of_parameter(Code::MissingRequiredQueryParameter, "visibilitytimeout", "");
    let visibility = visibility(query, 0)?.ok_or_else(missing)?;
    let body = text(body)?.map(Bytes::from);
    let updated = match visibility {
        0 => {
            let place = PutBackPlace::After(Duration::ZERO);
            account
                .queues
                .put_back(queue, id, &receipt, place, body)
                .await
        }
        held => {
            account
                .queues
                .renew(queue, id, &receipt, seconds(held), body)
                .await
        }
    };
    let lease = updated.map_err(|error| Refusal::of(&error))?;
    let mut answer = Answer::empty(StatusCode::NO_CONTENT);
    answer.set(
        HeaderName::from_static("x-ms-popreceipt"),
        lease.receipt.reveal(),
    );
    answer.set(
        HeaderName::from_static("x-ms-time-next-visible"),
        &date(lease.visible_at),
    );
    Ok(answer)
}

pub(crate) async fn delete(
    account: &Account,
    queue: &QueueName,
    id: &StorageId,
    query: &Query,
) -> Result<Answer, Refusal> {
    let deleted = account.queues.delete(queue, id, &receipt(query)?).await;
    deleted.map_err(|error| Refusal::of(&error))?;
    Ok(Answer::empty(StatusCode::NO_CONTENT))
}

fn count(query: &Query) -> Result<usize, Refusal> {
    let most = query.within("numofmessages", 1..=MAX_MESSAGES as i64)?;
    Ok(most.map_or(1, |most| most as usize))
}

fn visibility(query: &Query, least: i64) -> Result<Option<i64>, Refusal> {
    query.within("visibilitytimeout", least..=MAX_VISIBILITY as i64)
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds.unsigned_abs())
}

fn receipt(query: &Query) -> Result<PopReceipt, Refusal> {
    let missing = || Refusal::of_parameter(Code::MissingRequiredQueryParameter, "popreceipt", "");
    let receipt = query
        .find("popreceipt")
        .filter(|receipt| !receipt.is_empty());
    Ok(PopReceipt::new(receipt.ok_or_else(missing)?))
}

/// Reads the text of a message, if the request has a body.
fn text(body: &[u8]) -> Result<Option<String>, Refusal> {
    if body.is_empty() {
        return Ok(None);
    }
    let message = Element::parse(body).filter(|message| message.is("QueueMessage"));
    let message = message.ok_or(Code::InvalidXmlDocument)?;
    let text = message
        .child("MessageText")
        .ok_or(Code::MissingRequiredXmlNode)?;
    if text.text.len() > MAX_TEXT {
        return Err(Code::RequestBodyTooLarge.into());
    }
    if !can_carry(&text.text) {
        return Err(Code::InvalidXmlNodeValue.into());
    }
    Ok(Some(text.text.clone().into_owned()))
}

/// What a list has of a message.
struct Shown<'m> {
    id: &'m StorageId,
    inserted_at: Timestamp,
    expires_at: Option<Timestamp>,
    lease: Option<(&'m PopReceipt, Timestamp)>,
    content: Option<(usize, Bytes)>,
}

fn list<'m>(status: StatusCode, messages: impl IntoIterator<Item = Shown<'m>>) -> Answer {
    let mut xml = String::from("<QueueMessagesList>");
    for message in messages {
        write_message(&mut xml, &message);
    }
    xml.push_str("</QueueMessagesList>");
    Answer::xml(status, &xml)
}

fn write_message(xml: &mut String, message: &Shown<'_>) {
    let id = escaped(message.id.as_str());
    let inserted = date(message.inserted_at);
    let expires = message.expires_at.map_or_else(|| NEVER.to_owned(), date);
    let _ = write!(
        xml,
        "<QueueMessage><MessageId>{id}</MessageId><InsertionTime>{inserted}</InsertionTime><ExpirationTime>{expires}</ExpirationTime>"
    );
    if let Some((receipt, visible_at)) = message.lease {
        let (receipt, visible) = (escaped(receipt.reveal()), date(visible_at));
        let _ = write!(
            xml,
            "<PopReceipt>{receipt}</PopReceipt><TimeNextVisible>{visible}</TimeNextVisible>"
        );
    }
    if let Some((count, body)) = &message.content {
        let _ = write!(
            xml,
            "<DequeueCount>{count}</DequeueCount><MessageText>{}</MessageText>",
            shown(body)
        );
    }
    xml.push_str("</QueueMessage>");
}

/// Returns a body that is text of XML as it is, with its escapes, and any other in Base64.
fn shown(body: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(body) {
        Ok(text) if can_carry(text) => escaped(text),
        _ => Cow::Owned(STANDARD.encode(body)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_no_text_is_shown_in_base64() {
        assert_eq!(shown(b"a < b"), "a &lt; b");
        assert_eq!(shown(b"\xff\x00"), "/wA=");
        assert_eq!(shown(b"a\x01"), "YQE=");
    }

    #[test]
    fn a_message_has_a_text_that_xml_can_carry() {
        let read = |inner: &str| {
            let body = format!("<QueueMessage>{inner}</QueueMessage>");
            text(body.as_bytes()).map_err(|refusal| refusal.code)
        };
        let of = |text: &str| format!("<MessageText>{text}</MessageText>");
        assert_eq!(read(&of("a &amp; b")), Ok(Some("a & b".to_owned())));
        assert_eq!(read(&of("")), Ok(Some(String::new())));
        assert_eq!(read(""), Err(Code::MissingRequiredXmlNode));
        assert_eq!(read(&of("&#1;")), Err(Code::InvalidXmlNodeValue));
        assert_eq!(
            read(&of(&"x".repeat(MAX_TEXT + 1))),
            Err(Code::RequestBodyTooLarge)
        );
        assert_eq!(read("<MessageText>"), Err(Code::InvalidXmlDocument));
        assert_eq!(text(b"").map_err(|refusal| refusal.code), Ok(None));
    }
}

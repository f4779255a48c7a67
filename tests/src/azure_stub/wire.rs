//! Requests and answers of the service.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::fmt::rfc2822::DateTimePrinter;
use percent_encoding::percent_decode_str;
use queue_core::backend::{
    Backend, BackendExt as _, Created, Metadata, NewMessage, PeekedMessage, PopReceipt, PutReceipt,
    ReceivedMessage, StorageId, TimeToLive,
};
use queue_core::{Error, ErrorKind, QueueName, Result, Timestamp};

use crate::http::Message;

/// A request that was understood.
pub(super) struct Request<'m> {
    message: &'m Message,
    verb: &'m str,
    /// The parts of the path after the account.
    path: Vec<String>,
    /// Names and values.
    query: Vec<(String, String)>,
    queue: Option<QueueName>,
}

const NEVER: &str = "Fri, 31 Dec 9999 23:59:59 GMT";

/// The answer to a request above the limit.
pub(super) fn busy() -> Message {
    refused("503 Server Busy", "ServerBusy")
}

impl<'m> Request<'m> {
    pub(super) fn read(message: &'m Message) -> Option<Self> {
        let mut first = message.first.split(' ');
        let (verb, target) = (first.next()?, first.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let mut path = path.split('/').filter(|part| !part.is_empty());
        path.next()?;
        let path: Vec<String> = path.map(decoded).collect();
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let queue = path.first().map(|name| name.parse()).transpose().ok()?;
        Some(Self {
            message,
            verb,
            path,
            query: pairs
                .map(|(name, value)| (decoded(name), decoded(value)))
                .collect(),
            queue,
        })
    }

    pub(super) fn queue(&self) -> Option<&QueueName> {
        self.queue.as_ref()
    }

    pub(super) async fn carry_out(&self, queues: &dyn Backend) -> Message {
        let path: Vec<_> = self.path.iter().map(String::as_str).collect();
        let answer = match (self.queue(), self.verb, &path[..]) {
            (None, "GET", []) => self.list(queues).await,
            (Some(queue), verb, [_]) => self.on_queue(queues, queue, verb).await,
            (Some(queue), verb, [_, "messages"]) => self.on_messages(queues, queue, verb).await,
            (Some(queue), verb, [_, "messages", id]) => {
                self.on_message(queues, queue, verb, &StorageId::new(*id))
                    .await
            }
            _ => return refused("400 Bad Request", "InvalidUri"),
        };
        answer.unwrap_or_else(|error| failed(&error))
    }

    async fn list(&self, queues: &dyn Backend) -> Result<Message> {
        let names = queues
            .list_queues(self.value("prefix").unwrap_or(""))
            .await?;
        let mut list = String::from("<EnumerationResults><Queues>");
        for name in names {
            let _ = write!(list, "<Queue><Name>{name}</Name></Queue>");
        }
        list.push_str("</Queues><NextMarker/></EnumerationResults>");
        Ok(xml("200 OK", &list))
    }

    async fn on_queue(
        &self,
        queues: &dyn Backend,
        queue: &QueueName,
        verb: &str,
    ) -> Result<Message> {
        match (verb, self.value("comp")) {
            ("PUT", None) => match queues.create_queue(queue, &self.metadata()).await? {
                Created::New => Ok(empty("201 Created")),
                Created::Existed => Ok(empty("204 No Content")),
            },
            ("DELETE", None) => {
                queues.delete_queue(queue).await?;
                Ok(empty("204 No Content"))
            }
            ("PUT", Some("metadata")) => {
                queues.set_metadata(queue, &self.metadata()).await?;
                Ok(empty("204 No Content"))
            }
            ("GET" | "HEAD", Some("metadata")) => {
                let properties = queues.properties(queue).await?;
                let mut answer = empty("200 OK");
                let count = properties.approximate_count.to_string();
                answer
                    .headers
                    .push(("x-ms-approximate-messages-count".into(), count));
                for (name, value) in properties.metadata.iter() {
                    let header = (format!("x-ms-meta-{name}"), value.to_owned());
                    answer.headers.push(header);
                }
                Ok(answer)
            }
            _ => Ok(refused("400 Bad Request", "InvalidQueryParameterValue")),
        }
    }

    async fn on_messages(
        &self,
        queues: &dyn Backend,
        queue: &QueueName,
        verb: &str,
    ) -> Result<Message> {
        let max = self.number("numofmessages").unwrap_or(1);
        match verb {
            "POST" => {
                let mut message = NewMessage::new(self.text().unwrap_or_default());
                message.delay = self.seconds("visibilitytimeout").unwrap_or_default();
                message.time_to_live = match self.value("messagettl") {
                    Some("-1") => TimeToLive::Never,
                    _ => {
                        let week = Duration::from_secs(7 * 24 * 3_600);
                        TimeToLive::After(self.seconds("messagettl").unwrap_or(week))
                    }
                };
                let put = queues.put(queue, message).await?;
                Ok(list("201 Created", [of_put(&put)]))
            }
            "GET" if self.value("peekonly") == Some("true") => {
                let peeked = queues.peek(queue, max).await?;
                Ok(list("200 OK", peeked.iter().map(of_peeked)))
            }
            "GET" => {
                let lease = self.seconds("visibilitytimeout");
                let lease = lease.unwrap_or(Duration::from_secs(30));
                let received = queues.receive(queue, max, lease).await?;
                Ok(list("200 OK", received.iter().map(of_received)))
            }
            "DELETE" => {
                queues.clear(queue).await?;
                Ok(empty("204 No Content"))
            }
            _ => Ok(refused("405 Method Not Allowed", "UnsupportedHttpVerb")),
        }
    }

    async fn on_message(
        &self,
        queues: &dyn Backend,
        queue: &QueueName,
        verb: &str,
        id: &StorageId,
    ) -> Result<Message> {
        let receipt = PopReceipt::new(self.value("popreceipt").unwrap_or_default());
        match verb {
            "PUT" => {
                let lease = self.seconds("visibilitytimeout").unwrap_or_default();
                let body = self.text().map(Into::into);
                let lease = queues.renew(queue, id, &receipt, lease, body).await?;
                let mut answer = empty("204 No Content");
                answer.headers.extend([
                    ("x-ms-popreceipt".into(), lease.receipt.reveal().to_owned()),
                    ("x-ms-time-next-visible".into(), date(lease.visible_at)),
                ]);
                Ok(answer)
            }
            "DELETE" => {
                queues.delete(queue, id, &receipt).await?;
                Ok(empty("204 No Content"))
            }
            _ => Ok(refused("405 Method Not Allowed", "UnsupportedHttpVerb")),
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.iter();
        let found = pairs.find(|pair| pair.0 == name);
        found.map(|pair| pair.1.as_str())
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.value(name)?.parse().ok()
    }

    fn seconds(&self, name: &str) -> Option<Duration> {
        let seconds = self.value(name)?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        for (name, value) in &self.message.headers {
            if let Some(name) = name.to_ascii_lowercase().strip_prefix("x-ms-meta-") {
                // The service refuses what the contract does not allow; no test sends it.
                let _ = metadata.insert(name, value);
            }
        }
        metadata
    }

    /// Returns the text of the message in the body, if there is one.
    fn text(&self) -> Option<String> {
        let body = std::str::from_utf8(&self.message.body).ok()?;
        let (_, text) = body.split_once("<MessageText>")?;
        let (text, _) = text.split_once("</MessageText>")?;
        let text = text.replace("&lt;", "<").replace("&gt;", ">");
        Some(text.replace("&amp;", "&"))
    }
}

fn failed(error: &Error) -> Message {
    let (status, code) = match error.kind() {
        ErrorKind::QueueNotFound => ("404 Not Found", "QueueNotFound"),
        ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch => {
            ("404 Not Found", "MessageNotFound")
        }
        ErrorKind::QueueExists => ("409 Conflict", "QueueAlreadyExists"),
        ErrorKind::QueueBeingDeleted => ("409 Conflict", "QueueBeingDeleted"),
        ErrorKind::TooLarge => ("413 Too Large", "RequestBodyTooLarge"),
        ErrorKind::InvalidInput => ("400 Bad Request", "InvalidQueryParameterValue"),
        _ => ("500 Internal Server Error", "InternalError"),
    };
    refused(status, code)
}

fn refused(status: &str, code: &str) -> Message {
    let mut answer = xml(status, &format!("<Error><Code>{code}</Code></Error>"));
    answer.headers.push(("x-ms-error-code".into(), code.into()));
    answer
}

fn empty(status: &str) -> Message {
    Message::answer(status, &[("x-ms-request-id", "stub")], "")
}

fn xml(status: &str, body: &str) -> Message {
    let headers = [
        ("x-ms-request-id", "stub"),
        ("content-type", "application/xml"),
    ];
    Message::answer(status, &headers, body)
}

fn list(status: &str, messages: impl IntoIterator<Item = String>) -> Message {
    let mut list = String::from("<QueueMessagesList>");
    for message in messages {
        let _ = write!(list, "<QueueMessage>{message}</QueueMessage>");
    }
    list.push_str("</QueueMessagesList>");
    xml(status, &list)
}

fn of_put(put: &PutReceipt) -> String {
    let PutReceipt { id, .. } = put;
    times(id, put.inserted_at, put.expires_at) + &lease(&put.receipt, put.visible_at)
}

fn of_received(message: &ReceivedMessage) -> String {
    times(&message.id, message.inserted_at, message.expires_at)
        + &lease(&message.receipt, message.visible_at)
        + &content(message.dequeue_count, &message.body)
}

fn of_peeked(message: &PeekedMessage) -> String {
    times(&message.id, message.inserted_at, message.expires_at)
        + &content(message.dequeue_count, &message.body)
}

fn times(id: &StorageId, inserted: Timestamp, expires: Option<Timestamp>) -> String {
    let (inserted, expires) = (date(inserted), expires.map_or(NEVER.to_owned(), date));
    format!(
        "<MessageId>{id}</MessageId><InsertionTime>{inserted}</InsertionTime>\
         <ExpirationTime>{expires}</ExpirationTime>"
    )
}

fn lease(receipt: &PopReceipt, visible_at: Timestamp) -> String {
    let (receipt, visible_at) = (receipt.reveal(), date(visible_at));
    format!("<PopReceipt>{receipt}</PopReceipt><TimeNextVisible>{visible_at}</TimeNextVisible>")
}

fn content(count: usize, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    format!("<DequeueCount>{count}</DequeueCount><MessageText>{text}</MessageText>")
}

fn date(at: Timestamp) -> String {
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
    date.expect("a year of four digits")
}

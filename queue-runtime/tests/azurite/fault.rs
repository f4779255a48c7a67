//! The faults that a proxy injects into a request and its answer.

use std::io;
use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use queue_tests::http::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    CreateQueue,
    DeleteQueue,
    ListQueues,
    Properties,
    SetMetadata,
    Put,
    Receive,
    Peek,
    Update,
    Delete,
    Clear,
    Other,
}

/// What happens to a request and to its answer.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The connection is reset; the server does not get the request.
    ResetBefore,
    /// The server executes the request; the connection is reset instead of the answer.
    ResetAfter,
    /// As `ResetAfter`, for the next answer that contains messages; answers before it are delivered.
    LoseMessages,
    /// The connection ends within the head of the answer.
    HalfHead,
    /// The connection ends within the body of the answer.
    HalfBody,
    /// The answer is sent at one byte per second.
    Drip,
    /// There is no answer; the server does not get the request.
    BlackHole,
    /// The server does not get the request; this is the answer.
    Instead(Message),
    /// The server executes the request; this is the answer.
    Afterwards(Message),
    /// The date of the signature is checked, as the service does and Azurite does not.
    CheckClock,
}

impl Call {
    pub(crate) fn of(request: &Message) -> Self {
        let mut parts = request.first.split(' ');
        let (verb, target) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        // ACCOUNT, ACCOUNT/QUEUE, ACCOUNT/QUEUE/messages, ACCOUNT/QUEUE/messages/ID.
        let depth = path.trim_matches('/').split('/').count();
        let asks = |wanted| query.split('&').any(|pair| pair == wanted);
        let (listed, metadata) = (asks("comp=list"), asks("comp=metadata"));
        match (verb, depth) {
            ("GET", 1) if listed => Self::ListQueues,
            ("PUT", 2) if metadata => Self::SetMetadata,
            ("GET" | "HEAD", 2) if metadata => Self::Properties,
            ("PUT", 2) if query.is_empty() => Self::CreateQueue,
            ("DELETE", 2) => Self::DeleteQueue,
            ("POST", 3) => Self::Put,
            ("GET", 3) if asks("peekonly=true") => Self::Peek,
            ("GET", 3) => Self::Receive,
            ("DELETE", 3) => Self::Clear,
            ("PUT", 4) => Self::Update,
            ("DELETE", 4) => Self::Delete,
            _ => Self::Other,
        }
    }
}

impl Fault {
    /// Whether the server executes the request.
    pub(crate) fn executes(&self) -> bool {
        !matches!(self, Self::ResetBefore | Self::BlackHole | Self::Instead(_))
    }

    /// Returns the fault that applies to this request.
    pub(crate) fn due(self, request: &Message) -> Option<Self> {
        if !matches!(self, Self::CheckClock) {
            return Some(self);
        }
        let date = request.header("x-ms-date").expect("a date");
        let date = DateTimeParser::new()
            .parse_timestamp(date)
            .expect("a valid date");
        let now = jiff::Timestamp::now();
        let apart = now.duration_since(date).abs();
        let refused = apart > jiff::SignedDuration::from_mins(15);
        refused.then(|| {
            let now = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            let code = ("x-ms-error-code", "AuthenticationFailed");
            Self::Instead(Message::answer(
                "403 Forbidden",
                &[("x-ms-request-id", "7f"), code, ("Date", &now)],
                "<Error><Code>AuthenticationFailed</Code></Error>",
            ))
        })
    }
}

/// Sends the client what the fault leaves of the answer. Returns whether the connection stays open.
pub(crate) async fn inject(
    fault: Option<Fault>,
    answer: Option<Message>,
    client: &mut TcpStream,
) -> io::Result<bool> {
    let whole = |answer: &Option<Message>| answer.as_ref().expect("executed").bytes(&[]);
    match fault {
        None | Some(Fault::CheckClock) => client.write_all(&whole(&answer)).await.map(|()| true),
        Some(Fault::Instead(given) | Fault::Afterwards(given)) => {
            client.write_all(&given.bytes(&[])).await.map(|()| true)
        }
        Some(Fault::ResetBefore | Fault::ResetAfter | Fault::LoseMessages) => Ok(false),
        Some(Fault::HalfHead) => {
            let head = answer.expect("executed").head(&[]);
            part(client, &head.as_bytes()[..head.len() / 2]).await
        }
        Some(Fault::HalfBody) => {
            let mut answer = answer.expect("executed");
            assert!(!answer.is_bodiless(), "the answer has no body to cut");
            if answer.body.is_empty() {
                answer.body = b"a body that does not matter".to_vec();
            }
            let bytes = answer.bytes(&[]);
            part(client, &bytes[..bytes.len() - answer.body.len() / 2]).await
        }
        Some(Fault::Drip) => {
            for byte in whole(&answer) {
                client.write_all(&[byte]).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(true)
        }
        Some(Fault::BlackHole) => {
            let mut nothing = [0; 1];
            // Reads until the client closes the connection.
            client.read(&mut nothing).await.map(|_| false)
        }
    }
}

/// Sends a part of an answer and closes the connection gracefully, so that the part arrives.
async fn part(client: &mut TcpStream, bytes: &[u8]) -> io::Result<bool> {
    client.write_all(bytes).await?;
    client.shutdown().await?;
    let mut nothing = [0; 1];
    client.read(&mut nothing).await.map(|_| false)
}

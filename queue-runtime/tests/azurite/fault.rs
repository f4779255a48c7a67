//! What may happen to a request on its way, and to its answer.

use std::io;
use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use queue_tests::http::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a request asks for.
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

/// What happens to a request, and to its answer.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The connection is reset; the server never hears of the request.
    ResetBefore,
    /// The server carries the request out, and the connection is reset instead of an answer.
    ResetAfter,
    /// The same, but the next answer that brings messages is lost, and none before it.
    LoseMessages,
    /// The connection ends in the middle of the answer's head.
    HalfHead,
    /// The connection ends in the middle of the answer's body.
    HalfBody,
    /// The answer comes at one byte a second.
    Drip,
    /// Nothing ever comes, and the server never hears of the request.
    BlackHole,
    /// The server never hears of the request; this is the answer.
    Instead(Message),
    /// The server carries the request out, and this is the answer.
    Afterwards(Message),
    /// The signature's date is judged as the service does, which Azurite does not.
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
    /// Whether the server carries the request out.
    pub(crate) fn lets_through(&self) -> bool {
        !matches!(self, Self::ResetBefore | Self::BlackHole | Self::Instead(_))
    }

    /// The fault that this one amounts to for a request.
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
                &[code, ("Date", &now)],
                "<Error><Code>AuthenticationFailed</Code></Error>",
            ))
        })
    }
}

/// Gives the client what the fault leaves of the answer; says whether the connection goes on.
pub(crate) async fn harm(
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
            assert!(!answer.is_bodiless(), "it has no half");
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
            // Until the client gives up.
            client.read(&mut nothing).await.map(|_| false)
        }
    }
}

/// Sends a part of an answer and ends orderly, so that the part is not lost with the connection.
async fn part(client: &mut TcpStream, bytes: &[u8]) -> io::Result<bool> {
    client.write_all(bytes).await?;
    client.shutdown().await?;
    let mut nothing = [0; 1];
    client.read(&mut nothing).await.map(|_| false)
}

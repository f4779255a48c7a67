//! A proxy before an emulator of Azure Queue Storage that harms a share of all requests, and a log of what
//! the emulator has done.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use queue_tests::http::Message;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::ledger::moment;

/// What happens to a request or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// The connection is reset; the server does not get the request.
    ResetBefore,
    /// The server carries the request out; the connection is reset instead of the answer.
    AnswerLost,
    /// The server carries the request out; a part of the answer is sent.
    Truncated,
    /// The server carries the request out; the answer is sent after the client's deadline.
    Delayed,
    /// The server gets the request twice; the second answer is sent.
    Twice,
    /// The server does not get the request; the answer is 503.
    Busy,
    /// The server carries the request out; the answer is 500.
    Broken,
    /// The server does not get the request; the answer is another server's page, with this status.
    Page(u16),
}

/// All harms.
pub const HARMS: [Harm; 10] = [
    Harm::ResetBefore,
    Harm::AnswerLost,
    Harm::Truncated,
    Harm::Delayed,
    Harm::Twice,
    Harm::Busy,
    Harm::Broken,
    Harm::Page(200),
    Harm::Page(403),
    Harm::Page(404),
];

/// Longer than the deadline of the suite's requests, unless that was doubled just before.
const DELAY: Duration = Duration::from_secs(4);

/// What the server has done.
#[derive(Debug, Default)]
pub struct Log {
    /// The number of requests.
    pub requests: usize,
    /// The number of harmed requests.
    pub harmed: BTreeMap<Harm, usize>,
    /// The names of the messages, by storage id.
    names: BTreeMap<String, String>,
    /// The storage ids of messages that were deleted, with the time of each, on the clock of [`moment`].
    deleted: Vec<(u64, String)>,
    /// Each request on a message, the harm that was done to it, and the answer of the server, if it got one.
    seen: Vec<(u64, String, String)>,
}

/// The proxy, which serves until the runtime ends.
#[derive(Debug)]
pub struct HarmingProxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    server: u16,
    log: Mutex<Log>,
    random: Mutex<SmallRng>,
    one_in: u32,
    harms: &'static [Harm],
}

impl HarmingProxy {
    /// Starts a proxy before the server at a port on loopback, which does one of the harms to one in so many requests.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(
        server: u16,
        seed: u64,
        one_in: u32,
        harms: &'static [Harm],
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            server,
            log: Mutex::default(),
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
            one_in,
            harms,
        });
        let serving = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&serving);
                // Fails if the client has closed the connection, as it does after its deadline.
                tokio::spawn(async move { state.converse(client).await });
            }
        });
        Ok(Self { address, state })
    }

    /// The port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// What the server has done so far.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.state.log()
    }
}

impl Log {
    /// How often a message of that name was deleted from any queue before that time.
    #[must_use]
    pub fn deletions(&self, name: &str, before: u64) -> usize {
        let named = |id| self.names.get(id).is_some_and(|found| found == name);
        let deleted = self.deleted.iter();
        deleted.filter(|(at, id)| *at < before && named(id)).count()
    }

    /// What was asked for messages of that name, and what became of that.
    #[must_use]
    pub fn about(&self, name: &str) -> Vec<String> {
        let named = |text: &str| {
            self.names
                .iter()
                .any(|(id, found)| found == name && text.contains(id.as_str()))
        };
        let about = self.seen.iter().filter(|(_, ids, _)| named(ids));
        about.map(|(at, _, what)| format!("{at}: {what}")).collect()
    }

    fn see(&mut self, request: &Message, harm: Option<Harm>, answer: &str, ids: String) {
        let target = request.first.split('?').next().unwrap_or_default();
        let what = format!("{target} {harm:?} {answer}");
        self.seen.push((moment(), format!("{target} {ids}"), what));
    }

    fn note(&mut self, request: &Message, answer: &Message) {
        let mut words = request.first.split(' ');
        let (verb, target) = (words.next(), words.next().unwrap_or_default());
        let path = target.split('?').next().unwrap_or_default();
        let mut parts = path.rsplit('/');
        let (last, before) = (parts.next().unwrap_or_default(), parts.next());
        match verb {
            Some("POST") if last == "messages" => {
                let id = between(&answer.body, "<MessageId>", "</MessageId>");
                let name = between(&request.body, "<MessageText>", "</MessageText>")
                    .and_then(|text| name(&text));
                if let (Some(id), Some(name)) = (id, name) {
                    self.names.insert(id, name);
                }
            }
            // Also of those that were put past the proxy, as by a redrive.
            Some("GET") if last == "messages" => {
                let answer = String::from_utf8_lossy(&answer.body);
                for message in answer.split("<QueueMessage>").skip(1) {
                    let part = |start, end| between(message.as_bytes(), start, end);
                    let name = part("<MessageText>", "</MessageText>").and_then(|text| name(&text));
                    if let (Some(id), Some(name)) = (part("<MessageId>", "</MessageId>"), name) {
                        self.names.insert(id, name);
                    }
                }
            }
            Some("DELETE") if before == Some("messages") && answer.first.contains(" 204 ") => {
                self.deleted.push((moment(), last.to_owned()));
            }
            _ => {}
        }
    }
}

impl State {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn harm(&self) -> Option<Harm> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let harmed = random.random_range(0..self.one_in) == 0;
        harmed.then(|| self.harms[random.random_range(0..self.harms.len())])
    }

    async fn converse(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        // Dropping the connection resets it.
        client.set_zero_linger()?;
        let mut client = BufReader::new(client);
        while let Some(request) = Message::read_async(&mut client).await? {
            if !self.exchange(&request, client.get_mut()).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Handles one request. Returns whether the connection stays open.
    async fn exchange(&self, request: &Message, client: &mut TcpStream) -> io::Result<bool> {
        let harm = self.harm();
        {
            let mut log = self.log();
            log.requests += 1;
            if let Some(harm) = harm {
                *log.harmed.entry(harm).or_default() += 1;
            }
        }
        let answer = match harm {
            Some(Harm::ResetBefore) => {
                self.log().see(request, harm, "not sent", String::new());
                return Ok(false);
            }
            Some(Harm::Busy) => error("503 Server Busy", "ServerBusy"),
            Some(Harm::Page(status)) => page(status),
            Some(Harm::Twice) => {
                self.forward(request).await?;
                self.forward(request).await?
            }
            _ => self.forward(request).await?,
        };
        let ids = String::from_utf8_lossy(&answer.body).into_owned();
        self.log().see(request, harm, &answer.first, ids);
        match harm {
            Some(Harm::AnswerLost) => return Ok(false),
            Some(Harm::Truncated) => {
                let bytes = answer.bytes(&[]);
                client.write_all(&bytes[..bytes.len() / 2]).await?;
                client.shutdown().await?;
                return Ok(false);
            }
            Some(Harm::Delayed) => tokio::time::sleep(DELAY).await,
            Some(Harm::Broken) => {
                let broken = error("500 Internal Server Error", "InternalError");
                client.write_all(&broken.bytes(&[])).await?;
                return Ok(true);
            }
            _ => {}
        }
        client.write_all(&answer.bytes(&[])).await?;
        Ok(true)
    }

    async fn forward(&self, request: &Message) -> io::Result<Message> {
        let answer = request.forward(self.server).await?;
        self.log().note(request, &answer);
        Ok(answer)
    }
}

/// An answer of the service.
fn error(status: &str, code: &str) -> Message {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    let headers = [("x-ms-request-id", "7f"), ("x-ms-error-code", code)];
    Message::answer(status, &headers, &body)
}

/// An answer of a box on the way.
fn page(status: u16) -> Message {
    let body = "<html><body>Please sign in to this network.</body></html>";
    Message::answer(
        &format!("{status} Page"),
        &[("Content-Type", "text/html")],
        body,
    )
}

fn between(text: &[u8], start: &str, end: &str) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end)?.0.to_owned())
}

/// The name in the body of a put.
fn name(text: &str) -> Option<String> {
    let event = STANDARD.decode(text).ok()?;
    let event: serde_json::Value = serde_json::from_slice(&event).ok()?;
    Some(event["data"]["name"].as_str()?.to_owned())
}

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use queue_azure_wire::sign::{AccountKey, Signed};
use queue_azure_wire::xml::to_http_date;
use queue_core::ManualClock;
use queue_core::clock::Clock as _;
use queue_runtime::backend::MemoryBackend;
use queue_runtime::testing::FaultInjector;
use queue_server::{Account, Running, Server};
use queue_tests::http::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const ACCOUNT: &str = "shop";
pub(crate) const KEY: &str = "a2V5IG9mIHRoZSBzaG9w";

/// A server of one account on memory.
pub(crate) struct Fixture {
    pub(crate) clock: ManualClock,
    pub(crate) address: SocketAddr,
    pub(crate) queues: FaultInjector,
    pub(crate) account: Account,
    pub(crate) server: Running,
}

/// A request before it is signed.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) verb: Method,
    /// With the account and the query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// `target` follows the account, as in `/orders?comp=metadata`.
    pub(crate) fn new(verb: Method, target: &str) -> Self {
        Self {
            verb,
            target: format!("/{ACCOUNT}{target}"),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// With the message that has this text.
    pub(crate) fn message(self, text: &str) -> Self {
        self.body(queue_azure_wire::xml::message(text))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.verb, self.target);
        if !self.headers.iter().any(|(name, _)| name == "host") {
            head.push_str("host: 127.0.0.1\r\n");
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", self.body.len()));
        [head.into_bytes(), self.body.clone()].concat()
    }
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        let clock = ManualClock::new();
        let queues = MemoryBackend::new(Arc::new(clock.clone())).with_max_body(64 * 1024);
        let queues = FaultInjector::new(Arc::new(queues));
        let account = Account::new(
            ACCOUNT,
            KEY,
            Arc::new(queues.clone()),
            Arc::new(clock.clone()),
        );
        let account = account.expect("valid");
        let server = Server::new(vec![account.clone()]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = server.start(listener).expect("bound");
        Self {
            clock,
            queues,
            account,
            address: server.address(),
            server,
        }
    }

    /// Signs a request as an SDK does.
    pub(crate) fn signed(&self, request: Request) -> Request {
        self.signed_by(KEY, request)
    }

    pub(crate) fn signed_by(&self, key: &str, mut request: Request) -> Request {
        if !request.headers.iter().any(|(name, _)| name == "x-ms-date") {
            request = request.header("x-ms-date", &to_http_date(self.clock.now()));
        }
        let headers: HeaderMap = request
            .headers
            .iter()
            .map(|(name, value)| {
                let name: HeaderName = name.parse().expect("a name");
                (name, HeaderValue::from_str(value).expect("a value"))
            })
            .collect();
        let (path, query) = request
            .target
            .split_once('?')
            .unwrap_or((&request.target, ""));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.replace("%2B", "+")));
        let query: Vec<_> = pairs.collect();
        let signed = Signed {
            account: ACCOUNT,
            verb: &request.verb,
            path,
            query: &query,
            headers: &headers,
            length: request.body.len(),
        };
        let authorization = AccountKey::decode(key)
            .expect("a key")
            .authorization(&signed);
        request.header("authorization", &authorization)
    }

    /// Sends a request as it is, on a connection of its own.
    pub(crate) async fn send(&self, request: &Request) -> Message {
        self.send_bytes(&request.bytes()).await.expect("an answer")
    }

    /// Sends bytes, and returns the answer, unless the server closes the connection.
    pub(crate) async fn send_bytes(&self, bytes: &[u8]) -> Option<Message> {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        // The server may answer, and close, before it has read all.
        let _ = stream.write_all(bytes).await;
        let mut reader = BufReader::new(stream);
        let mut answer = Message::read_async(&mut reader).await.ok()??;
        if bytes.starts_with(b"HEAD") {
            answer.body.clear();
        }
        Some(answer)
    }

    /// Sends a request that is signed, and expects this status.
    pub(crate) async fn ask(&self, request: Request, status: u16) -> Message {
        let answer = self.send(&self.signed(request.clone())).await;
        assert_eq!(
            status_of(&answer),
            status,
            "{} {}: {answer}",
            request.verb,
            request.target
        );
        answer
    }

    /// Creates a queue.
    pub(crate) async fn with_queue(name: &str) -> Self {
        let fixture = Self::start().await;
        fixture
            .ask(Request::new(Method::PUT, &format!("/{name}")), 201)
            .await;
        fixture
    }

    /// A connection for what no request is.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }
}

/// What a server sends until it closes the connection.
pub(crate) async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest).await;
    rest
}

pub(crate) fn status_of(answer: &Message) -> u16 {
    let status = answer.first.split(' ').nth(1);
    status
        .and_then(|status| status.parse().ok())
        .expect("a status")
}

pub(crate) fn code_of(answer: &Message) -> &str {
    answer.header("x-ms-error-code").unwrap_or("none")
}

/// The text of the first element of this name.
pub(crate) fn element<'a>(answer: &'a Message, name: &str) -> &'a str {
    let body = std::str::from_utf8(&answer.body).expect("text");
    let (_, rest) = body
        .split_once(&format!("<{name}>"))
        .unwrap_or_else(|| panic!("no {name}: {body}"));
    rest.split_once(&format!("</{name}>")).expect("its end").0
}

//! A fake server whose replies a test chooses, and calls of all operations against it.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::QueueName;
use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage, PopReceipt, StorageId};
use queue_core::clock::BoxFuture;
use queue_runtime::Error;
use queue_runtime::backend::{AzureBackend, AzureBuilder};
use queue_runtime::clock::SystemClock;
use queue_tests::http::{self, Message};

/// The reply to each request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Sends this and keeps the connection open.
    Send(String),
    /// Sends the reply for the request's method and keeps the connection open.
    ByMethod(Vec<(&'static str, String)>),
    /// Sends this and closes the connection, even if the reply is incomplete.
    Cut(String),
    /// Sends this and then nothing more.
    Stall(String),
    /// Sends this at ten bytes per second.
    Drip(String),
    /// Sends a body of this many bytes.
    Flood(usize),
    /// Repeats the request in every place where a client may look for the reason of an error.
    Echo,
}

pub(crate) struct Responder {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    /// One for each connection that the client has closed after it was cut.
    ended: Receiver<()>,
}

pub(crate) const ACCOUNT: &str = "acct";
pub(crate) const KEY: &str = "Y2FuYXJ5LWFjY291bnQta2V5";

impl Responder {
    /// Starts a server that gives every request this reply.
    pub(crate) fn always(reply: Reply) -> Self {
        Self::by(move |_| reply.clone())
    }

    /// Starts a server that chooses the reply to each request.
    pub(crate) fn by(choose: impl Fn(&Message) -> Reply + Send + Sync + 'static) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (heard, choose) = (Arc::clone(&requests), Arc::new(choose));
        let (end, ended) = channel();
        let address = http::serve(move |stream| serve(stream, &*choose, &heard, &end));
        Self {
            address,
            requests,
            ended,
        }
    }

    /// Returns the number of requests so far whose first line starts like this.
    pub(crate) fn count(&self, start: &str) -> usize {
        let requests = self.requests();
        let matching = requests.iter().filter(|request| request.starts_with(start));
        matching.count()
    }

    /// Returns all requests so far, each with head and body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }

    /// Blocks until the client has closed one more cut connection.
    pub(crate) fn cut_is_seen(&self) {
        let seen = self.ended.recv_timeout(Duration::from_secs(60));
        seen.expect("the client closes its end");
    }

    pub(crate) fn with_key(&self) -> String {
        format!(
            "AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=http://{}/{ACCOUNT}",
            self.address
        )
    }

    /// The account with its blobs.
    pub(crate) fn with_blobs(&self) -> String {
        format!(
            "{};BlobEndpoint=http://{}/{ACCOUNT}",
            self.with_key(),
            self.address
        )
    }

    pub(crate) fn with_signature(&self, signature: &str) -> String {
        format!("http://{}/{ACCOUNT}?{signature}", self.address)
    }
}

fn serve(
    mut stream: TcpStream,
    choose: &dyn Fn(&Message) -> Reply,
    heard: &Mutex<Vec<String>>,
    end: &Sender<()>,
) {
    while let Ok(Some(request)) = Message::read(&mut stream) {
        heard.lock().expect("no panic").push(request.to_string());
        // Writing fails if the client has closed the connection, as some tests make it do.
        let _ = match &choose(&request) {
            Reply::Send(text) => stream.write_all(text.as_bytes()),
            Reply::ByMethod(replies) => {
                let method = request.first.split(' ').next();
                let reply = replies.iter().find(|reply| Some(reply.0) == method);
                let (_, text) = reply.expect("a reply for each method");
                stream.write_all(text.as_bytes())
            }
            Reply::Cut(text) => {
                let _ = stream.write_all(text.as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
                let _ = end.send(());
                return;
            }
            Reply::Stall(text) => {
                let _ = stream.write_all(text.as_bytes());
                loop {
                    std::thread::park();
                }
            }
            Reply::Drip(text) => text.bytes().try_for_each(|byte| {
                std::thread::sleep(Duration::from_millis(100));
                stream.write_all(&[byte])
            }),
            Reply::Flood(length) => {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nx-ms-request-id: 7f\r\nContent-Length: {length}\r\n\r\n"
                );
                let _ = stream.write_all(head.as_bytes());
                let block = [b'x'; 65_536];
                (0..length.div_ceil(block.len())).try_for_each(|_| stream.write_all(&block))
            }
            Reply::Echo => stream.write_all(echo(&request).as_bytes()),
        };
    }
}

/// Formats a reply of the service, which has a request id.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    foreign_answer(status, &format!("x-ms-request-id: 7f\r\n{headers}"), body)
}

/// Formats a reply of a proxy or gateway.
pub(crate) fn foreign_answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
}

/// Formats an error reply in which every part repeats the request.
fn echo(request: &Message) -> String {
    let line = request.first.replace('&', "&amp;");
    let said = request.to_string().replace(['&', '<', '>'], " ");
    let body = format!(
        "<Error><Code>{line}</Code><Message>{said}</Message>\
         <AuthenticationErrorDetail>{said}</AuthenticationErrorDetail>\
         <QueryParameterName>{line}</QueryParameterName></Error>"
    );
    let headers = format!(
        "x-ms-error-code: {line}\r\nx-ms-request-id: {line}\r\nx-ms-popreceipt: {line}\r\n\
         Retry-After: {line}\r\nDate: {line}\r\nLocation: {line}\r\n"
    );
    foreign_answer("403 Forbidden", &headers, &body)
}

pub(crate) fn queue() -> QueueName {
    "orders".parse().expect("a name")
}

pub(crate) fn builder(url: &str) -> AzureBuilder {
    AzureBackend::builder(url, Arc::new(SystemClock::new()))
}

/// Runs a test with a backend of that URL and a short deadline.
pub(crate) fn with<T>(
    url: &str,
    deadline: Duration,
    test: impl AsyncFnOnce(AzureBackend) -> T,
) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let backend = builder(url).deadline(deadline).open().await;
        test(backend.expect("open")).await
    })
}

/// Calls every operation concurrently. Returns the errors with the names of the operations.
pub(crate) async fn every_error(
    backend: &AzureBackend,
    receipt: &str,
) -> Vec<(&'static str, Error)> {
    let (b, queue) = (backend, &queue());
    let id = &StorageId::new("11111111-2222-3333-4444-555555555555");
    let receipt = &PopReceipt::new(receipt);
    let none = &Metadata::new();
    let second = Duration::from_secs(1);
    let calls: [(&str, BoxFuture<'_, Result<(), Error>>); 12] = [
        ("create_queue", nothing(b.create_queue(queue, none))),
        ("delete_queue", b.delete_queue(queue)),
        ("list_queues", nothing(b.list_queues("or"))),
        ("properties", nothing(b.properties(queue))),
        ("set_metadata", b.set_metadata(queue, none)),
        ("put", nothing(b.put(queue, NewMessage::new("body")))),
        ("receive", nothing(b.receive(queue, 32, second))),
        ("peek", nothing(b.peek(queue, 32))),
        ("update", nothing(b.renew(queue, id, receipt, second, None))),
        (
            "update with a body",
            nothing(b.renew(queue, id, receipt, second, Some("body".into()))),
        ),
        ("delete", nothing(b.delete(queue, id, receipt))),
        ("clear", b.clear(queue)),
    ];
    let results = join_all(calls.map(async |(name, call)| (name, call.await))).await;
    results
        .into_iter()
        .filter_map(|(name, result)| Some((name, result.err()?)))
        .collect()
}

fn nothing<'a, T: 'a>(
    call: impl Future<Output = Result<T, Error>> + Send + 'a,
) -> BoxFuture<'a, Result<(), Error>> {
    Box::pin(async { call.await.map(drop) })
}

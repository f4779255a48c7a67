//! A server that imitates Azure's queues, with hyper, unlike the fake servers of the tests, because the figures depend
//! on its cost. Every message has the body of the last put.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Outcome;
use crate::meter::{Served, thread_time};

/// The account of this server, and of the emulator that is measured beside it.
pub(crate) const ACCOUNT: &str = "bench";

/// A server on its own thread, until the process ends.
pub(crate) struct Loopback {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    requests: AtomicU64,
    /// The thread's processor time at the last request, in seconds, as the bits of an `f64`.
    time: AtomicU64,
    left: AtomicU64,
    /// The text of every message.
    text: Mutex<String>,
}

type Reply = Response<Full<Bytes>>;

const DATES: &str = "<InsertionTime>Fri, 20 Nov 2026 09:00:00 GMT</InsertionTime>\
                     <ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime>";
const LEASE: &str = "<PopReceipt>AgAAAAMAAAAAAAAA5jsJYV0B3AE=</PopReceipt>\
                     <TimeNextVisible>Fri, 20 Nov 2026 09:00:30 GMT</TimeNextVisible>";

impl Loopback {
    pub(crate) fn start() -> Outcome<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let served = Arc::clone(&state);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::spawn(move || {
            if let Err(error) = runtime.block_on(serve(listener, served)) {
                eprintln!("the loopback server failed: {error}");
            }
        });
        Ok(Self { port, state })
    }

    pub(crate) fn url(&self) -> String {
        let port = self.port;
        format!(
            "http://127.0.0.1:{port}/{ACCOUNT}?sv=2021-12-02&ss=q&srt=sco&sp=rwdlacup\
             &se=2099-01-01T00%3A00%3A00Z&sig=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA%3D"
        )
    }

    /// Returns the number of requests and the processor time so far.
    pub(crate) fn served(&self) -> Served {
        Served {
            requests: self.state.requests.load(Relaxed),
            time: f64::from_bits(self.state.time.load(Relaxed)),
        }
    }
}

async fn serve(listener: std::net::TcpListener, state: Arc<State>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (connection, _) = listener.accept().await?;
        connection.set_nodelay(true)?;
        let state = Arc::clone(&state);
        let service = service_fn(move |request| {
            let state = Arc::clone(&state);
            async move { Ok::<_, Infallible>(state.answer(request).await) }
        });
        tokio::spawn(async move {
            let served = http1::Builder::new().serve_connection(TokioIo::new(connection), service);
            // Fails when the client disconnects, as each does at the end of its run.
            drop(served.await);
        });
    }
}

impl State {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        self.requests.fetch_add(1, Relaxed);
        self.time.store(thread_time().to_bits(), Relaxed);
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return reply(StatusCode::BAD_REQUEST, String::new());
        };
        let path = head.uri.path().trim_end_matches('/');
        let query = head.uri.query().unwrap_or_default();
        match (head.method, path.matches('/').count()) {
            (Method::PUT, 2) => reply(StatusCode::CREATED, String::new()),
            (Method::GET, 2) => self.properties(),
            (Method::POST, 3) => self.put(&body.to_bytes()),
            (Method::GET, 3) => self.receive(query),
            (Method::DELETE, 4) => reply(StatusCode::NO_CONTENT, String::new()),
            _ => reply(StatusCode::NOT_IMPLEMENTED, String::new()),
        }
    }

    fn properties(&self) -> Reply {
        let mut reply = reply(StatusCode::OK, String::new());
        let left = self.left.load(Relaxed).into();
        let headers = reply.headers_mut();
        headers.insert("x-ms-approximate-messages-count", left);
        reply
    }

    fn put(&self, body: &Bytes) -> Reply {
        let text = String::from_utf8_lossy(body);
        let (_, text) = text.split_once("<MessageText>").unwrap_or_default();
        let (text, _) = text.split_once("</MessageText>").unwrap_or_default();
        text.clone_into(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        let number = self.left.fetch_add(1, Relaxed);
        reply(StatusCode::CREATED, list([message(number, "")]))
    }

    fn receive(&self, query: &str) -> Reply {
        let most = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("numofmessages="));
        let most = most.and_then(|most| most.parse().ok()).unwrap_or(1_u64);
        let take = |left: u64| Some(left - left.min(most));
        let before = self.left.fetch_update(Relaxed, Relaxed, take);
        let before = before.unwrap_or_else(|left| left);
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = format!("<DequeueCount>1</DequeueCount><MessageText>{text}</MessageText>");
        let numbers = (before - before.min(most)..before).map(|number| message(number, &rest));
        reply(StatusCode::OK, list(numbers))
    }
}

fn message(number: u64, rest: &str) -> String {
    format!(
        "<QueueMessage><MessageId>5974b586-0df3-4e2d-ad0c-{number:012x}</MessageId>\
         {DATES}{LEASE}{rest}</QueueMessage>"
    )
}

fn list(messages: impl IntoIterator<Item = String>) -> String {
    let mut list = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessagesList>");
    list.extend(messages);
    list.push_str("</QueueMessagesList>");
    list
}

fn reply(status: StatusCode, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    for (name, value) in [
        ("content-type", "application/xml"),
        ("x-ms-request-id", "b1d6f1a5-1003-0016-7b2a-5ae7c4000000"),
        ("x-ms-version", "2021-12-02"),
    ] {
        headers.insert(name, hyper::header::HeaderValue::from_static(value));
    }
    reply
}

//! A bare client of a queue service: requests one after the other on a kept connection, each signed with the account's key.

use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use queue_azure_wire::VERSION_HEADER;
use queue_azure_wire::sign::{AccountKey, Signed};
use queue_azure_wire::xml::{Element, message, to_http_date};
use queue_instructions::Parcel;
use queue_runtime::Timestamp;
use queue_tests::azurite::KEY;
use tokio::net::TcpStream;

use crate::Outcome;
use crate::loopback::ACCOUNT;
use crate::sdk::{QUEUE, VERSION, parcel, text};
use crate::server::Trip;
use crate::tasks::{rate, side_by_side};

const DATE: HeaderName = HeaderName::from_static("x-ms-date");
const COUNT: &str = "x-ms-approximate-messages-count";

/// A connection of a client that knows the account's key.
pub(crate) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    key: AccountKey,
    host: HeaderValue,
}

/// A request but for its signature.
struct Ask {
    verb: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Ask {
    fn new(verb: Method, path: impl AsRef<str>) -> Self {
        Self {
            verb,
            path: format!("/{ACCOUNT}/{QUEUE}{}", path.as_ref()),
            query: Vec::new(),
            body: Vec::new(),
        }
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_owned(), value.into()));
        self
    }
}

impl Connection {
    pub(crate) async fn open(port: u16) -> Outcome<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) = handshake(TokioIo::new(stream)).await?;
        // If the connection fails, so does the request on it.
        tokio::spawn(connection);
        Ok(Self {
            requests,
            key: AccountKey::decode(KEY)?,
            host: HeaderValue::from_str(&format!("127.0.0.1:{port}"))?,
        })
    }

    pub(crate) async fn open_all(port: u16, connections: u32) -> Outcome<Vec<Self>> {
        let mut opened = Vec::new();
        for _ in 0..connections {
            opened.push(Self::open(port).await?);
        }
        Ok(opened)
    }

    pub(crate) async fn create_queue(&mut self) -> Outcome<()> {
        let ask = Ask::new(Method::PUT, "");
        self.send(ask, StatusCode::CREATED).await.map(drop)
    }

    /// Returns how many messages the queue has.
    pub(crate) async fn count(&mut self) -> Outcome<u32> {
        let ask = Ask::new(Method::GET, "").with("comp", "metadata");
        let answer = self.send(ask, StatusCode::OK).await?;
        let count = answer.headers().get(COUNT).ok_or("no count")?;
        Ok(count.to_str()?.parse()?)
    }

    async fn put(&mut self, number: u32) -> Outcome<()> {
        let mut ask = Ask::new(Method::POST, "/messages");
        ask.body = message(&text(&Parcel::new(number))?);
        self.send(ask, StatusCode::CREATED).await.map(drop)
    }

    /// Gets a message, decodes it, and deletes it.
    async fn get_and_delete(&mut self) -> Outcome<()> {
        let ask = Ask::new(Method::GET, "/messages").with("visibilitytimeout", "30");
        let got = self.send(ask, StatusCode::OK).await?;
        let list = Element::parse(got.body()).ok_or("the list is no XML")?;
        let message = list.child("QueueMessage").ok_or("the message is missing")?;
        let part = |name| message.child(name).map_or("", |part| &*part.text);
        let _parcel = parcel(part("MessageText"))?;
        let path = format!("/messages/{}", escaped(part("MessageId")));
        let ask = Ask::new(Method::DELETE, path).with("popreceipt", part("PopReceipt"));
        self.send(ask, StatusCode::NO_CONTENT).await.map(drop)
    }

    /// Sends a signed request. An answer with another status is an error.
    async fn send(&mut self, ask: Ask, expected: StatusCode) -> Outcome<Response<Bytes>> {
        let mut headers = HeaderMap::new();
        let date = to_http_date(Timestamp::now());
        headers.insert(DATE, HeaderValue::from_str(&date)?);
        headers.insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
        if !ask.body.is_empty() {
            let xml = HeaderValue::from_static("application/xml");
            headers.insert(CONTENT_TYPE, xml);
        }
        let signed = Signed {
            account: ACCOUNT,
            verb: &ask.verb,
            path: &ask.path,
            query: &ask.query,
            headers: &headers,
            length: ask.body.len(),
        };
        let authorization = HeaderValue::from_str(&self.key.authorization(&signed))?;
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(HOST, self.host.clone());
        let mut target = ask.path;
        for (name, value) in &ask.query {
            target.push(if target.contains('?') { '&' } else { '?' });
            target.push_str(&format!("{name}={}", escaped(value)));
        }
        let mut request = Request::new(Full::new(Bytes::from(ask.body)));
        *request.method_mut() = ask.verb;
        *request.uri_mut() = target.parse()?;
        *request.headers_mut() = headers;
        self.requests.ready().await?;
        let (head, body) = self.requests.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        if head.status == expected {
            Ok(Response::from_parts(head, body))
        } else {
            let body = String::from_utf8_lossy(&body);
            Err(format!("{target} was answered by {}: {body}", head.status).into())
        }
    }
}

/// Sends messages on a trip over this many connections. Returns messages per second.
pub(crate) async fn run(port: u16, trip: Trip, messages: u32, connections: u32) -> Outcome<f64> {
    let mut opened = Connection::open_all(port, connections).await?.into_iter();
    let started = Instant::now();
    side_by_side(connections, |task| {
        let connection = opened.next();
        async move {
            let mut connection = connection.ok_or("there are fewer connections than tasks")?;
            for number in (task..messages).step_by(connections as usize) {
                connection.put(number).await?;
                if trip == Trip::Whole {
                    connection.get_and_delete().await?;
                }
            }
            Ok(0)
        }
    })
    .await?;
    Ok(rate(messages, started))
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

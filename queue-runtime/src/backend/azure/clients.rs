//! One pool of connections for each runtime.
//!
//! A connection is driven by the runtime that opened it. Were the pool shared, a renewal on the
//! service's own thread could wait for a connection of the application's runtime, whose workers a
//! handler may block for as long as it likes; and the end of one runtime would break the calls of
//! another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use azure_core::http::Url;
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::runtime::{Handle, Id};

use super::account::EndpointKind;
use super::connector::{self, Connector, Secure, tls};

/// An HTTP client: no redirects, and no time limit but for connecting. It repeats only what it did not
/// begin to send, because the connection from the pool was closed.
pub(super) type Client = legacy::Client<Connector, Full<Bytes>>;

/// More runtimes than a program has; what is over may be runtimes that have ended.
const MOST: usize = 8;

/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(90);

/// Less than the 5 s after which Azurite closes an idle connection, perhaps just as it is used.
const EMULATOR_IDLE: Duration = Duration::from_secs(3);

pub(super) struct Clients {
    connect_timeout: Duration,
    idle: Duration,
    secure: Option<Secure>,
    open: Mutex<Vec<(Id, Client)>>,
}

impl Clients {
    /// Clients for an endpoint. The proxy is that of the environment (`HTTPS_PROXY`, `NO_PROXY`), and
    /// none for an emulator.
    ///
    /// # Errors
    /// The system trusts no certificate that could be read.
    pub(super) fn new(
        endpoint: &Url,
        kind: EndpointKind,
        connect_timeout: Duration,
    ) -> Result<Self, rustls::Error> {
        let (idle, proxies) = match kind {
            EndpointKind::Emulator => (EMULATOR_IDLE, None),
            EndpointKind::Service => (IDLE, Some(Arc::new(Matcher::from_env()))),
        };
        let secure = match endpoint.scheme() {
            "https" => Some(Secure {
                tls: Arc::new(tls()?),
                proxies,
            }),
            _ => None,
        };
        Ok(Self {
            connect_timeout,
            idle,
            secure,
            open: Mutex::default(),
        })
    }

    /// The client of the runtime that this is called on.
    ///
    /// # Panics
    /// Outside of a tokio runtime, as every use of its timers and sockets does.
    pub(super) fn here(&self) -> Client {
        let runtime = Handle::current().id();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = open.iter().find(|(id, _)| *id == runtime) {
            return client.clone();
        }
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(self.idle)
            .pool_timer(TokioTimer::new())
            .build(connector::build(self.connect_timeout, self.secure.clone()));
        if open.len() == MOST {
            open.remove(0);
        }
        open.push((runtime, client.clone()));
        client
    }
}

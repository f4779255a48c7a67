//! One connection pool for each runtime.
//!
//! A connection is driven by the runtime that opened it. With a shared pool, a renewal in the background
//! could use a connection of the application's runtime, whose workers a handler may block for any time.
//! When a runtime ended, the calls of others on its connections would fail.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::http::Url;
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use queue_core::internal::LockExt as _;
use tokio::runtime::{Handle, Id};

use super::account::EndpointKind;
use super::connector::{self, Connector, Secure, tls};

/// An HTTP client without redirects, and without timeouts except for connecting. It retries a request
/// only if none of it was sent, because the pooled connection had been closed.
pub(super) type Client = legacy::Client<Connector, Full<Bytes>>;

/// The maximum number of pools, more than a program has runtimes. The oldest may be of runtimes that have
/// ended.
const MAX_POOLS: usize = 8;

/// How long an idle connection stays in the pool.
const IDLE: Duration = Duration::from_secs(90);

/// Less than the 5 s after which Azurite closes an idle connection, possibly just as a request is sent.
const EMULATOR_IDLE: Duration = Duration::from_secs(3);

pub(super) struct Clients {
    connect_timeout: Duration,
    idle: Duration,
    secure: Option<Secure>,
    open: Mutex<Vec<(Id, Client)>>,
}

impl Clients {
    /// Creates the clients of an endpoint. The proxy is that of the environment (`HTTPS_PROXY`,
    /// `NO_PROXY`); for an emulator there is none.
    ///
    /// # Errors
    /// If the system's trusted certificates cannot be loaded.
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

    /// Returns the client of the current runtime.
    ///
    /// # Panics
    /// Panics outside of a Tokio runtime.
    pub(super) fn current(&self) -> Client {
        let runtime = Handle::current().id();
        let mut open = self.open.hold();
        if let Some((_, client)) = open.iter().find(|(id, _)| *id == runtime) {
            return client.clone();
        }
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(self.idle)
            .pool_timer(TokioTimer::new())
            .build(connector::build(self.connect_timeout, self.secure.clone()));
        if open.len() == MAX_POOLS {
            open.remove(0);
        }
        open.push((runtime, client.clone()));
        client
    }
}

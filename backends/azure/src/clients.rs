//! HTTP: one connection pool for each runtime, whose connections are made by TCP, possibly through a proxy, and TLS, all
//! within one timeout.
//!
//! A connection is driven by the runtime that opened it. With a shared pool, a renewal in the background could use a
//! connection of the application's runtime, whose workers a handler may block for any time, and when a runtime ended,
//! other runtimes' calls on its connections would fail.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::http::Url;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Uri;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use queue_core::internal::LockExt as _;
use rustls::ClientConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use super::account::EndpointKind;

/// An HTTP client without redirects, and without timeouts except for connecting. A `Client` retries a request only if
/// none of it was sent, because the pooled connection had been closed.
pub(super) type Client = legacy::Client<Connector, Full<Bytes>>;

/// The maximum number of pools, more than a program has runtimes. The oldest pools may be of ended runtimes.
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
            .build(connector(self.connect_timeout, self.secure.clone()));
        if open.len() == MAX_POOLS {
            open.remove(0);
        }
        open.push((runtime, client.clone()));
        client
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

/// A stream to the host, or through a proxy, which may itself use TLS.
type Reached = MaybeHttpsStream<TokioIo<TcpStream>>;

type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<Reached>, BoxError>;

/// The settings of a connection to an `https` endpoint.
#[derive(Clone)]
struct Secure {
    tls: Arc<ClientConfig>,
    proxies: Option<Arc<Matcher>>,
}

/// The interval of TCP keepalive probes, and their number before the connection is closed. The probes detect pooled
/// connections that a router has dropped before a call uses them.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 3;

/// Configures TLS with the certificates that the system trusts, and with the process's default
/// cryptography provider if one is installed.
fn tls() -> Result<ClientConfig, rustls::Error> {
    let provider = match CryptoProvider::get_default() {
        Some(provider) => Arc::clone(provider),
        None => Arc::new(aws_lc_rs::default_provider()),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .try_with_platform_verifier()?;
    Ok(config.with_no_client_auth())
}

/// Creates a connector with this timeout; without `secure`, it connects only to `http`.
fn connector(timeout: Duration, secure: Option<Secure>) -> Connector {
    let tcp = tcp(timeout);
    let Some(Secure { tls, proxies }) = secure else {
        let plain =
            tcp.map_response(|stream| MaybeHttpsStream::Http(MaybeHttpsStream::Http(stream)));
        return BoxCloneSyncService::new(plain.map_err(Into::into));
    };
    let to_proxy = HttpsConnector::from((tcp.clone(), Arc::clone(&tls)));
    let socket = service_fn(move |to| reach(to, tcp.clone(), to_proxy.clone(), proxies.clone()));
    let connect = ServiceBuilder::new()
        .map_err(move |error: BoxError| {
            if error.is::<Elapsed>() {
                format!("no connection within {timeout:?}").into()
            } else {
                error
            }
        })
        .timeout(timeout)
        .service(HttpsConnector::from((socket, tls)));
    BoxCloneSyncService::new(connect)
}

fn tcp(timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE));
    tcp.set_keepalive_retries(Some(KEEP_ALIVE_RETRIES));
    #[cfg(any(target_os = "android", target_os = "linux"))]
    tcp.set_tcp_user_timeout(Some(2 * KEEP_ALIVE));
    // The timeout is divided among the addresses of a host, so that an unresponsive one leaves time for the next.
    tcp.set_connect_timeout(Some(timeout));
    tcp
}

/// Connects to a host, through a proxy if there is one, up to the TLS handshake.
async fn reach(
    to: Uri,
    tcp: HttpConnector,
    to_proxy: HttpsConnector<HttpConnector>,
    proxies: Option<Arc<Matcher>>,
) -> Result<Reached, BoxError> {
    let Some(proxy) = proxies.and_then(|proxies| proxies.intercept(&to)) else {
        return Ok(MaybeHttpsStream::Http(tcp.oneshot(to).await?));
    };
    let mut tunnel = Tunnel::new(proxy.uri().clone(), to_proxy);
    if let Some(authorization) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(authorization.clone());
    }
    Ok(tunnel.oneshot(to).await?)
}

#[cfg(test)]
mod tests;

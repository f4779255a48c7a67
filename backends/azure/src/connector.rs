//! Connecting: TCP, possibly through a proxy, and TLS, all within one timeout.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio::net::TcpStream;
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

type BoxError = Box<dyn Error + Send + Sync>;

/// A stream to the host, or through a proxy, which may itself use TLS.
type Reached = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A service that connects to a host.
pub(super) type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<Reached>, BoxError>;

/// The settings of a connection to an `https` endpoint.
#[derive(Clone)]
pub(super) struct Secure {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) proxies: Option<Arc<Matcher>>,
}

/// The interval of TCP keepalive probes, and their number before the connection is closed. They detect
/// pooled connections that a router has dropped before a call uses them.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 3;

/// Configures TLS with the certificates that the system trusts, and with the process's default
/// cryptography provider if one is installed.
pub(super) fn tls() -> Result<ClientConfig, rustls::Error> {
    let provider = match CryptoProvider::get_default() {
        Some(provider) => Arc::clone(provider),
        None => Arc::new(aws_lc_rs::default_provider()),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .try_with_platform_verifier()?;
    Ok(config.with_no_client_auth())
}

/// Creates a connector with this timeout. Without `secure`, it connects only to `http`.
pub(super) fn build(timeout: Duration, secure: Option<Secure>) -> Connector {
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
    // It is divided among the addresses of a host, so that an unresponsive one leaves time for the next.
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

//! How a connection is made: TCP, perhaps through a proxy, TLS, all of it within one time limit.

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

/// To the host itself or to a proxy, which may have TLS of its own.
type Reached = MaybeHttpsStream<TokioIo<TcpStream>>;

/// What makes connections, whatever it is made of.
pub(super) type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<Reached>, BoxError>;

/// What a connection to an `https` endpoint needs besides TCP.
#[derive(Clone)]
pub(super) struct Secure {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) proxies: Option<Arc<Matcher>>,
}

/// TCP asks a silent other side so often whether it is there, and gives up after so many times. A
/// connection in the pool that a router has forgotten is found out before a call needs it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 3;

/// TLS with the certificates that the system trusts, and the application's cryptography if it chose one.
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

/// Makes connections, each within `timeout`. Without `secure`, to `http` alone.
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
        .map_err(move |error: BoxError| match error.is::<Elapsed>() {
            true => format!("there was no connection after {timeout:?}").into(),
            false => error,
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
    // A host's addresses have equal shares of it, so that one that is silent leaves time for the next.
    tcp.set_connect_timeout(Some(timeout));
    tcp
}

/// Gets through to a host, up to where TLS begins.
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

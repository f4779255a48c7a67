//! How a connection is made: TCP, perhaps through a proxy, TLS, all of it within one timeout.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Scheme;
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
use tower::{Service as _, ServiceBuilder, service_fn};

type BoxError = Box<dyn Error + Send + Sync>;

/// To the host itself or to a proxy, which may have TLS of its own.
type Reached = MaybeHttpsStream<TokioIo<TcpStream>>;

/// What makes connections, whatever it is made of.
pub(super) type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<Reached>, BoxError>;

/// How long a connection may be silent before TCP asks whether the other side is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

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

/// Makes connections within `timeout`. What goes to `https` goes through the proxy that `proxies` name.
pub(super) fn connector(
    timeout: Duration,
    tls: Arc<ClientConfig>,
    proxies: Option<Arc<Matcher>>,
) -> Connector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_connect_timeout(Some(timeout));
    let to_proxy = HttpsConnector::from((tcp.clone(), Arc::clone(&tls)));
    let reach = service_fn(move |to| reach(to, tcp.clone(), to_proxy.clone(), proxies.clone()));
    let connect = ServiceBuilder::new()
        .map_err(move |error: BoxError| match error.is::<Elapsed>() {
            true => format!("there was no connection after {timeout:?}").into(),
            false => error,
        })
        .timeout(timeout)
        .service(HttpsConnector::from((reach, tls)));
    BoxCloneSyncService::new(connect)
}

async fn reach(
    to: Uri,
    mut tcp: HttpConnector,
    to_proxy: HttpsConnector<HttpConnector>,
    proxies: Option<Arc<Matcher>>,
) -> Result<Reached, BoxError> {
    let secure = to.scheme() == Some(&Scheme::HTTPS);
    let proxy = proxies
        .filter(|_| secure)
        .and_then(|proxies| proxies.intercept(&to));
    let Some(proxy) = proxy else {
        return Ok(MaybeHttpsStream::Http(tcp.call(to).await?));
    };
    let mut tunnel = Tunnel::new(proxy.uri().clone(), to_proxy);
    if let Some(authorization) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(authorization.clone());
    }
    Ok(tunnel.call(to).await?)
}

#[cfg(test)]
#[path = "connector_tests.rs"]
mod tests;

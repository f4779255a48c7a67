use std::io::{Read, Write};
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use queue_core::internal::error_chain;
use queue_tests::http::{Message, serve_one};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{RootCertStore, ServerConfig, ServerConnection, Stream};

use super::*;

const LONG: Duration = Duration::from_secs(20);
const ACCOUNT: &str = "acct.queue.core.windows.net";
const TUNNEL: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// The address, with the host name that is in the certificate.
fn local(address: SocketAddr) -> String {
    format!("localhost:{}", address.port())
}

/// Reads a request without a body, in lower case.
fn head(stream: &mut impl Read) -> String {
    let request = Message::read(stream).expect("HTTP").expect("a request");
    request.to_string().to_lowercase()
}

/// A certificate for the account and `localhost`: a server that presents it and a client that trusts it.
fn certificate() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let hosts = [ACCOUNT.to_owned(), "localhost".to_owned()];
    let made = generate_simple_self_signed(hosts).expect("a certificate");
    let CertifiedKey { cert, signing_key } = made;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into());
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("a root");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server.expect("a key")), Arc::new(client))
}

/// Performs the server's side of a handshake and answers one request. Returns its head.
fn serve_request(stream: &mut (impl Read + Write), config: Arc<ServerConfig>) -> String {
    let mut connection = ServerConnection::new(config).expect("a connection");
    let mut secured = Stream::new(&mut connection, stream);
    let head = head(&mut secured);
    let reply = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
    secured.write_all(reply).expect("written");
    head
}

/// Sends a request. Returns the status of the answer, or why there is none.
fn get(to: &str, timeout: Duration, secure: Option<Secure>) -> Result<u16, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let client = Client::builder(TokioExecutor::new()).build(connector(timeout, secure));
        let request = hyper::Request::get(to).body(Empty::<Bytes>::new());
        let replied = client.request(request.expect("a request")).await;
        let replied = replied.map(|reply| reply.status().as_u16());
        replied.map_err(|error| {
            assert!(error.is_connect(), "{error:?}");
            error_chain(&error)
        })
    })
}

fn through(proxy: &str, tls: Arc<ClientConfig>) -> Option<Secure> {
    let proxies = Some(Arc::new(
        Matcher::builder().https(proxy).no("localhost").build(),
    ));
    Some(Secure { tls, proxies })
}

fn system_trust() -> Arc<ClientConfig> {
    Arc::new(tls().expect("certificates"))
}

#[test]
fn hosts_are_connected_directly_with_and_without_tls() {
    let (host, served) = serve_one(|mut stream| {
        let head = head(&mut stream);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
            .expect("written");
        head
    });
    assert_eq!(get(&format!("http://{host}/plain"), LONG, None), Ok(200));
    assert!(served.join().expect("served").starts_with("get /plain "));

    let (server, client) = certificate();
    let (host, served) = serve_one(move |mut stream| serve_request(&mut stream, server));
    let host = local(host);
    // Nothing listens at this proxy: hosts in `NO_PROXY` are connected directly.
    let secure = through("http://127.0.0.1:1", client);
    assert_eq!(get(&format!("https://{host}/tls"), LONG, secure), Ok(204));
    assert!(served.join().expect("served").starts_with("get /tls "));
}

#[test]
fn tls_goes_through_the_tunnel_of_a_proxy() {
    let (server, client) = certificate();
    let (proxy, served) = serve_one(move |mut stream| {
        let asked = head(&mut stream);
        stream.write_all(TUNNEL).expect("written");
        (asked, serve_request(&mut stream, server))
    });
    let secure = through(&format!("http://user:pass@{proxy}"), client);
    assert_eq!(
        get(&format!("https://{ACCOUNT}/queue"), LONG, secure),
        Ok(204)
    );
    let (asked, request) = served.join().expect("served");
    let connect = format!("connect {ACCOUNT}:443 http/1.1\r\n");
    assert!(asked.starts_with(&connect), "{asked}");
    assert!(
        asked.contains("proxy-authorization: basic dxnlcjpwyxnz\r\n"),
        "{asked}"
    );
    assert!(request.starts_with("get /queue "), "{request}");
    assert!(!request.contains("proxy-authorization"), "{request}");
}

#[test]
fn the_proxy_may_use_tls_itself() {
    let (server, client) = certificate();
    let (proxy, served) = serve_one(move |mut stream| {
        let mut connection = ServerConnection::new(Arc::clone(&server)).expect("a connection");
        let mut outer = Stream::new(&mut connection, &mut stream);
        let asked = head(&mut outer);
        outer.write_all(TUNNEL).expect("written");
        (asked, serve_request(&mut outer, server))
    });
    let secure = through(&format!("https://{}", local(proxy)), client);
    assert_eq!(
        get(&format!("https://{ACCOUNT}/queue"), LONG, secure),
        Ok(204)
    );
    let (asked, request) = served.join().expect("served");
    assert!(asked.starts_with("connect ") && request.starts_with("get /queue "));
}

#[test]
fn a_certificate_that_the_system_does_not_trust_is_refused() {
    let (server, _) = certificate();
    let (host, served) = serve_one(move |mut stream| {
        let mut connection = ServerConnection::new(server).expect("a connection");
        Stream::new(&mut connection, &mut stream).read(&mut [0])
    });
    let host = local(host);
    let secure = Secure {
        tls: system_trust(),
        proxies: None,
    };
    let error = get(&format!("https://{host}/"), LONG, Some(secure)).expect_err("refused");
    assert!(error.contains("invalid peer certificate"), "{error}");
    served
        .join()
        .expect("served")
        .expect_err("the client aborted the handshake");
}

#[test]
fn a_proxy_that_requires_authentication_is_reported() {
    let (proxy, served) = serve_one(|mut stream| {
        let asked = head(&mut stream);
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        stream.write_all(refusal).expect("written");
        asked
    });
    let secure = through(&proxy.to_string(), system_trust());
    let error = get(&format!("https://{ACCOUNT}/"), LONG, secure).expect_err("refused");
    assert!(error.contains("proxy authorization required"), "{error}");
    assert!(
        !served
            .join()
            .expect("served")
            .contains("proxy-authorization")
    );
}

#[test]
fn an_unsupported_kind_of_proxy_is_reported() {
    let secure = through("socks5://127.0.0.1:1", system_trust());
    let error = get(&format!("https://{ACCOUNT}/"), LONG, secure).expect_err("not supported");
    assert!(error.contains("socks5"), "{error}");
}

#[test]
fn a_handshake_that_is_never_answered_times_out() {
    let (host, served) = serve_one(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("closed by the client")
    });
    let secure = Secure {
        tls: system_trust(),
        proxies: None,
    };
    let to = format!("https://{host}/");
    let error = get(&to, Duration::from_millis(50), Some(secure)).expect_err("a timeout");
    assert!(error.contains("no connection within 50ms"), "{error}");
    assert!(
        served.join().expect("served") > 0,
        "the client started a handshake"
    );
}

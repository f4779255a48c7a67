//! Connections with TLS.

use std::sync::Arc;

use http::Method;
use queue_server::Server;
use queue_tests::http::Message;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use crate::fixture::{Fixture, Request, rest, status_of};
use crate::signatures::of_queue;

#[tokio::test]
async fn an_encrypted_connection_is_answered_and_a_plain_one_is_not() {
    let fixture = Fixture::with_queue("orders").await;
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let server = Server::new(vec![fixture.account.clone()])
        .with_tls(
            cert.pem().as_bytes(),
            signing_key.serialize_pem().as_bytes(),
        )
        .expect("they serve");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = server.start(listener).expect("bound");

    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address())
        .await
        .expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(client)).connect(name, stream);
    let mut stream = BufReader::new(stream.await.expect("they agree"));
    // A signature for encrypted connections only.
    let sas = of_queue("orders", ["r", "", "2099-01-01", "", "", "https"]);
    let peek = Request::new(
        Method::GET,
        &format!("/orders/messages?peekonly=true&{sas}"),
    );
    stream.write_all(&peek.bytes()).await.expect("it is open");
    let answer = Message::read_async(&mut stream).await.expect("an answer");
    assert_eq!(status_of(&answer.expect("an answer")), 200);
    assert_eq!(status_of(&fixture.send(&peek).await), 403, "not encrypted");

    let mut plain = TcpStream::connect(server.address())
        .await
        .expect("it listens");
    plain.write_all(&peek.bytes()).await.expect("it is open");
    let told = rest(plain).await;
    assert!(!told.starts_with(b"HTTP"), "{told:?}");
    server.stop().await.expect("it stops");
}

#[tokio::test]
async fn what_does_not_serve_for_tls_is_refused() {
    let fixture = Fixture::start().await;
    let pair = || generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (own, other) = (pair(), pair());
    let (cert, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    for (cert, key, problem) in [
        (
            "",
            &*key,
            "there is no `BEGIN CERTIFICATE` among the certificates",
        ),
        (&*cert, "", "the key is no private key in PEM"),
        (&*cert, &*other.signing_key.serialize_pem(), "do not serve"),
    ] {
        let server = Server::new(vec![fixture.account.clone()]);
        let refused = server.with_tls(cert.as_bytes(), key.as_bytes());
        let told = refused.expect_err("they do not serve");
        assert!(told.contains(problem), "{told}");
    }
}

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// Serves one connection: its address, and what it makes of it.
fn serve_one<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let served = std::thread::spawn(move || serve(listener.accept().expect("a connection").0));
    (address, served)
}

/// What a proxy is asked, up to the empty line.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a byte");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text").to_lowercase()
}

/// Connects through a proxy, and says why that failed.
fn connect(to: &str, proxy: Option<&str>, timeout: Duration) -> Result<(), String> {
    let proxies = proxy.map(|proxy| Arc::new(Matcher::builder().all(proxy).build()));
    let mut connector = connector(timeout, Arc::new(tls().expect("a configuration")), proxies);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let connected = runtime.expect("a runtime").block_on(async {
        let uri = Uri::try_from(to).expect("a URI");
        connector.call(uri).await.map(drop)
    });
    connected.map_err(|error| queue_core::disposition::error_chain(&*error))
}

#[test]
fn tls_goes_through_the_tunnel_of_a_proxy() {
    let (proxy, served) = serve_one(|mut stream| {
        let head = head(&mut stream);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
            .expect("written");
        let mut hello = [0];
        stream.read_exact(&mut hello).expect("a byte");
        (head, hello[0])
    });
    let proxy = format!("http://user:pass@{proxy}");
    let failed = connect("https://acct.queue.core.windows.net/", Some(&proxy), LONG);
    // The proxy cut the connection after the first byte.
    failed.expect_err("no TLS");
    let (head, hello) = served.join().expect("served");
    assert!(
        head.starts_with("connect acct.queue.core.windows.net:443 http/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("proxy-authorization: basic dxnlcjpwyxnz\r\n"),
        "{head}"
    );
    assert_eq!(hello, 22, "a handshake of TLS");
}

#[test]
fn a_proxy_that_wants_to_know_who_asks_is_told_as_such() {
    let (proxy, served) = serve_one(|mut stream| {
        let head = head(&mut stream);
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        stream.write_all(refusal).expect("written");
        head
    });
    let error = connect("https://acct.queue.core.windows.net/", Some(&proxy), LONG);
    let error = error.expect_err("refused");
    assert!(error.contains("proxy authorization required"), "{error}");
    assert!(
        !served
            .join()
            .expect("served")
            .contains("proxy-authorization")
    );
}

#[test]
fn a_proxy_of_another_kind_is_refused_by_its_name() {
    let error = connect(
        "https://acct.queue.core.windows.net/",
        Some("socks5://127.0.0.1:1"),
        LONG,
    );
    let error = error.expect_err("not supported");
    assert!(error.contains("socks5"), "{error}");
}

#[test]
fn what_has_no_tls_is_reached_directly() {
    let (host, served) = serve_one(drop);
    let connected = connect(&format!("http://{host}/"), Some("http://127.0.0.1:1"), LONG);
    assert_eq!(connected, Ok(()));
    served.join().expect("served");
}

#[test]
fn a_host_that_never_answers_the_handshake_is_no_connection() {
    let (host, served) = serve_one(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("closed by the client")
    });
    let timeout = Duration::from_millis(50);
    let error = connect(&format!("https://{host}/"), None, timeout).expect_err("a time-out");
    assert!(error.contains("no connection after 50ms"), "{error}");
    assert!(
        served.join().expect("served") > 0,
        "it was sent a handshake"
    );
}

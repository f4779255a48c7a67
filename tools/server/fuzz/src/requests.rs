//! Requests, as they come or signed by a key: each is answered, and none makes the server fail.
#![no_main]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use libfuzzer_sys::fuzz_target;
use queue_azure_wire::sign::{AccountKey, Signed};
use queue_azure_wire::xml::to_http_date;
use queue_core::ManualClock;
use queue_core::backend::{Backend as _, Metadata};
use queue_core::clock::Clock as _;
use queue_runtime::backend::MemoryBackend;
use queue_server::{Account, Peer, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

const KEY: &str = "a2V5IG9mIHRoZSBzaG9w";

fuzz_target!(|bytes: &[u8]| {
    let Some((mode, input)) = bytes.split_first() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let clock = ManualClock::new();
        let queues = MemoryBackend::new(Arc::new(clock.clone())).with_max_body(64 * 1024);
        let orders = "orders".parse().expect("a name");
        queues.create_queue(&orders, &Metadata::new()).await.expect("created");
        let request = match mode % 2 {
            0 => input.to_vec(),
            _ => match signed(input, &clock) {
                Some(request) => request,
                None => return,
            },
        };
        let account = Account::new("shop", KEY, Arc::new(queues), Arc::new(clock));
        let server = Server::new(vec![account.expect("valid")]);
        let (mut client, ours) = duplex(1 << 20);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_001));
        let peer = Peer { client: address, server: address, is_encrypted: false };
        client.write_all(&request).await.expect("it is open");
        client.shutdown().await.expect("it is open");
        // Ends with an error where the request does.
        let _ = server.serve_connection(ours, peer).await;
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.expect("it is open");
        let answers = String::from_utf8_lossy(&answers);
        assert!(answers.is_empty() || answers.starts_with("HTTP/1."), "{answers}");
        assert!(!answers.contains("x-ms-error-code: InternalError"), "{answers}");
    });
});

/// Signs the request of an input: `VERB TARGET`, lines of headers, an empty line, the body.
fn signed(input: &[u8], clock: &ManualClock) -> Option<Vec<u8>> {
    let end = input.windows(2).position(|two| two == b"\n\n")?;
    let (head, body) = (std::str::from_utf8(&input[..end]).ok()?, &input[end + 2..]);
    let mut lines = head.lines();
    let (verb, target) = lines.next()?.split_once(' ')?;
    let verb: Method = verb.parse().ok()?;
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        headers.append(name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?);
    }
    headers.insert("x-ms-date", to_http_date(clock.now()).parse().ok()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let signed = Signed {
        account: "shop",
        verb: &verb,
        path,
        query: &query,
        headers: &headers,
        length: body.len(),
    };
    let authorization = AccountKey::decode(KEY).ok()?.authorization(&signed);
    headers.insert("authorization", authorization.parse().ok()?);
    headers.insert("host", HeaderValue::from_static("127.0.0.1"));
    headers.insert("content-length", body.len().into());
    let mut request = format!("{verb} {target} HTTP/1.1\r\n").into_bytes();
    for (name, value) in &headers {
        request.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    request.extend(b"\r\n");
    request.extend(body);
    Some(request)
}

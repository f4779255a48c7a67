//! Clients that send too much, too little, or nothing.

use http::Method;
use queue_core::Operation;
use queue_runtime::testing::Fault;
use queue_server::{Peer, Server};
use queue_tests::SECOND;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};
use tokio::time::{Instant, sleep};

use crate::fixture::{Fixture, Request, code_of, rest, status_of};

fn post() -> Request {
    Request::new(Method::POST, "/orders/messages")
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let fixture = Fixture::with_queue("orders").await;
    let large = fixture.signed(post().body(vec![b'x'; 131_585]));
    let answer = fixture.send_bytes(&large.bytes()).await.expect("an answer");
    assert_eq!(
        (status_of(&answer), code_of(&answer)),
        (413, "RequestBodyTooLarge")
    );
    // A length alone, of which nothing is sent.
    let head = "POST /shop/orders/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000000\r\n\r\n";
    let answer = fixture
        .send_bytes(head.as_bytes())
        .await
        .expect("an answer");
    assert_eq!(status_of(&answer), 413);
}

#[tokio::test]
async fn xml_that_is_a_bomb_is_refused() {
    let fixture = Fixture::with_queue("orders").await;
    let entities = "<!DOCTYPE a [<!ENTITY b \"bbbbbbbbbb\"><!ENTITY c \"&b;&b;&b;&b;\">]><QueueMessage><MessageText>&c;</MessageText></QueueMessage>";
    let deep = format!("{}{}", "<a>".repeat(10_000), "</a>".repeat(10_000));
    let many = format!("<QueueMessage>{}</QueueMessage>", "<a/>".repeat(32_000));
    for (body, code) in [
        (entities.to_owned(), "InvalidXmlDocument"),
        (deep, "InvalidXmlDocument"),
        (many, "MissingRequiredXmlNode"),
        ("\u{0}".to_owned(), "InvalidXmlDocument"),
    ] {
        let answer = fixture.send(&fixture.signed(post().body(body))).await;
        assert_eq!(code_of(&answer), code, "{answer}");
    }
}

#[tokio::test]
async fn a_head_beyond_the_limits_ends_the_connection() {
    let fixture = Fixture::with_queue("orders").await;
    let many: String = (0..10_000)
        .map(|number| format!("x-{number}: y\r\n"))
        .collect();
    let long = format!("x-long: {}\r\n", "y".repeat(1 << 20));
    for more in [many, long] {
        let head = format!("GET /shop/orders/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}\r\n");
        if let Some(answer) = fixture.send_bytes(head.as_bytes()).await {
            assert_eq!(status_of(&answer), 431, "{answer}");
        }
    }
    fixture
        .ask(Request::new(Method::GET, "/orders/messages"), 200)
        .await;
}

#[tokio::test]
async fn what_is_no_request_harms_nobody_else() {
    let fixture = Fixture::with_queue("orders").await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"GET\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut stream = fixture.connect().await;
        stream.write_all(bytes).await.expect("it is open");
        stream.shutdown().await.expect("it is open");
        let answer = rest(stream).await;
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"),
            "{answer:?}"
        );
    }
    // Connections on which nothing comes.
    let idle = futures_util::future::join_all((0..200).map(|_| fixture.connect())).await;
    fixture
        .ask(Request::new(Method::GET, "/orders/messages"), 200)
        .await;
    drop(idle);
}

#[tokio::test]
async fn a_stop_answers_what_has_begun_and_ends_idle_connections() {
    let fixture = Fixture::with_queue("orders").await;
    let idle = fixture.connect().await;
    fixture.queues.fail_next(1, Operation::Put, Fault::Stalled);
    let request = fixture.signed(post().message("the last"));
    let mut begun = fixture.connect().await;
    begun.write_all(&request.bytes()).await.expect("it is open");
    let Fixture { queues, server, .. } = fixture;
    queues.until_called(1, Operation::Put).await;
    let stopping = tokio::spawn(server.stop());
    assert!(rest(idle).await.is_empty());
    assert!(!stopping.is_finished(), "a request is not answered");
    queues.release();
    let answer = String::from_utf8(rest(begun).await).expect("text");
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    stopping.await.expect("no panic").expect("it stops");
}

/// Time goes on by itself when nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_client_that_sends_a_byte_a_second_is_not_waited_for() {
    let fixture = Fixture::with_queue("orders").await;
    let request = fixture.signed(post().message(&"x".repeat(1_000))).bytes();
    let text = String::from_utf8(request.clone()).expect("text");
    let head = text.find("\r\n\r\n").expect("the end of the head") + 4;
    for (at_once, seconds, expected) in [
        (0, 60, ""),
        (head, 30, "HTTP/1.1 500 Internal Server Error"),
    ] {
        let (client, ours) = duplex(1 << 20);
        let peer = Peer {
            client: fixture.address,
            server: fixture.address,
            is_encrypted: false,
        };
        let server = Server::new(vec![fixture.account.clone()]);
        let began = Instant::now();
        let (mut answers, mut requests) = split(client);
        let sends = async {
            requests.write_all(&request[..at_once]).await?;
            for byte in &request[at_once..] {
                requests.write_all(&[*byte]).await?;
                sleep(SECOND).await;
            }
            std::io::Result::Ok(())
        };
        let mut answer = String::new();
        tokio::select! {
            // A connection that is given up is no success, or has the refusal.
            _ = server.serve_connection(ours, peer) => {}
            sent = sends => panic!("all was sent: {sent:?}"),
        }
        let took = began.elapsed().as_secs();
        assert_eq!(took, seconds);
        answers.read_to_string(&mut answer).await.expect("text");
        assert!(answer.starts_with(expected), "{answer}");
    }
}

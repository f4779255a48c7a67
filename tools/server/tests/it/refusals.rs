//! Who is not let in by a key.

use http::Method;
use jiff::SignedDuration;
use queue_azure_wire::xml::to_http_date;
use queue_core::clock::Clock as _;

use crate::fixture::{Fixture, Request, code_of, status_of};

fn put(text: &str) -> Request {
    Request::new(Method::POST, "/orders/messages").message(text)
}

/// Asserts that a request is refused as one of nobody, and that nothing was put.
async fn refuse(fixture: &Fixture, request: &Request, code: &str) {
    let answer = fixture.send(request).await;
    let status = status_of(&answer);
    assert!(matches!(status, 400 | 401 | 403), "{answer}");
    assert_eq!(code_of(&answer), code, "{answer}");
    let metadata = Request::new(Method::GET, "/orders?comp=metadata");
    let metadata = fixture.ask(metadata, 200).await;
    assert_eq!(
        metadata.header("x-ms-approximate-messages-count"),
        Some("0")
    );
}

#[tokio::test]
async fn a_request_without_the_signature_of_the_account_is_refused() {
    let fixture = Fixture::with_queue("orders").await;
    let fits = fixture.signed(put("mine"));
    let replaced = |name: &str, value: &str| {
        let mut request = fits.clone();
        let header = request.headers.iter_mut().find(|header| header.0 == name);
        header.expect("it is there").1 = value.to_owned();
        request
    };
    let failed = "AuthenticationFailed";
    refuse(&fixture, &put("unsigned"), "NoAuthenticationInformation").await;
    refuse(
        &fixture,
        &fixture.signed_by("YW5vdGhlciBrZXk=", put("other key")),
        failed,
    )
    .await;
    refuse(
        &fixture,
        &replaced("authorization", "SharedKey shop:AAAA"),
        failed,
    )
    .await;
    refuse(
        &fixture,
        &replaced("authorization", "SharedKey shop"),
        "InvalidAuthenticationInfo",
    )
    .await;
    refuse(
        &fixture,
        &replaced("authorization", "Basic c2hvcDpr"),
        "InvalidAuthenticationInfo",
    )
    .await;
    refuse(
        &fixture,
        &replaced("authorization", "Bearer abc"),
        "InvalidAuthenticationInfo",
    )
    .await;
    // Of another account.
    let signature = fits
        .headers
        .last()
        .expect("it is signed")
        .1
        .replace("shop", "bank");
    refuse(&fixture, &replaced("authorization", &signature), failed).await;
    // Of another date, path, query, method and header.
    let later = to_http_date(fixture.clock.now() + SignedDuration::from_mins(1));
    refuse(&fixture, &replaced("x-ms-date", &later), failed).await;
    let other = |target: &str| Request {
        target: target.to_owned(),
        ..fits.clone()
    };
    refuse(
        &fixture,
        &other("/shop/orders/messages?messagettl=-1"),
        failed,
    )
    .await;
    refuse(&fixture, &other("/shop/letters/messages"), failed).await;
    refuse(&fixture, &other("/bank/orders/messages"), failed).await;
    let verb = Request {
        verb: Method::DELETE,
        ..fits.clone()
    };
    refuse(&fixture, &verb, failed).await;
    let more = fits.clone().header("x-ms-meta-more", "unsigned");
    refuse(&fixture, &more, failed).await;
    // A body of another length.
    let longer = Request {
        body: queue_azure_wire::xml::message("mine, too"),
        ..fits.clone()
    };
    refuse(&fixture, &longer, failed).await;
    assert_eq!(status_of(&fixture.send(&fits).await), 201);
}

#[tokio::test]
async fn a_request_of_another_day_is_refused() {
    let fixture = Fixture::with_queue("orders").await;
    for (minutes, is_let_in) in [(-14, true), (14, true), (-16, false), (16, false)] {
        let at = fixture.clock.now() + SignedDuration::from_mins(minutes);
        let peek = Request::new(Method::GET, "/orders/messages?peekonly=true");
        let answer = fixture
            .send(&fixture.signed(peek.header("x-ms-date", &to_http_date(at))))
            .await;
        let expected = if is_let_in { 200 } else { 403 };
        assert_eq!(status_of(&answer), expected, "{minutes} minutes: {answer}");
    }
    let peek = Request::new(Method::GET, "/orders/messages?peekonly=true");
    let answer = fixture
        .send(&fixture.signed(peek.header("x-ms-date", "today")))
        .await;
    assert_eq!(code_of(&answer), "AuthenticationFailed");
}

/// What was recorded, with a date of today before its own.
#[tokio::test]
async fn a_request_that_says_twice_what_is_signed_is_refused() {
    let fixture = Fixture::with_queue("orders").await;
    let signed = fixture.signed(put("mine"));
    fixture
        .clock
        .advance(SignedDuration::from_hours(1).unsigned_abs());
    refuse(&fixture, &signed, "AuthenticationFailed").await;
    let today = to_http_date(fixture.clock.now());
    for (name, value) in [
        ("x-ms-date", today.as_str()),
        ("x-ms-version", "2026-04-06"),
        ("date", today.as_str()),
        ("authorization", "SharedKey shop:AAAA"),
        ("host", "127.0.0.1"),
    ] {
        let mut replayed = signed.clone();
        let first = (name.to_owned(), value.to_owned());
        replayed.headers.insert(0, first.clone());
        replayed.headers.insert(0, first);
        refuse(&fixture, &replayed, "InvalidHeaderValue").await;
    }
    let mut replayed = signed;
    replayed.headers.insert(0, ("x-ms-date".to_owned(), today));
    refuse(&fixture, &replayed, "InvalidHeaderValue").await;
}

#[tokio::test]
async fn what_is_meant_for_one_message_is_not_done_to_all() {
    let fixture = Fixture::with_queue("orders").await;
    fixture.ask(put("kept"), 201).await;
    for target in [
        "/orders/messages/?popreceipt=receipt",
        "/orders/messages?popreceipt=receipt",
        "/orders/messages/",
    ] {
        let answer = fixture.ask(Request::new(Method::DELETE, target), 400).await;
        assert_eq!(code_of(&answer), "InvalidUri", "{target}");
    }
    let take = Request::new(Method::GET, "/orders/messages?peekonly=yes");
    let answer = fixture.ask(take, 400).await;
    assert_eq!(code_of(&answer), "InvalidQueryParameterValue");
    let peek = Request::new(Method::GET, "/orders/messages?peekonly=True");
    let answer = fixture.ask(peek, 200).await;
    assert_eq!(crate::fixture::element(&answer, "DequeueCount"), "0");
    let many: String = (0..33).map(|n| format!("&p{n}=1")).collect();
    let many = Request::new(
        Method::GET,
        &format!("/orders/messages?peekonly=true{many}"),
    );
    assert_eq!(code_of(&fixture.ask(many, 400).await), "InvalidUri");
}

#[tokio::test]
async fn what_names_nothing_is_refused_before_anybody_is_asked() {
    let fixture = Fixture::with_queue("orders").await;
    for (target, code) in [
        ("/shop/%2e%2e/messages", "InvalidUri"),
        ("/shop//messages", "InvalidUri"),
        ("/shop/orders%00/messages", "InvalidUri"),
        ("/shop/orders/%ff", "InvalidUri"),
        ("/shop/orders/messages/1/2", "InvalidUri"),
        ("/", "InvalidUri"),
        (
            "/shop/orders/messages?peekonly=true&PeekOnly=false",
            "InvalidQueryParameterValue",
        ),
    ] {
        let request = Request {
            target: target.to_owned(),
            ..Request::new(Method::GET, "")
        };
        let answer = fixture.send(&request).await;
        assert_eq!(
            (status_of(&answer), code_of(&answer)),
            (400, code),
            "{target}: {answer}"
        );
    }
}

#[tokio::test]
async fn an_error_does_not_quote_a_key() {
    let fixture = Fixture::start().await;
    let answer = fixture
        .send(&fixture.signed_by("YW5vdGhlciBrZXk=", put("x")))
        .await;
    let text = answer.to_string();
    assert!(text.contains("string to sign"), "{text}");
    assert!(
        !text.contains(crate::fixture::KEY) && !text.contains("YW5vdGhlciBrZXk="),
        "{text}"
    );
}

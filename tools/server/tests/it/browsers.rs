//! What a browser may send for a page.

use http::Method;

use crate::fixture::{Fixture, Request, code_of, status_of};

const PAGE: &str = "http://page.example";

fn get() -> Request {
    Request::new(Method::GET, "/orders/messages")
}

async fn with_rule() -> Fixture {
    let fixture = Fixture::with_queue("orders").await;
    let rule = format!(
        "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>{PAGE}</AllowedOrigins><AllowedMethods>GET,PUT</AllowedMethods><AllowedHeaders>x-ms-*,authorization</AllowedHeaders><ExposedHeaders>x-ms-request-id</ExposedHeaders><MaxAgeInSeconds>60</MaxAgeInSeconds></CorsRule></Cors></StorageServiceProperties>"
    );
    let set = Request::new(Method::PUT, "/?restype=service&comp=properties").body(rule);
    fixture.ask(set, 202).await;
    fixture
}

/// A picture's address needs no preflight, and its request names no origin.
#[tokio::test]
async fn a_page_of_another_site_receives_nothing() {
    let fixture = Fixture::with_queue("orders").await;
    fixture
        .ask(
            Request::new(Method::POST, "/orders/messages").message("mine"),
            201,
        )
        .await;
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", PAGE),
        ("origin", "null"),
    ] {
        let answer = fixture.ask(get().header(name, value), 403).await;
        assert_eq!(code_of(&answer), "AuthorizationFailure");
    }
    for (name, value) in [
        ("sec-fetch-site", "none"),
        ("sec-fetch-site", "same-origin"),
    ] {
        fixture.ask(get().header(name, value), 200).await;
    }
}

#[tokio::test]
async fn a_rule_lets_a_page_in_with_its_methods() {
    let fixture = with_rule().await;
    let of_page = |request: Request| {
        request
            .header("origin", PAGE)
            .header("sec-fetch-site", "cross-site")
    };
    let answer = fixture.ask(of_page(get()), 200).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE));
    // Why it is refused, a page may read, too.
    let missing = Request::new(Method::GET, "/letters/messages");
    let refused = fixture.ask(of_page(missing), 404).await;
    assert_eq!(refused.header("access-control-allow-origin"), Some(PAGE));
    assert_eq!(
        answer.header("access-control-expose-headers"),
        Some("x-ms-request-id")
    );
    let delete = Request::new(Method::DELETE, "/orders/messages");
    fixture.ask(of_page(delete), 403).await;
    let other = get().header("origin", "http://other.example");
    fixture.ask(other, 403).await;
    // A rule permits a page, not whoever has no key.
    let unsigned = fixture.send(&of_page(get())).await;
    assert_eq!(status_of(&unsigned), 401);
}

#[tokio::test]
async fn a_browser_is_told_before_what_a_page_may_send() {
    let fixture = with_rule().await;
    let preflight = |verb: &str, headers: &str| {
        let request = Request::new(Method::OPTIONS, "/orders/messages");
        let request = request
            .header("origin", PAGE)
            .header("access-control-request-method", verb);
        request.header("access-control-request-headers", headers)
    };
    let allowed = fixture
        .send(&preflight("PUT", "x-ms-date, Authorization"))
        .await;
    assert_eq!(status_of(&allowed), 200);
    assert_eq!(allowed.header("access-control-max-age"), Some("60"));
    for refused in [preflight("DELETE", ""), preflight("PUT", "cookie")] {
        let answer = fixture.send(&refused).await;
        assert_eq!(code_of(&answer), "CorsPreflightFailure", "{answer}");
    }
    let bare = fixture
        .send(&Request::new(Method::OPTIONS, "/orders"))
        .await;
    assert_eq!(code_of(&bare), "InvalidHeaderValue");
}

/// A name of another site that was bound to this address.
#[tokio::test]
async fn a_rebound_name_is_refused_on_loopback() {
    let fixture = Fixture::with_queue("orders").await;
    let answer = fixture.ask(get().header("host", "page.example"), 400).await;
    assert_eq!(code_of(&answer), "InvalidHeaderValue");
    let production = Request {
        target: "/orders/messages".to_owned(),
        ..get().header("host", "shop.queue.localhost")
    };
    assert_eq!(
        status_of(&fixture.send(&fixture.signed(production)).await),
        200
    );
}

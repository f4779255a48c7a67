//! What a guard lets through, and what it refuses.

use std::future::pending;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::routing::{get, post};
use axum::{Extension, Router};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower::ServiceExt as _;
use web_guard::{Guard, Session};

struct Site {
    guard: Guard,
    app: Router,
    host: String,
}

/// A browser that is logged in.
struct Browser {
    cookie: String,
    token: String,
}

impl Site {
    async fn new() -> Self {
        let (guard, _listener) = Guard::bind(0).await.expect("a free port");
        let token = async |Extension(session): Extension<Session>| session.form_token().to_owned();
        let pages = Router::new()
            .route("/", get(token))
            .route("/act", post(async || "done"));
        let host = guard.origin().trim_start_matches("http://").to_owned();
        let app = guard.protect(pages);
        Self { guard, app, host }
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", &self.host);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        let sent = self.app.clone().oneshot(request).await;
        sent.expect("it is answered")
    }

    async fn status(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.send(method, path, headers).await.status().as_u16()
    }

    fn login_path(&self) -> String {
        let link = self.guard.login_link();
        link.strip_prefix(&self.guard.origin())
            .expect("of this site")
            .to_owned()
    }

    async fn log_in(&self) -> Browser {
        let response = self.send("GET", &self.login_path(), &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
        let cookie = response.headers()["set-cookie"].to_str().expect("text");
        for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        let (cookie, _) = cookie.split_once(';').expect("attributes");
        let page = self.send("GET", "/", &[("cookie", cookie)]).await;
        assert_eq!(page.status(), StatusCode::OK);
        let token = page.into_body().collect().await.expect("a body").to_bytes();
        Browser {
            cookie: cookie.to_owned(),
            token: String::from_utf8(token.to_vec()).expect("text"),
        }
    }
}

#[tokio::test]
async fn a_link_logs_in_once() {
    let site = Site::new().await;
    assert_eq!(site.status("GET", "/", &[]).await, 401);
    assert_eq!(site.status("GET", "/no-page", &[]).await, 401);
    let link = site.login_path();
    assert_eq!(site.status("GET", &link, &[]).await, 200);
    assert_eq!(site.status("GET", &link, &[]).await, 403);
    for invalid in ["/login", "/login?token=", "/login?token=x"] {
        assert_eq!(site.status("GET", invalid, &[]).await, 403, "{invalid}");
    }
    let other = format!(
        "session-{}=invalid",
        site.host.split(':').nth(1).expect("a port")
    );
    assert_eq!(site.status("GET", "/", &[("cookie", &other)]).await, 401);
    let browser = site.log_in().await;
    let second = site.log_in().await;
    assert_ne!(browser.token, second.token);
}

#[tokio::test]
async fn old_links_are_not_valid_for_ever() {
    let site = Site::new().await;
    let first = site.login_path();
    let later: Vec<String> = (0..8).map(|_| site.login_path()).collect();
    assert_eq!(site.status("GET", &first, &[]).await, 403);
    assert_eq!(site.status("GET", &later[0], &[]).await, 200);
}

#[tokio::test]
async fn another_host_name_is_refused() {
    let site = Site::new().await;
    let Browser { cookie, .. } = site.log_in().await;
    let port = site.host.split(':').nth(1).expect("a port").to_owned();
    let with = async |host: &str| {
        let headers = [("host", host), ("cookie", cookie.as_str())];
        site.status("GET", "/", &headers).await
    };
    assert_eq!(with(&format!("localhost:{port}")).await, 200);
    for host in [
        "rebound.example",
        &format!("rebound.example:{port}"),
        "127.0.0.1",
        "127.0.0.1:1",
        &format!("127.0.0.1:{port}.rebound.example"),
        "",
    ] {
        assert_eq!(with(host).await, 421, "{host}");
    }
    let twice = [
        ("host", site.host.as_str()),
        ("host", "rebound.example"),
        ("cookie", &cookie),
    ];
    assert_eq!(site.status("GET", "/", &twice).await, 421);
    let absolute = format!("http://rebound.example:{port}/");
    assert_eq!(
        site.status("GET", &absolute, &[("cookie", &cookie)]).await,
        421
    );
    let login = [("host", "rebound.example")];
    assert_eq!(site.status("GET", &site.login_path(), &login).await, 421);
}

#[tokio::test]
async fn a_post_needs_its_origin_and_the_token() {
    let site = Site::new().await;
    let Browser { cookie, token } = site.log_in().await;
    let origin = site.guard.origin();
    let post = async |headers: &[(&str, &str)]| {
        let mut headers = headers.to_vec();
        headers.push(("cookie", &cookie));
        site.status("POST", "/act", &headers).await
    };
    let token = ("x-form-token", token.as_str());
    let own = ("origin", origin.as_str());
    assert_eq!(post(&[own, token]).await, 200);
    assert_eq!(post(&[("sec-fetch-site", "same-origin"), token]).await, 200);
    assert_eq!(post(&[own]).await, 403, "no token");
    assert_eq!(post(&[own, ("x-form-token", "")]).await, 403);
    let second = site.log_in().await;
    assert_eq!(
        post(&[own, ("x-form-token", &second.token)]).await,
        403,
        "of another session"
    );
    assert_eq!(post(&[token]).await, 403, "neither header");
    for origin in ["http://127.0.0.1:1", "https://evil.example", "null", ""] {
        assert_eq!(post(&[("origin", origin), token]).await, 403, "{origin}");
    }
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(
            post(&[own, ("sec-fetch-site", site), token]).await,
            403,
            "{site}"
        );
    }
    let headers = [own, token];
    assert_eq!(
        site.status("POST", "/act", &headers).await,
        401,
        "no cookie"
    );
}

#[tokio::test]
async fn a_page_of_another_origin_gets_nothing() {
    let site = Site::new().await;
    let Browser { cookie, .. } = site.log_in().await;
    for (from, expected) in [
        ("same-origin", 200),
        ("none", 200),
        ("same-site", 403),
        ("cross-site", 403),
    ] {
        let headers = [("cookie", cookie.as_str()), ("sec-fetch-site", from)];
        assert_eq!(site.status("GET", "/", &headers).await, expected, "{from}");
    }
    for method in ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"] {
        let headers = [("cookie", cookie.as_str())];
        assert_eq!(site.status(method, "/act", &headers).await, 405, "{method}");
    }
}

#[tokio::test]
async fn every_response_has_the_headers() {
    let site = Site::new().await;
    let Browser { cookie, .. } = site.log_in().await;
    for headers in [&[("cookie", cookie.as_str())][..], &[]] {
        let response = site.send("GET", "/", headers).await;
        let header = |name: &str| response.headers()[name].to_str().expect("text");
        let policy = header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("x-frame-options"), "DENY");
        assert_eq!(header("cache-control"), "no-store");
    }
}

/// More connections than may be open say nothing; then a browser is answered all the same.
#[tokio::test]
async fn connections_that_say_nothing_are_closed() {
    let (guard, listener) = Guard::bind(0).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let app = guard.protect(Router::new());
    let answered = async {
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.push(TcpStream::connect(address).await.expect("connected"));
        }
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    };
    let answer = tokio::select! {
        answer = answered => answer,
        () = web_guard::serve(listener, app, pending()) => panic!("it serves for ever"),
    };
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

/// An answer is finished that is in progress when serving ends, and connections on which nothing was asked are closed.
#[tokio::test]
async fn answers_in_progress_are_finished_at_a_stop() {
    let (guard, listener) = Guard::bind(0).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let login = guard.login_link();
    let (asked, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (asked, go_on) = (Arc::clone(&asked), Arc::clone(&go_on));
        async move || {
            asked.notify_one();
            go_on.notified().await;
            "finished"
        }
    };
    let app = guard.protect(Router::new().route("/", get(handler)));
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop).notified_owned();
    let serving = tokio::spawn(web_guard::serve(listener, app, stopped));

    let ask = async |path: &str, cookie: &str| {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{cookie}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    };
    let (_, path) = login.rsplit_once('/').expect("a path");
    let answer = ask(&format!("/{path}"), "").await;
    let cookie = answer
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = format!("cookie: {}\r\n", cookie.expect("a session"));
    let _silent = TcpStream::connect(address).await.expect("connected");
    let stopping = async {
        asked.notified().await;
        stop.notify_one();
        tokio::task::yield_now().await;
        go_on.notify_one();
    };
    let (answer, ()) = tokio::join!(ask("/", &cookie), stopping);
    assert!(answer.ends_with("finished"), "{answer}");
    serving.await.expect("no panic");
    TcpStream::connect(address)
        .await
        .expect_err("nobody listens");
}

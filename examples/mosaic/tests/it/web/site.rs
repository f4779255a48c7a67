//! The pages on a memory engine, and a browser that is logged in.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use mosaic::storage::store::Store;
use mosaic::web::{Pages, Tiles};
use mosaic::workflow::queues::create_queues;
use pictures::Library;
use queue_cost::PriceTable;
use queue_runtime::QueueService;
use serde_json::Value;
use tower::ServiceExt as _;
use web_guard::Guard;

pub(crate) struct Site {
    pub(crate) service: QueueService,
    pub(crate) store: Store,
    pub(crate) pages: Arc<Pages>,
    pub(crate) router: Router,
    pub(crate) origin: String,
    pub(crate) cookie: String,
    pub(crate) token: String,
}

/// The settings of a small mosaic.
pub(crate) const SMALL: &str = "tiles=0&across=24&tile_size=4&slices=4&tint=0.5";

impl Site {
    /// Opens the pages. They are kept up to date until the runtime ends.
    pub(crate) async fn open() -> Self {
        let service = QueueService::connect("memory:").await.expect("it opens");
        create_queues(&service).await.expect("created");
        let (guard, _listener) = Guard::bind(0).await.expect("a free port");
        let store = Store::memory();
        let prices = PriceTable::new("USD", "an example", 0.01).expect("valid");
        let built_in = || Ok(Library::load(&Library::built_in_files())?);
        let tiles = vec![Tiles::new("built-in tiles", built_in)];
        let pages = Arc::new(Pages::new(guard.clone(), &service, &store, tiles, prices));
        let router = pages.router.clone();
        let kept = Arc::clone(&pages);
        tokio::spawn(async move { kept.run().await });
        let mut site = Self {
            service,
            store,
            pages,
            router,
            origin: guard.origin(),
            cookie: String::new(),
            token: String::new(),
        };
        let link = guard.login_link();
        let login = site.get(link.strip_prefix(&site.origin).expect("of this site"));
        let login = login.await;
        let cookie = login.headers()["set-cookie"].to_str().expect("text");
        site.cookie = cookie.split(';').next().expect("a cookie").to_owned();
        let page = text(site.get("/").await).await;
        let token = page
            .split(r#"form-token" content=""#)
            .nth(1)
            .expect("a token");
        site.token = token.split('"').next().expect("a token").to_owned();
        site
    }

    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let host = self.origin.trim_start_matches("http://");
        let request = Request::builder().method(method).uri(path);
        request.header("host", host).header("cookie", &self.cookie)
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        let sent = self.router.clone().oneshot(request).await;
        sent.expect("it is answered")
    }

    pub(crate) async fn get(&self, path: &str) -> Response<Body> {
        let request = self.request("GET", path).body(Body::empty());
        self.send(request.expect("a request")).await
    }

    /// A POST as the page sends it.
    pub(crate) fn post(&self, path: &str) -> axum::http::request::Builder {
        let request = self.request("POST", path).header("origin", &self.origin);
        request.header("x-form-token", &self.token)
    }

    pub(crate) async fn upload(&self, query: &str, body: impl Into<Body>) -> Response<Body> {
        let request = self.post(&format!("/jobs?{query}")).body(body.into());
        self.send(request.expect("a request")).await
    }

    /// Asserts that an upload is refused with this status and a text that has this part.
    pub(crate) async fn refused(
        &self,
        query: &str,
        body: impl Into<Body>,
        (status, part): (u16, &str),
    ) {
        let refused = self.upload(query, body).await;
        let found = refused.status().as_u16();
        let text = text(refused).await;
        assert_eq!(found, status, "{query}: {text}");
        assert!(text.contains(part), "{query}: {text}");
    }

    /// Follows a job by server-sent events until a state has this property.
    pub(crate) async fn follow(&self, id: &str, until: impl Fn(&Value) -> bool) -> Value {
        let events = self.get(&format!("/events?job={id}")).await;
        assert_eq!(events.status(), StatusCode::OK);
        let mut stream = events.into_body().into_data_stream();
        let mut read = String::new();
        while let Some(bytes) = stream.next().await {
            read.push_str(std::str::from_utf8(&bytes.expect("bytes")).expect("text"));
            while let Some((event, rest)) = read.split_once("\n\n") {
                if let Some(data) = event.strip_prefix("event: job\ndata: ") {
                    let job: Value = serde_json::from_str(data).expect("JSON");
                    if until(&job) {
                        return job;
                    }
                }
                read = rest.to_owned();
            }
        }
        panic!("the events have ended");
    }
}

pub(crate) async fn bytes(response: Response<Body>) -> Vec<u8> {
    let collected = response.into_body().collect().await;
    collected.expect("a body").to_bytes().into()
}

pub(crate) async fn text(response: Response<Body>) -> String {
    String::from_utf8(bytes(response).await).expect("text")
}

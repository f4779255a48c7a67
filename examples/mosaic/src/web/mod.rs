//! The job broker's page: takes pictures in, and shows how their mosaics come about.
//!
//! ```text
//!  POST /jobs ──► submit ──► Intake ──► imagerequest
//!  GET /events ◄── board ◄── Watcher ◄── records, woken by what roles record and announce
//!  GET /jobs/ID/… ◄── parts ◄── rendered slices
//! ```
//!
//! Browsers see neither queues nor blobs: only the broker has the credentials of the storage. Whoever asks is checked by a
//! [`Guard`] first. However many pages are open, one watcher looks at the storage.

mod board;
mod events;
mod parts;
mod submit;
mod watcher;

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use pictures::{PictureError, Scene};
use queue_cost::PriceTable;
use queue_runtime::{Failure, QueueService};
use tokio::net::TcpListener;
use web_guard::{Guard, Session};

use crate::storage::store::{Store, StoreError};
use crate::workflow::client::ClientError;
use events::Streams;
use parts::Parts;
use submit::Uploads;
use watcher::Watcher;

pub use submit::Tiles;

/// The pages, and the task that keeps them up to date.
#[derive(Debug)]
pub struct Pages {
    /// What serves the pages to browsers that are logged in.
    pub router: Router,
    front: Arc<Front>,
    watcher: Watcher,
}

/// What all requests share.
#[derive(Debug)]
struct Front {
    guard: Guard,
    store: Store,
    uploads: Uploads,
    streams: Streams,
    parts: Parts,
}

type Shared = State<Arc<Front>>;

/// The width and height of the built-in pictures, in pixels.
const SCENE: (u32, u32) = (960, 640);
/// The width of picture previews.
const PREVIEW: u32 = 240;
const SCRIPT: &str = "text/javascript";
const ICON: (&str, &str) = ("image/svg+xml", include_str!("page/icon.svg"));
/// Pictures of a request stay the same while it exists.
const CACHEABLE: (axum::http::HeaderName, &str) = (CACHE_CONTROL, "private, max-age=600");

impl Pages {
    /// Returns the pages of a service and a store, guarded. `tiles` are the libraries to choose from, of which there is at
    /// least one.
    pub fn new(
        guard: Guard,
        service: &QueueService,
        store: &Store,
        tiles: Vec<Tiles>,
        prices: PriceTable,
    ) -> Self {
        let watcher = Watcher::new(service, store, prices);
        let front = Arc::new(Front {
            guard: guard.clone(),
            store: store.clone(),
            uploads: Uploads::new(service, store, tiles),
            streams: Streams::new(&watcher),
            parts: Parts::new(store),
        });
        let pages = Router::new()
            .route("/", get(page))
            .route("/page.css", file("text/css", include_str!("page/page.css")))
            .route("/page.js", file(SCRIPT, include_str!("page/page.js")))
            .route("/viewer.js", file(SCRIPT, include_str!("page/viewer.js")))
            .route("/icon.svg", file(ICON.0, ICON.1))
            // Browsers ask for the icon while they are at the guard's page, which names none.
            .route("/favicon.ico", file(ICON.0, ICON.1))
            .route("/scenes/{name}", get(scene))
            .route("/links", post(link))
            .route("/jobs", post(submit::submit))
            .route("/events", get(events::events))
            .route("/jobs/{id}/source", get(parts::source))
            .route(
                "/jobs/{id}/parts/{level}/{slice}/{column}",
                get(parts::part),
            )
            .route("/jobs/{id}/places/{slice}", get(parts::places))
            .route("/jobs/{id}/tiles/{index}", get(parts::tile))
            .route("/jobs/{id}/mosaic", get(parts::mosaic))
            .with_state(Arc::clone(&front));
        Self {
            router: guard.protect(pages),
            front,
            watcher,
        }
    }

    /// Goes on with pictures that an earlier process was taking in when it was killed. Call `go_on` before the pages
    /// are served, and while no other process serves pages of the same storage.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn go_on(&self) -> Result<(), ClientError> {
        self.front.uploads.go_on().await
    }

    /// Serves the pages, until [`end`](Self::end) is called and the answers that are then in progress are finished.
    pub async fn serve(&self, listener: TcpListener) {
        let ended = self.front.streams.ended();
        web_guard::serve(listener, self.router.clone(), ended).await;
    }

    /// Ends the streams of events, refuses further pictures, and waits until those that are taken in now are submitted.
    pub async fn end(&self) {
        self.front.streams.end();
        self.front.uploads.end().await;
    }

    /// Keeps the pages up to date, until dropped.
    pub async fn run(&self) {
        self.watcher.run().await;
    }
}

async fn page(State(front): Shared, Extension(session): Extension<Session>) -> Html<String> {
    let page = include_str!("page/index.html");
    let page = page.replace("{form-token}", session.form_token());
    Html(page.replace("{tiles}", &front.uploads.options()))
}

fn file(kind: &'static str, text: &'static str) -> MethodRouter<Arc<Front>> {
    get(async move || ([(CONTENT_TYPE, format!("{kind}; charset=utf-8"))], text))
}

/// A link that logs another browser in.
async fn link(State(front): Shared) -> String {
    front.guard.login_link()
}

async fn scene(Path(name): Path<String>) -> Result<Response, Problem> {
    let scene = scene_named(&name).ok_or(Problem::NoPage)?;
    let (width, height) = SCENE;
    let drawing = move || scene.draw(PREVIEW, PREVIEW * height / width).to_jpeg();
    Ok(jpeg(tokio::task::spawn_blocking(drawing).await?))
}

fn scene_named(name: &str) -> Option<Scene> {
    Scene::ALL.into_iter().find(|scene| scene.name() == name)
}

fn jpeg(bytes: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, "image/jpeg"), CACHEABLE], bytes).into_response()
}

/// Why a request cannot be answered.
#[derive(Debug, Clone)]
enum Problem {
    NoPage,
    /// What was asked for is not possible.
    Refused(StatusCode, String),
    Failed(Failure),
}

impl Problem {
    fn invalid(text: impl Into<String>) -> Self {
        Self::Refused(StatusCode::UNPROCESSABLE_ENTITY, text.into())
    }

    fn busy(what: &str) -> Self {
        let text = format!("{what}; try again in a while");
        Self::Refused(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Missing(_) => Self::NoPage,
            error => Self::Failed(Failure::retry(error)),
        }
    }
}

impl From<PictureError> for Problem {
    fn from(error: PictureError) -> Self {
        Self::invalid(Failure::reject(error).chain())
    }
}

impl From<tokio::task::JoinError> for Problem {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Failed(Failure::retry(error))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        match self {
            Self::NoPage => (StatusCode::NOT_FOUND, "there is nothing here").into_response(),
            Self::Refused(status, text) => (status, text).into_response(),
            Self::Failed(failure) => {
                let error = failure.chain();
                tracing::error!(error, "failed to answer a request of the page");
                (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
            }
        }
    }
}

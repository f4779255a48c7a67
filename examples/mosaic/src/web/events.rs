//! Progress, as server-sent events. Each event is the whole state of what it is about, so that a page that missed some, or
//! was loaded again, needs only the next.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::{Stream, StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::board::Board;
use super::watcher::Watcher;
use super::{Problem, Shared};

/// The greatest number of open streams: a browser has one for each page.
const MAX_STREAMS: usize = 64;
/// The pause after which a comment shows that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Streams {
    board: watch::Sender<Arc<Board>>,
    opened: Arc<Notify>,
    places: Arc<Semaphore>,
    ended: watch::Sender<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct EventsQuery {
    /// The job whose details are wanted too.
    job: Option<String>,
}

/// A page, and what it was told.
struct PageStream {
    board: watch::Receiver<Arc<Board>>,
    job: Option<String>,
    overview: String,
    detail: String,
    _place: OwnedSemaphorePermit,
}

impl Streams {
    pub(super) fn new(watcher: &Watcher) -> Self {
        let (board, opened) = watcher.board();
        Self {
            board,
            opened,
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
            ended: watch::Sender::new(false),
        }
    }

    /// Ends all streams, also those that are opened later.
    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until streams end.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            // If the sender is gone, nothing is served any more.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }
}

/// Sends `overview` and, of the wanted job, `job`, each when it changes.
pub(super) async fn events(
    State(front): Shared,
    Query(query): Query<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let streams = &front.streams;
    let place = Arc::clone(&streams.places).try_acquire_owned();
    let place = place.map_err(|_| Problem::busy("too many pages are open"))?;
    let mut board = streams.board.subscribe();
    board.mark_changed();
    streams.opened.notify_one();
    let page = PageStream {
        board,
        job: query.job,
        overview: String::new(),
        detail: String::new(),
        _place: place,
    };
    let events = stream::unfold(page, |mut page| async move {
        let news = page.next().await?;
        Some((stream::iter(news.into_iter().map(Ok)), page))
    });
    let events = events.flatten().take_until(streams.ended());
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

impl PageStream {
    /// Waits for news, and returns it.
    async fn next(&mut self) -> Option<Vec<Event>> {
        loop {
            self.board.changed().await.ok()?;
            let board = Arc::clone(&self.board.borrow_and_update());
            let mut news = Vec::new();
            let overview = json(&board.overview());
            if overview != self.overview {
                news.push(Event::default().event("overview").data(&overview));
                self.overview = overview;
            }
            if let Some(id) = &self.job {
                let detail = json(&board.detail(id));
                if detail != self.detail {
                    news.push(Event::default().event("job").data(&detail));
                    self.detail = detail;
                }
            }
            if !news.is_empty() {
                return Some(news);
            }
        }
    }
}

fn json(shown: &impl Serialize) -> String {
    serde_json::to_string(shown).expect("texts and numbers can be written as JSON")
}
